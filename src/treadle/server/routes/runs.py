"""Runs: start them, look at them, steer them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header, Query, Request
from starlette.responses import Response

from treadle.draw import TEXT_FORMATS
from treadle.draw.formats import render
from treadle.engine import Engine
from treadle.kernel.model import STATUSES, TERMINAL
from treadle.kernel.tracing import parse_traceparent
from treadle.lang.graph import Graph
from treadle.lang.json_text import NotJson, from_json
from treadle.runs import Run
from treadle.server import bodies, live, scope, shapes
from treadle.server.access import OPERATOR, VIEWER
from treadle.server.once import key_of
from treadle.server.paging import cursor, position
from treadle.server.problems import RequestRefused
from treadle.server.routing import Described, JsonAnswer, Routes, actor_of
from treadle.server.times import instant_ns

routes = Routes()

Limit = Annotated[int, Query(ge=1, le=1000)]
PICTURE = Described(media=("image/svg+xml", "text/plain"))
Seq = Annotated[int | None, Query(ge=1, le=bodies.NUMBER_MAX)]
After = Annotated[int, Query(ge=0, le=bodies.NUMBER_MAX)]


def engine_of(request: Request) -> Engine:
    found: Engine = request.app.state.engine
    return found


def checked_id(id: str) -> str:
    if not 1 <= len(id) <= 200 or id in (".", "..") or not id.isprintable():
        raise RequestRefused("INPUT_INVALID", "a run's id has 1 to 200 printable characters", where="id")
    return id


@routes.answers(
    "POST", "/runs", OPERATOR, within=scope.by_itself, status=201, gives=shapes.RunDocument, also=(200,)
)
async def start(
    request: Request,
    body: bodies.StartBody,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    traceparent: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Starts a run; durable when this answers. The same id with the same input is the same run. With a `traceparent`
    (W3C Trace Context) the run belongs to that trace."""
    engine = engine_of(request)
    if idempotency_key is not None and body.id not in (None, idempotency_key):
        raise RequestRefused("INPUT_INVALID", "the body has another id than Idempotency-Key", where="id")
    id = idempotency_key or body.id
    if (body.workflow is None) == (body.files is None):
        raise RequestRefused("INPUT_INVALID", "give either workflow or files", where="workflow")
    workflow: Any = body.workflow
    if body.files is not None:
        workflow = await request.app.state.bundles.main(body.files, body.main, actor_of(request))
    else:
        await scope.check_start(request, body.workflow or "")
    run = await engine.start(
        workflow,
        body.input,
        id=None if id is None else checked_id(id),
        key=body.key,
        reference=body.reference,
        priority=body.priority,
        model=body.model,
        offline=body.offline,
        dry_run=body.dry_run,
        templates=body.templates,
        # As the standard has it, one that cannot be read is passed over.
        traceparent=traceparent if parse_traceparent(traceparent) else None,
    )
    headers = {"Location": f"/api/v1/runs/{quote(run.id, safe='')}"}
    return JsonAnswer(await run.show(), 200 if run.existing else 201, headers)


@routes.answers("GET", "/runs", VIEWER, within=scope.by_itself, gives=shapes.Page[shapes.RunShown])
async def listed(
    request: Request,
    status: Annotated[list[str] | None, Query()] = None,
    workflow: str | None = None,
    reference: str | None = None,
    parent: str | None = None,
    since: str | None = None,
    until: str | None = None,
    search: str | None = None,
    state: str | None = None,
    limit: Limit = 100,
    cursor_: Annotated[str | None, Query(alias="cursor")] = None,
) -> Any:
    """Runs, newest first. `state` is a JSON object: values of a run's state by dotted names."""
    engine = engine_of(request)
    now_ns = engine.clock.now_ns()
    words = [word for part in status or () for word in part.split(",") if word]
    if unknown := [word for word in words if word not in STATUSES]:
        raise RequestRefused("INPUT_INVALID", f"{unknown[0]!r} is no status", where="status")
    filters: dict[str, Any] = {
        "status": words,
        "workflow": workflow,
        "reference": reference,
        "parent": parent,
        "search": search,
    }
    bound = {**filters, "since": since, "until": until, "state": state}
    asked = {
        **filters,
        "prefix": actor_of(request).workflow,
        "since_ns": instant_ns(since, "since", now_ns),
        "until_ns": instant_ns(until, "until", now_ns),
    }
    rows = await engine.run_rows(
        asked, _wanted_state(state), before_no=position(cursor_, bound), limit=limit + 1
    )
    more = cursor(bound, rows[limit - 1].no) if len(rows) > limit else None
    return {"items": await engine.listed(rows[:limit]), "next": more}


