"""Webhooks: what outside systems may start, signal and publish, and who says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from treadle.access import hooks
from treadle.access.hooks import Hook, filled
from treadle.engine import Engine
from treadle.host.acting import Origin, acting
from treadle.kernel.errors import SecretMissing
from treadle.kernel.values import Value
from treadle.lang.json_text import NotJson, from_json
from treadle.server import bodies, shapes
from treadle.server.access import ADMIN, EVERYBODY
from treadle.server.problems import RequestRefused
from treadle.server.routing import Described, JsonAnswer, Routes, read_bytes

from .runs import checked_id, engine_of

log = logging.getLogger("treadle.server")
routes = Routes()
HOOK_BODY_MAX: Final = 1024 * 1024


@routes.answers("GET", "/hooks", ADMIN, gives=shapes.Page[shapes.HookRow])
async def listed(request: Request) -> Any:
    """The hooks; their secrets by name."""
    return {"items": await hooks.listed(engine_of(request)), "next": None}


@routes.answers("GET", "/hooks/{name}", ADMIN, gives=shapes.HookRow)
async def shown(request: Request, name: str) -> Any:
    """One hook."""
    return hooks.shown(name, await engine_of(request).read(lambda reads: hooks.row_of(reads, name)))


@routes.answers("PUT", "/hooks/{name}", ADMIN, gives=shapes.HookRow)
async def put(request: Request, name: str, body: bodies.NewHook) -> Any:
    """Makes a hook, or changes it."""
    return await hooks.put(engine_of(request), name, body.model_dump(exclude_none=True))


@routes.answers("DELETE", "/hooks/{name}", ADMIN, gives=shapes.Removed)
async def remove(request: Request, name: str) -> Any:
    """Removes a hook."""
    await hooks.remove(engine_of(request), name)
    return {"name": name, "removed": True}


@routes.answers(
    "POST",
    "/hooks/{name}",
    EVERYBODY,
    status=202,
    gives=shapes.RunsReached,
    told=Described(takes="application/json", any_query=True, refuses=(401,)),
)
async def called(request: Request, name: str) -> Response:
    """A signed request from outside; the same one again is answered alike and does nothing new."""
    engine = engine_of(request)
    hook = await engine.read(lambda reads: hooks.row_of(reads, name))
    raw = await read_bytes(request, HOOK_BODY_MAX)
    header = request.headers.get("x-treadle-signature", "")
    key = hooks.proven(await _secret(engine, hook), header, raw, engine.clock.now_ns())
    if key is None:
        raise RequestRefused(
            "UNAUTHENTICATED", "the signature is missing, wrong or out of its window", cls="authorization"
        )
    try:
        body = from_json(raw)
    except NotJson as error:
        raise RequestRefused("BAD_JSON", f"the body cannot be read: {error}") from error
    about = {"body": body, "headers": dict(request.headers), "query": dict(request.query_params)}
    origin = Origin(f"hook:{name}", "", request.app.state.member.name, request.state.request_id)
    with acting(origin):
        return JsonAnswer({"runs": list(await _done(engine, name, hook, about, key))}, 202)


async def _secret(engine: Engine, hook: Hook) -> str:
    try:
        found = await engine.secrets.resolve(hook.secret)
    except SecretMissing as error:
        log.error("a hook cannot be judged: %s", error.message)
        raise RequestRefused(
            "HOOK_UNAVAILABLE", "this hook cannot be judged now; the log says why"
        ) from error
    return found if isinstance(found, str) else str(found.get("secret", ""))


async def _done(engine: Engine, name: str, hook: Hook, about: dict[str, Any], key: str) -> Sequence[str]:
    body: Value = about["body"]
    if hook.workflow is not None:
        id = f"{name}-{key}" if hook.id is None else filled(hook.id, about)
        reference = None if hook.reference is None else filled(hook.reference, about)
        run = await engine.start(filled(hook.workflow, about), body, id=checked_id(id), reference=reference)
        return [run.id]
    if hook.signal is not None:
        run_id = filled(hook.signal.run, about)
        called = filled(hook.signal.name, about)
        await engine.signal(run_id, called, body, key=f"hook:{key}", by=f"hook:{name}")
        return [run_id]
    return await engine.publish(filled(hook.event or "", about), body, submission_id=f"hook:{key}")
