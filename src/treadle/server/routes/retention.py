"""How long ended runs are kept, as operators say it."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from treadle.server import bodies, shapes
from treadle.server.access import ADMIN, VIEWER
from treadle.server.routing import Routes

from .runs import engine_of

routes = Routes()


@routes.answers("GET", "/retention", VIEWER, gives=shapes.Page[shapes.RetentionShown])
async def listed(request: Request) -> Any:
    """What is said of each workflow; `*` is what counts for all others."""
    return {"items": await engine_of(request).retentions(), "next": None}


@routes.answers("PUT", "/retention/{workflow}", ADMIN, gives=shapes.RetentionShown)
async def put(request: Request, workflow: str, body: bodies.RetentionSet) -> Any:
    """Says how long ended runs of a workflow are kept. Servers remove what is older."""
    return await engine_of(request).retention_set(workflow, body.keep)


@routes.answers("DELETE", "/retention/{workflow}", ADMIN, gives=shapes.RetentionShown)
async def removed(request: Request, workflow: str) -> Any:
    """Leaves it to its definition again."""
    return await engine_of(request).retention_remove(workflow)
