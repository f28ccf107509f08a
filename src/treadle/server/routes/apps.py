"""Reactive applications as a server has loaded them: their manifest, and moving cells to other code.

Code is not taken over HTTP. Whoever asks names it by the digest of its manifest; the server has it by `--app`.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from treadle.server import bodies, shapes
from treadle.server.access import ADMIN, VIEWER
from treadle.server.problems import RequestRefused
from treadle.server.routing import Routes

from .runs import engine_of

routes = Routes()


def _check_loaded(request: Request, app: str) -> None:
    if app not in {one.name for one in engine_of(request).applications.machine.apps()}:
        raise RequestRefused("APP_NOT_FOUND", f"no application {app!r} is loaded here")


@routes.answers("GET", "/apps/{app}/manifest", VIEWER, gives=shapes.ManifestShown)
async def manifest(request: Request, app: str) -> Any:
    """The manifest of the application that is active under a name."""
    _check_loaded(request, app)
    found = await engine_of(request).applications.active(app)
    return {"name": found.name, "digest": found.digest, "manifest": found.manifest}


@routes.answers("POST", "/apps/{app}/apply", ADMIN, gives=shapes.Applied)
async def apply(request: Request, app: str, body: bodies.ApplyBody) -> Any:
    """Moves an application to other code, or to an approved proposal; refused unless it is quiet."""
    if (body.manifest is None) == (body.proposal is None):
        raise RequestRefused("INPUT_INVALID", "give either manifest or proposal", where="manifest")
    _check_loaded(request, app)
    engine = engine_of(request)
    what: Any = body.proposal
    if body.manifest is not None:
        what = engine.applications.loaded(app, body.manifest)
    return await engine.apply(what, app=app, wait=body.wait)


@routes.answers("POST", "/apps/{app}/shadow", ADMIN, gives=dict[str, Any])
async def shadow(request: Request, app: str, body: bodies.ShadowBody) -> Any:
    """What a candidate does with what has happened so far; touches nothing."""
    _check_loaded(request, app)
    engine = engine_of(request)
    return await engine.shadow(engine.applications.loaded(app, body.manifest), run=body.run)


@routes.answers("POST", "/apps/snapshot", ADMIN, gives=dict[str, Any])
async def snapshots(request: Request, body: bodies.Nothing | None = None) -> Any:
    """Writes the states of all cells to the content store; the roots, by application."""
    return await engine_of(request).snapshot()


@routes.answers("POST", "/apps/{app}/snapshot", ADMIN, gives=dict[str, Any])
async def snapshot(request: Request, app: str, body: bodies.Nothing | None = None) -> Any:
    """Writes the states of cells to the content store; the roots of this application."""
    found = (await engine_of(request).snapshot()).get(app)
    if found is None:
        raise RequestRefused("APP_NOT_FOUND", f"no application {app!r} is loaded here")
    return found
