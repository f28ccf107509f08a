"""Limits: how many runs of a workflow go on at once, and who is in line."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from treadle.runtime.quotas import no_limit
from treadle.server import bodies, scope, shapes
from treadle.server.access import OPERATOR, VIEWER
from treadle.server.routing import Routes

from .runs import engine_of

routes = Routes()


async def named(request: Request) -> None:
    """The path names a workflow; for a token that is limited to some of them another's is not there."""
    name: str = request.path_params["workflow"]
    if not scope.sees(request, name):
        raise no_limit(name)


@routes.answers("GET", "/limits", VIEWER, within=scope.by_itself, gives=shapes.Page[shapes.LimitShown])
async def listed(request: Request) -> Any:
    """Every workflow that is limited, by name."""
    rows = await engine_of(request).limits()
    return {"items": [row for row in rows if scope.sees(request, row["workflow"])], "next": None}


@routes.answers("GET", "/limits/{workflow}", VIEWER, within=named, gives=shapes.LimitShown)
async def shown(request: Request, workflow: str) -> Any:
    """The limits of one workflow, and who is in line."""
    return await engine_of(request).limit(workflow)


@routes.answers("PUT", "/limits/{workflow}", OPERATOR, within=named, gives=shapes.LimitShown)
async def put(request: Request, workflow: str, body: bodies.LimitsSet) -> Any:
    """Limits a workflow, whatever its definition says."""
    return await engine_of(request).limit_set(workflow, **body.model_dump(exclude_none=True, by_alias=True))


@routes.answers("DELETE", "/limits/{workflow}", OPERATOR, within=named, gives=shapes.LimitShown)
async def removed(request: Request, workflow: str) -> Any:
    """Leaves its limits to the definition again."""
    return await engine_of(request).limit_remove(workflow)