def _wanted_state(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = from_json(text.encode())
    except NotJson as error:
        raise RequestRefused("INPUT_INVALID", f"state: {error}", where="state") from error
    if not isinstance(found, dict):
        raise RequestRefused(
            "INPUT_INVALID", "state is a JSON object of dotted names and values", where="state"
        )
    return found


@routes.answers("GET", "/runs/{id}", VIEWER, within=scope.run, gives=shapes.RunDocument)
async def shown(request: Request, id: str, engine: bool = False, at: Seq = None) -> Any:
    """The run document, now or as it was after a record."""
    return await Run(engine_of(request), id).show(engine=engine, at=at)


@routes.answers("GET", "/runs/{id}/state", VIEWER, within=scope.run)
async def state(request: Request, id: str, at: Seq = None) -> Any:
    """The state, now or as it was after a record."""
    return await (await engine_of(request).run(id)).state(at)


@routes.answers("GET", "/runs/{id}/journal", VIEWER, within=scope.run, gives=list[dict[str, Any]])
async def journal(request: Request, id: str, after: After = 0, limit: Limit = 1000) -> Any:
    """The records of a run, in order."""
    return await (await engine_of(request).run(id)).journal(after=after, limit=limit)


@routes.answers("GET", "/runs/{id}/trace", VIEWER, within=scope.run, gives=dict[str, Any])
async def trace(request: Request, id: str) -> Any:
    """The way a run took."""
    return await (await engine_of(request).run(id)).trace()


@routes.answers("DELETE", "/runs/{id}", OPERATOR, within=scope.run, gives=dict[str, Any])
async def delete(request: Request, id: str) -> Any:
    """Removes a run that has ended, and the runs below it."""
    return await engine_of(request).delete(id, by=actor_of(request).user)


@routes.answers("GET", "/runs/{id}/graph", VIEWER, within=scope.run, gives=shapes.GraphShown, told=PICTURE)
async def graph(request: Request, id: str, format: str = "json", at: Seq = None) -> Response:
    """The picture of a run with its states, now or as they were after a record."""
    engine = engine_of(request)
    await engine.run(id)
    return picture(await engine.graph(id, at=at), format)


@routes.answers("GET", "/runs/{id}/record", VIEWER, within=scope.run, gives=shapes.Recorded)
async def record(request: Request, id: str) -> Any:
    """The run as a test: a scripted model for an agent, else what the outside answered."""
    return await engine_of(request).record(id)


@routes.answers("GET", "/runs/{id}/transcript", VIEWER, within=scope.run, gives=list[dict[str, Any]])
async def transcript(request: Request, id: str, node: str | None = None) -> Any:
    """What an agent run asked its models, tools and people, and what they answered."""
    return await engine_of(request).transcript(id, node=node)


def picture(graph: Graph, format: str) -> Response:
    if format not in ("json", *TEXT_FORMATS):
        told = f"format is one of json, {', '.join(TEXT_FORMATS)}"
        raise RequestRefused("INPUT_INVALID", told, where="format")
    if format == "json":
        return JsonAnswer(asdict(graph))
    media = "image/svg+xml" if format == "svg" else "text/plain; charset=utf-8"
    return Response(render(graph, format), media_type=media)


@routes.answers(
    "GET",
    "/runs/{id}/events",
    VIEWER,
    within=scope.run,
    gives=shapes.EventPage,
    told=Described(media=(live.MEDIA_TYPE,)),
)
async def events(
    request: Request,
    id: str,
    after: After = 0,
    limit: Limit = 1000,
    last_event_id: Annotated[int | None, Header(ge=0, le=bodies.NUMBER_MAX)] = None,
) -> Any:
    """Events of a run: a page, or with `Accept: text/event-stream` all of them, live, until it ends."""
    run = await engine_of(request).run(id)
    if live.wants_stream(request):
        return live.stream(request, live.run_events(run, after if last_event_id is None else last_event_id))
    found = []
    async for event in run.events(after=after, follow=False):
        found.append(event)
        if len(found) > limit:
            break
    return {"items": found[:limit], "next": found[limit - 1]["seq"] if len(found) > limit else None}


@routes.answers("POST", "/runs/{id}/wait", VIEWER, within=scope.run, gives=shapes.RunDocument)
async def wait(
    request: Request, id: str, timeout: Annotated[float, Query(ge=0, le=300)] = 30, until: str | None = None
) -> Any:
    """The run document, once the run has ended or only people and signals can move it on; `until=terminal`: once it
    has ended; `until=timers`: also when only timers are left. The header X-Treadle-Settled says whether that is so."""
    if until not in (None, "terminal", "timers"):
        raise RequestRefused("INPUT_INVALID", "until is terminal or timers, or left out", where="until")
    run = await engine_of(request).run(id)
    settled, document = await live.settled(run, timeout, until, request.app.state.draining)
    return JsonAnswer(document, headers={"X-Treadle-Settled": "true" if settled else "false"})


@routes.answers("POST", "/runs/{id}/signal", OPERATOR, within=scope.run, gives=shapes.RunDocument)
async def signal(request: Request, id: str, body: bodies.SignalBody) -> Any:
    """Wakes whoever awaits the signal; kept until somebody does."""
    engine = engine_of(request)
    if (again := key_of(request)) is not None:
        await engine.run(
            id
        )  # what is sent under a key is answered alike for ever, also that there is no such run
    answer = await engine.signal(
        id,
        body.name,
        body.data,
        key=body.key if again is None else body.key or f"idempotency:{again}",
        expected_version=body.expected_version,
        by=actor_of(request).user,
    )
    return await after(engine, id, answer)


@routes.answers("POST", "/runs/{id}/cancel", OPERATOR, within=scope.run, gives=shapes.RunDocument)
async def cancel(request: Request, id: str, body: bodies.CancelBody | None = None) -> Any:
    """Cancels a run and its children; one that has ended stays as it is."""
    engine = engine_of(request)
    answer = await engine.cancel(id, body.reason if body else "", by=actor_of(request).user)
    return await after(engine, id, answer)


@routes.answers("POST", "/runs/{id}/retry", OPERATOR, within=scope.run, gives=shapes.RunDocument)
async def retry(request: Request, id: str, body: bodies.RetryBody | None = None) -> Any:
    """Moves a stalled or failed run on."""
    engine = engine_of(request)
    how = {} if body is None else body.model_dump(by_alias=True, exclude_unset=True)
    if len(how.keys() - {"value", "budget", "main"}) > 1:
        raise RequestRefused(
            "INPUT_INVALID",
            "give one of from, input, skip, fail, definition, files",
            where=", ".join(sorted(how)),
        )
    main = how.pop("main", None)
    if body is not None and body.files is not None:
        del how["files"]
        how["definition"] = await request.app.state.bundles.main(body.files, main, actor_of(request))
    value = how.pop("value", None)
    if how.pop("skip", False):
        how["skip"] = value  # the result to go on with
    elif value is not None:
        raise RequestRefused("INPUT_INVALID", "value is the result to skip with; add skip", where="value")
    return await after(engine, id, await engine.retry(id, by=actor_of(request).user, **how))


@routes.answers("POST", "/runs/{id}/patch", OPERATOR, within=scope.run, gives=shapes.RunDocument)
async def patch(request: Request, id: str, body: bodies.PatchBody) -> Any:
    """Changes a run's data from outside."""
    engine = engine_of(request)
    return await after(engine, id, await engine.patch(id, body.data, by=actor_of(request).user))


@routes.answers("POST", "/runs/{id}/fork", OPERATOR, within=scope.run, status=201, gives=shapes.RunDocument)
async def fork(request: Request, id: str, body: bodies.ForkBody | None = None) -> Response:
    """A new run that goes on from a run's state at a record."""
    asked = body or bodies.ForkBody()
    run = await engine_of(request).fork(
        id,
        at=asked.at,
        definition=await _other(request, asked, asked.definition, "definition"),
        new_id=None if asked.id is None else checked_id(asked.id),
        by=actor_of(request).user,
    )
    return JsonAnswer(await run.show(), 201, {"Location": f"/api/v1/runs/{quote(run.id, safe='')}"})


@routes.answers("POST", "/runs/{id}/replay", VIEWER, within=scope.run, gives=shapes.Replayed)
async def replay(request: Request, id: str, body: bodies.ReplayBody | None = None) -> Any:
    """Decides the whole journal again; equal, or the first difference."""
    asked = body or bodies.ReplayBody()
    other = await _other(request, asked, asked.against, "against")
    return await engine_of(request).replay(id, against=other)


async def _other(
    request: Request, asked: bodies.ForkBody | bodies.ReplayBody, named: str | None, field: str
) -> Any:
    """Another definition: a deployed one by name, or posted files, which are not deployed."""
    if asked.files is None:
        return named
    if named is not None:
        raise RequestRefused("INPUT_INVALID", f"give either {field} or files", where=field)
    return await request.app.state.bundles.main(asked.files, asked.main, actor_of(request))


@routes.answers("POST", "/resume", OPERATOR, gives=shapes.RunsReached)
async def resume(request: Request, body: bodies.Nothing | None = None) -> Any:
    """Has unfinished runs driven on, and says which; a server does that by itself."""
    engine = engine_of(request)
    found = [
        row["id"]
        async for row in engine.rows(status=[status for status in STATUSES if status not in TERMINAL])
    ]
    await engine.want(*found)
    return {"runs": found}


@routes.answers("POST", "/signals", OPERATOR, gives=shapes.RunsReached)
async def signal_reference(request: Request, body: bodies.SignalReference) -> Any:
    """Signals every run with a business reference that waits for it."""
    return {"runs": list(await engine_of(request).signal_reference(body.reference, body.name, body.data))}


@routes.answers(
    "GET", "/diff", VIEWER, within=scope.by_itself, gives=dict[str, Any], told=Described(refuses=(404,))
)
async def diff(request: Request, a: str, b: str) -> Any:
    """Two runs compared."""
    engine = engine_of(request)
    for id in (a, b):
        await scope.check_run(request, id)
    return await (await engine.run(a)).diff(await engine.run(b))


@routes.answers(
    "GET",
    "/events/stream",
    VIEWER,
    within=scope.by_itself,
    told=Described(media=(live.MEDIA_TYPE,), json=False),
)
async def changes(
    request: Request,
    workflow: str | None = None,
    status: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Changes of runs as they happen, for lists."""
    statuses = tuple(word for word in (status or "").split(",") if word)
    wanted = live.ChangesWanted(workflow, actor_of(request).workflow or "", statuses)
    source = live.run_changes(engine_of(request), wanted, last_event_id)
    return live.stream(request, source)


async def after(engine: Engine, id: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The run document as it is now, marked where the command came too late."""
    shown = await Run(engine, id).show()
    return {**shown, "stale": True} if answer.get("stale") else shown
