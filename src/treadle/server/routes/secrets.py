"""The secret store over HTTP. Names are read, values only written."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from treadle.server import bodies, shapes
from treadle.server.access import ADMIN
from treadle.server.problems import RequestRefused
from treadle.server.routing import Routes

from .runs import engine_of

routes = Routes()


@routes.answers("GET", "/secrets", ADMIN, gives=shapes.Page[shapes.SecretName])
async def listed(request: Request) -> Any:
    """The names of the stored secrets."""
    names = await engine_of(request).secret_list()
    return {"items": [{"name": name} for name in names], "next": None}


@routes.answers("GET", "/secrets/{name}", ADMIN, gives=shapes.SecretName)
async def shown(request: Request, name: str) -> Any:
    """Whether there is a secret of this name."""
    if name not in await engine_of(request).secret_list():
        raise RequestRefused("SECRET_NOT_FOUND", f"there is no secret {name!r}")
    return {"name": name}


@routes.answers("PUT", "/secrets/{name}", ADMIN, gives=shapes.SecretChange)
async def put(request: Request, name: str, body: bodies.NewSecret) -> Any:
    """Stores a secret, or replaces it."""
    await engine_of(request).secret_set(name, body.value)
    return {"name": name, "status": "set"}


@routes.answers("DELETE", "/secrets/{name}", ADMIN, gives=shapes.SecretChange)
async def remove(request: Request, name: str) -> Any:
    """Removes a secret."""
    await engine_of(request).secret_remove(name)
    return {"name": name, "status": "removed"}
