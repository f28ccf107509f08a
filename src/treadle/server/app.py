"""The application: an engine, its routes, and what stands around every request."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.engine import Engine
from treadle.host.bulk import BulkWork

from . import console, openapi, problems
from .access import Access, AccessOptions, Login
from .addresses import Addresses, Straight
from .bundles import Bundles
from .connections import ClientPatience
from .metrics import HttpMeter, Metrics
from .once import AnswersOnce
from .presence import Member, Presence
from .routes import (
    apps,
    audit,
    bulk,
    definitions,
    hooks,
    house,
    insights,
    limits,
    retention,
    runs,
    schedules,
    tasks,
    tokens,
    work,
)
from .routes import secrets as secret_routes
from .routing import BODY_MAX, RawPaths, Route, Routes
from .workers import Workers

log = logging.getLogger("treadle.server.requests")

PREFIX = "/api/v1"
# Every route but the console's files: what is here names its role.
PARTS: Final[tuple[tuple[str, Routes], ...]] = (
    *(
        (PREFIX, part.routes)
        for part in (
            apps,
            definitions,
            runs,
            bulk,
            tasks,
            schedules,
            limits,
            retention,
            work,
            house,
            insights,
            tokens,
            audit,
            hooks,
            secret_routes,
        )
    ),
    ("", house.health),
)
BLOB_MAX = 1024 * 1024 * 1024
# Ids of requests are to be told apart, not to be kept secret. Asking the system for each of them would let go of the
# interpreter, and another thread would have it for a while.
_CHANCE: Final = random.Random()
os.register_at_fork(after_in_child=_CHANCE.seed)
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,100}")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
_POLICY: Final = "default-src 'self'; frame-ancestors 'none'"


def create_app(
    engine: Engine,
    *,
    body_max: int = BODY_MAX,
    blob_max: int = BLOB_MAX,
    member: Member | None = None,
    workers: Workers | None = None,
    access: AccessOptions | None = None,
    patience: ClientPatience | None = None,
    archive: str | None = None,
    console_files: Path = console.FOLDER,
) -> FastAPI:
    """The HTTP API over an engine that is open."""
    app = FastAPI(
        title="Treadle",
        version=version("treadle"),
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        # Traces and figures are our own; the framework would look for others' at every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.router.route_class = Route
    app.state.engine = engine
    app.state.access = Access(engine, access)
    app.state.bundles = Bundles(engine)
    app.state.once = AnswersOnce(engine)
    app.state.body_max = body_max
    app.state.patience = patience or ClientPatience()
    app.state.draining = asyncio.Event()
    app.state.streams = 0
    app.state.member = member or Member()
    app.state.presence = Presence(engine, app.state.member, app.state.draining.is_set)
    app.state.workers = workers or Workers(engine)
    app.state.metrics = Metrics(engine, app.state.workers)
    app.state.bulk = BulkWork(engine, server=app.state.member.name)
    app.state.blob_max = blob_max
    app.state.archive = archive
    for prefix, routes in PARTS:
        app.include_router(routes, prefix=prefix)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]  # how FastAPI wants it
    problems.install(app, _methods_at)
    console.install(app, _methods_at, console_files)
    app.add_middleware(Straight, addresses=Addresses(PARTS))
    app.add_middleware(SafeHeaders, meter=app.state.metrics.http, policy=_policy(app.state.access.login))
    if access is not None and access.origins:
        # Told by a bearer token, never by a cookie: so no credentials, and nobody but who was named.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
        )
    app.add_middleware(RawPaths)
    return app


def _methods_at(path: str) -> list[str]:
    """The methods that an address of the API takes."""
    found = {
        method
        for prefix, routes in PARTS
        if path.startswith(prefix)
        for route in routes.routes
        if isinstance(route, Route) and route.path_regex.match(path.removeprefix(prefix))
        for method in route.methods or ()
    }
    return sorted(found)


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.describe(app, PARTS)
    return app.openapi_schema


def _policy(login: Login | None) -> str:
    """What a page may do: nothing with anybody else, but ask the issuer where people log in."""
    if login is None:
        return _POLICY
    at = urlsplit(login.issuer)
    return f"{_POLICY}; connect-src 'self' {at.scheme}://{at.netloc.rpartition('@')[2]}"


class SafeHeaders:
    """What a browser must be told with every answer, the id of the request, and one line in the log: never a body, a
    token or the value of a query."""

    def __init__(self, app: ASGIApp, meter: HttpMeter, policy: str = _POLICY) -> None:
        self._app = app
        self._meter = meter
        self._headers = [*_HEADERS, (b"content-security-policy", policy.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = next((value for name, value in reversed(scope["headers"]) if name == b"x-request-id"), b"")
        id = asked if asked and _REQUEST_ID.fullmatch(asked) else b"%016x" % _CHANCE.getrandbits(64)
        state = scope.setdefault("state", {})
        state["request_id"] = id.decode()
        began = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._meter.answered(
                    state.get("route", ""), scope["method"], status, time.monotonic() - began
                )
                message["headers"] = [*message["headers"], *self._headers, (b"x-request-id", id)]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if status == 0:  # whoever stands around us answers it
                self._meter.answered(state.get("route", ""), scope["method"], 500, time.monotonic() - began)
            raise
        finally:
            if log.isEnabledFor(logging.INFO):
                about = {
                    "method": scope["method"],
                    "route": state.get("route", "-"),
                    "status": status,
                    "ms": round((time.monotonic() - began) * 1000),
                    "user": state.get("user", "-"),
                    "request": state["request_id"],
                }
                log.info("%s %s %d %d ms user=%s request=%s", *about.values(), extra=about)
