"""The secret store over HTTP. Names are read, values only written."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request

from treadle.kernel.errors import Unsupported
from treadle.secrets.providers import SecretStore
from treadle.server import bodies, shapes
from treadle.server.access import ADMIN
from treadle.server.problems import Refused
from treadle.server.routing import Routes

from .runs import engine_of

routes = Routes()


def _store(request: Request) -> SecretStore:
    found = engine_of(request).secrets.store
    if found is None:
        raise Unsupported("this server keeps no secrets; give them to workers with --secrets")
    return found


@routes.answers("GET", "/secrets", ADMIN, gives=shapes.Page[shapes.SecretName])
async def listed(request: Request) -> Any:
    """The names of the stored secrets."""
    names = await asyncio.to_thread(_store(request).names)
    return {"items": [{"name": name} for name in names], "next": None}


@routes.answers("GET", "/secrets/{name}", ADMIN, gives=shapes.SecretName)
async def shown(request: Request, name: str) -> Any:
    """Whether there is a secret of this name."""
    if name not in await asyncio.to_thread(_store(request).names):
        raise Refused("SECRET_NOT_FOUND", f"there is no secret {name!r}")
    return {"name": name}


@routes.answers("PUT", "/secrets/{name}", ADMIN, gives=shapes.SecretChange)
async def put(request: Request, name: str, body: bodies.NewSecret) -> Any:
    """Stores a secret, or replaces it."""
    store = _store(request)
    await engine_of(request).operate("secret", {"op": "set", "name": name})
    await asyncio.to_thread(store.set, name, body.value)
    return {"name": name, "status": "set"}


@routes.answers("DELETE", "/secrets/{name}", ADMIN, gives=shapes.SecretChange)
async def remove(request: Request, name: str) -> Any:
    """Removes a secret."""
    store = _store(request)
    await engine_of(request).operate("secret", {"op": "remove", "name": name})
    if not await asyncio.to_thread(store.remove, name):
        raise Refused("SECRET_NOT_FOUND", f"there is no secret {name!r}")
    return {"name": name, "status": "removed"}
