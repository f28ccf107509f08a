"""The house: health, numbers, members, reactive applications' front doors, keeping order."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from treadle.host import checkup
from treadle.kernel.errors import StoreUnavailable, TreadleError
from treadle.runtime.doctor import SKEW_NS_MAX, skew_ns
from treadle.server import bodies, scope, shapes
from treadle.server.access import ADMIN, EVERYBODY, OPERATOR, VIEWER
from treadle.server.metrics import MEDIA
from treadle.server.presence import Presence
from treadle.server.problems import RequestRefused
from treadle.server.routing import Described, JsonAnswer, Routes, actor_of

from .runs import engine_of

# Whoever asks whether we are ready is told within a few seconds, also where the store says nothing at all.
READY_S: Final = 2.0

routes = Routes()
health = Routes()
# A server whose clock is further from the store's serves nothing: its timers and tokens would be wrong.
UNREADY_NS: Final = 10 * 10**9


@health.answers("GET", "/healthz", EVERYBODY, gives=shapes.Live)
async def live(request: Request) -> Any:
    """The process answers."""
    return {"live": True}


@health.answers("GET", "/readyz", EVERYBODY, gives=shapes.Ready, also=(503,))
async def ready(request: Request) -> Response:
    """Whether requests can be served, and what is missing where they cannot."""
    state = request.app.state
    engine = engine_of(request)
    found: dict[str, Any] = {"ready": True, "store": "ok", "bus": "ok", "shards": engine.shards}
    try:
        async with asyncio.timeout(READY_S):
            ahead_ns = await engine.read(skew_ns)
            await state.access.closed()
    except TreadleError as error:
        found |= {"ready": False, "store": error.code}
    except TimeoutError:
        found |= {"ready": False, "store": StoreUnavailable.code}
    else:
        if abs(ahead_ns) > SKEW_NS_MAX:
            found["clock"] = f"{ahead_ns / 1e9:+.1f}s"
            found["ready"] = abs(ahead_ns) < UNREADY_NS
    if engine.begins_anew:
        found |= {"ready": False, "store": StoreUnavailable.code}
    if not await state.workers.carrying.is_well(READY_S):
        # Starts and commands are taken all the same; work waits, or comes over HTTP.
        found["bus"] = "BUS_UNAVAILABLE"
    found["access"] = state.access.believed()
    if state.draining.is_set():
        found |= {"ready": False, "draining": True}
    return JsonAnswer(found, 200 if found["ready"] else 503)


@health.answers("GET", "/metrics", VIEWER, told=Described(media=("text/plain",), json=False))
async def metrics(request: Request) -> Response:
    """The numbers of this server, in the text format of Prometheus."""
    state = request.app.state
    return Response(await state.metrics.text(state.streams), media_type=MEDIA)


@routes.answers("GET", "/stats", VIEWER, gives=shapes.Stats)
async def stats(request: Request) -> Any:
    """Runs by status."""
    counts = await engine_of(request).read(lambda reads: reads.run_count())
    engine = engine_of(request)
    return {
        "runs": counts,
        "streams": request.app.state.streams,
        "queue": engine.bus.waiting(),
        "unavailable": len(engine.unavailable()),
    }


@routes.answers("GET", "/servers", VIEWER, gives=shapes.Page[shapes.ServerRow])
async def servers(request: Request) -> Any:
    """The members of this store, at any server the same: each with the shards that it decides."""
    presence: Presence = request.app.state.presence
    return {"items": await presence.rows(), "next": None}


@routes.answers("DELETE", "/servers/{id}", ADMIN, gives=shapes.ServerRow)
async def dismiss(request: Request, id: str) -> Any:
    """Forgets a server that is gone, before its lease runs out: its shards are free at once."""
    presence: Presence = request.app.state.presence
    return await presence.dismiss(id)


@routes.answers("POST", "/events", OPERATOR, status=202, gives=shapes.RunsReached)
async def publish(request: Request, body: bodies.PublishBody) -> Any:
    """Publishes a domain event to the cells that take it."""
    runs = await engine_of(request).publish(
        body.event, body.value, key=body.key, submission_id=body.submission_id
    )
    return {"runs": list(runs)}


@routes.answers("GET", "/cells/{workflow}", VIEWER, within=scope.workflow, gives=shapes.Page[shapes.Cell])
async def cells(request: Request, workflow: str) -> Any:
    """The cells of a reactive workflow."""
    return {"items": await engine_of(request).cells(workflow), "next": None}


@routes.answers("GET", "/cells/{workflow}/{key}", VIEWER, within=scope.workflow, gives=shapes.RunDocument)
async def cell(request: Request, workflow: str, key: str) -> Any:
    """The run behind a key."""
    run = await engine_of(request).cell(workflow, key)
    if run is None:
        raise RequestRefused("CELL_NOT_FOUND", f"{workflow} has no cell {key!r}")
    return await run.show()


@routes.answers("GET", "/doctor", VIEWER, gives=dict[str, Any])
async def doctor(request: Request, deep: bool = False) -> Any:
    """The health of the store; `deep` looks at everything."""
    found = await engine_of(request).doctor(deep=deep)
    carrying = request.app.state.workers.carrying
    return found if await carrying.is_well() else checkup.bus_away(found, carrying.bus)


@routes.answers("POST", "/gc", ADMIN, gives=dict[str, Any])
async def collect(request: Request, body: bodies.CollectBody | None = None) -> Any:
    """Removes ended runs past their retention date, after they are in the server's archive if it has one."""
    return await engine_of(request).gc(
        dry_run=body.dry_run if body else False, by=actor_of(request).user, archive=request.app.state.archive
    )
