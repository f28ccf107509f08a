"""Tokens: make, list, revoke; and who one is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import Request
from starlette.responses import Response

from treadle.lang.duration import instant_text
from treadle.server import bodies, scope, shapes
from treadle.server.access import ADMIN, EVERYBODY, INBOX, OPERATOR, ROLES, TASK, VIEWER, may
from treadle.server.routing import JsonAnswer, Routes, actor_of

from .runs import engine_of

routes = Routes()


@routes.answers("GET", "/me", INBOX, within=scope.by_itself, gives=shapes.Me)
async def me(request: Request) -> Any:
    """Who asks, and what they may do here."""
    actor = actor_of(request)
    return {
        "user": actor.user,
        "roles": list(actor.roles),
        "task_roles": [role for role in actor.roles if role not in ROLES],
        "workflow": actor.workflow,
        "token": actor.token or None,
        "expires_at": None if actor.expires_ns is None else instant_text(actor.expires_ns),
        "access": await request.app.state.access.name(),
        "may": [role for role in (VIEWER, OPERATOR, TASK, ADMIN) if may(actor.roles, role)],
    }


@routes.answers("GET", "/login", EVERYBODY, gives=shapes.LoginShown)
async def login(request: Request) -> Any:
    """How people prove who they are in a browser: by a token, or at an issuer with the authorization code flow."""
    access = request.app.state.access
    return {"access": await access.name(), "oidc": None if access.login is None else asdict(access.login)}


@routes.answers("GET", "/tokens", ADMIN, gives=shapes.Page[shapes.TokenShown])
async def listed(request: Request) -> Any:
    """All tokens, without what proves them."""
    return {"items": await engine_of(request).token_list(), "next": None}


@routes.answers("POST", "/tokens", ADMIN, status=201, gives=shapes.TokenMade)
async def create(request: Request, body: bodies.NewToken) -> Any:
    """Makes a token; this is the last time it is seen."""
    made = await engine_of(request).token_create(
        body.user, body.roles, workflow=body.workflow, expires=body.expires
    )
    return JsonAnswer(made, 201, {"Cache-Control": "no-store"})


@routes.answers("DELETE", "/tokens/{id}", ADMIN, gives=shapes.TokenShown)
async def revoke(request: Request, id: str) -> Response:
    """Ends a token, at every server within a second."""
    return JsonAnswer(await engine_of(request).token_revoke(id))
