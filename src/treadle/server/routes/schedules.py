"""Schedules: starts that time brings."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query, Request
from starlette.responses import Response

from treadle.runtime.schedules import no_schedule
from treadle.server import bodies, scope, shapes
from treadle.server.access import OPERATOR, VIEWER
from treadle.server.problems import RequestRefused
from treadle.server.routing import JsonAnswer, Routes
from treadle.server.times import instant_ns

from .runs import engine_of

routes = Routes()


async def named(request: Request) -> None:
    """The path names a schedule; for a token that is limited to some workflows another's is not there."""
    name: str = request.path_params["name"]
    if not scope.sees(request, (await engine_of(request).schedule(name))["workflow"]):
        raise no_schedule(name)


@routes.answers("GET", "/schedules", VIEWER, within=scope.by_itself, gives=shapes.Page[shapes.ScheduleShown])
async def listed(request: Request) -> Any:
    """Every schedule, by name."""
    rows = await engine_of(request).schedules()
    return {"items": [row for row in rows if scope.sees(request, row["workflow"])], "next": None}


@routes.answers(
    "POST",
    "/schedules",
    OPERATOR,
    within=scope.by_itself,
    status=201,
    gives=shapes.ScheduleShown,
    also=(200,),
)
async def added(request: Request, body: bodies.ScheduleNew) -> Response:
    """Adds one. The same again is the same; another under a taken name is refused."""
    await scope.check_start(request, body.workflow)
    row = await engine_of(request).schedule_add(**body.model_dump(exclude_unset=True))
    new = row.pop("new")
    return JsonAnswer(
        row, 201 if new else 200, {"Location": f"/api/v1/schedules/{quote(row['name'], safe='')}"}
    )


@routes.answers("POST", "/schedules/preview", OPERATOR, within=scope.by_itself, gives=shapes.Preview)
async def previewed(request: Request, body: bodies.SchedulePreview) -> Any:
    """The next ticks of a schedule that need not be there."""
    fields = {**body.model_dump(exclude_unset=True), "name": "preview", "workflow": "preview"}
    count = fields.pop("count", 5)
    return {"next": await engine_of(request).schedule_preview(fields, count)}


@routes.answers("GET", "/schedules/{name}", VIEWER, within=named, gives=shapes.ScheduleShown)
async def shown(request: Request, name: str) -> Any:
    """One schedule: its next five ticks, and what became of the last."""
    return await engine_of(request).schedule(name)


@routes.answers("PATCH", "/schedules/{name}", OPERATOR, within=named, gives=shapes.ScheduleShown)
async def changed(request: Request, name: str, body: bodies.ScheduleChange) -> Any:
    """Changes what it says; `paused` stops and resumes it."""
    if body.workflow is not None:
        await scope.check_start(request, body.workflow)
    return await engine_of(request).schedule_change(name, **body.model_dump(exclude_unset=True))


@routes.answers("DELETE", "/schedules/{name}", OPERATOR, within=named, gives=dict[str, Any])
async def removed(request: Request, name: str) -> Any:
    """Removes it; its runs go on."""
    return await engine_of(request).schedule_remove(name)


@routes.answers(
    "POST", "/schedules/{name}/trigger", OPERATOR, within=named, status=201, gives=shapes.RunDocument
)
async def triggered(request: Request, name: str) -> Response:
    """Starts a run now, also when paused, whatever goes on."""
    engine = engine_of(request)
    run = await engine.run(await engine.schedule_trigger(name))
    return JsonAnswer(await run.show(), 201, {"Location": f"/api/v1/runs/{quote(run.id, safe='')}"})


@routes.answers("POST", "/schedules/{name}/backfill", OPERATOR, within=named, gives=shapes.RunsReached)
async def filled(
    request: Request, name: str, since: Annotated[str, Query()], until: str | None = None
) -> Any:
    """Starts the runs of past ticks; those that have one keep it."""
    engine = engine_of(request)
    now_ns = engine.clock.now_ns()
    begins, ends = instant_ns(since, "since", now_ns), instant_ns(until, "until", now_ns)
    if begins is None:
        raise RequestRefused("INPUT_INVALID", "say since when", where="since")
    return {
        "runs": await engine.schedule_backfill(
            name, since_ns=begins, until_ns=now_ns if ends is None else ends
        )
    }
