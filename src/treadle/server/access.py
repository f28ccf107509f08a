"""Who asks, and whether they may: one judgement, before a body is read and before anything is looked up.

Every route names the role it needs (`routing.Route` takes it, OpenAPI shows it as `x-role`). A server that is *open*
(bound to loopback, no token ever made in its store) takes the actor from headers; it answers only requests that name
it by a loopback name and carry JSON, so that a web page somewhere cannot reach it through its reader's browser.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from .problems import Refused

EVERYBODY: Final = "none"
VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
WORKER: Final = "worker"
ADMIN: Final = "admin"
# What both those who look and those who work need: payloads, definitions by digest.
BLOBS: Final = "viewer or worker"
# Task routes: the task itself says which roles may act on it.
TASK: Final = "task"
_INCLUDES: Final[dict[str, frozenset[str]]] = {
    VIEWER: frozenset({VIEWER, OPERATOR, ADMIN}),
    OPERATOR: frozenset({OPERATOR, ADMIN}),
    WORKER: frozenset({WORKER, ADMIN}),
    ADMIN: frozenset({ADMIN}),
    BLOBS: frozenset({VIEWER, OPERATOR, WORKER, ADMIN}),
}


@dataclass(frozen=True, slots=True)
class Actor:
    user: str
    roles: tuple[str, ...]


class Access:
    """Judges requests of an open server."""

    name = "open"

    async def judge(self, request: Request, role: str) -> Actor:
        host = request.headers.get("host", "")
        if not is_loopback(_name_of(host)):
            raise Refused(
                "HOST_REFUSED",
                f"this server is open and answers as localhost only, not as {host[:100]!r}",
                cls="authorization",
            )
        actor = self._actor(request)
        if not may(actor.roles, role):
            raise Refused("FORBIDDEN", f"this needs the role {role}", cls="authorization")
        return actor

    @staticmethod
    def _actor(request: Request) -> Actor:
        user = request.headers.get("x-treadle-user")
        roles = request.headers.get("x-treadle-roles")
        if user is None and roles is None:
            return Actor("local", (ADMIN,))
        named = tuple(role.strip() for role in (roles or ADMIN).split(",") if role.strip())
        return Actor(user or "local", named)


def may(roles: Sequence[str], needed: str) -> bool:
    """Whether one of the roles is enough. Tasks are judged by their own roles, where they are known."""
    return needed in (EVERYBODY, TASK) or not _INCLUDES[needed].isdisjoint(roles)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
