"""Who asks, and whether they may: one judgement, before a body is read and before anything is looked up.

Every route names the role it needs (`routing.Route` takes it, OpenAPI shows it as `x-role`). A server that is *open*
(bound to loopback, no token ever made in its store) takes the actor from headers; it answers only requests that name
it by a loopback name, carry JSON and come from no page but one of this machine, so that a web page somewhere cannot
reach it through its reader's browser.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from treadle.runtime.messages import OWN_NAMES

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
        origin = request.headers.get("origin")
        if origin is not None and not is_loopback(_name_of(origin.partition("://")[2])):
            # A browser names the page that asks. What a page may send unasked (a form, a body of no type,
            # nothing at all) needs no leave of ours, so it is the page that is refused.
            raise Refused(
                "ORIGIN_REFUSED", f"pages of {origin[:100]!r} may not ask this server", cls="authorization"
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
        if user is not None and user.startswith(OWN_NAMES):
            raise Refused("FORBIDDEN", f"{user[:100]!r} is a name of the engine's own", cls="authorization")
        # A header that names no role names none: only who says nothing about roles is everybody.
        said = ADMIN if roles is None else roles
        return Actor(user or "local", tuple(role.strip() for role in said.split(",") if role.strip()))


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
