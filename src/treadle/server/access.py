"""Who asks, and whether they may: one judgement, before a body is read and before anything is looked up.

Every route names the role it needs (`routing.Route` takes it, OpenAPI shows it as `x-role`). Who asks is told by a
bearer token: one of the store's, that of `--token-file`, or one of an OIDC issuer. A server that is *open* (bound to
loopback, no token ever made in its store) takes the actor from headers; it answers only requests that name it by a
loopback name and come from no page but one of this machine, so that a web page somewhere cannot reach it through its
reader's browser.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.routing import Route as BareRoute

from treadle.access import tokens, trail
from treadle.access.tokens import AccessHome, TokenRow
from treadle.runtime.commands import OWN_NAMES, AuditEntry

from .problems import RequestRefused, status_of
from .rates import RateLimit, address_key

EVERYBODY: Final = "none"
VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
WORKER: Final = "worker"
ADMIN: Final = "admin"
# What both those who look and those who work need: payloads, definitions by digest.
BLOBS: Final = "viewer or worker"
# Task routes: the task itself says which roles may act on it; looking and steering are not among them.
TASK: Final = "task"
# The inbox, and who one is: for those who look, and for those who have a task's role.
INBOX: Final = "viewer or task"
ROLES: Final = frozenset({VIEWER, OPERATOR, WORKER, ADMIN})
_INCLUDES: Final[dict[str, frozenset[str]]] = {
    VIEWER: frozenset({VIEWER, OPERATOR, ADMIN}),
    OPERATOR: frozenset({OPERATOR, ADMIN}),
    WORKER: frozenset({WORKER, ADMIN}),
    ADMIN: frozenset({ADMIN}),
    BLOBS: frozenset({VIEWER, OPERATOR, WORKER, ADMIN}),
    TASK: frozenset({ADMIN}),
    INBOX: frozenset({VIEWER, OPERATOR, ADMIN}),
}
# What a store says of a token is believed this long: a revoked one is refused within a second.
_BELIEVED_S: Final = 0.5
_KNOWN_MAX: Final = 10_000
# That a token was used is written down this often.
_USED_EVERY_NS: Final = 300_000_000_000
_WRITING_MAX: Final = 100
_UNLIMITED: Final = frozenset({"/healthz", "/readyz"})
_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    user: str
    roles: tuple[str, ...]
    # The id of the token that proved it; empty where nothing had to be proved.
    token: str = ""
    # Only workflows whose names begin so are there for this actor.
    workflow: str | None = None
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """Where people prove in the browser who they are, and as which client the console asks them to."""

    issuer: str
    client: str
    audience: str
    scope: str = "openid"


class Issuer(Protocol):
    """Whoever else vouches for people: an OIDC issuer."""

    @property
    def login(self) -> Login | None:
        """How the console lets people log in there; None if it does not."""
        ...

    async def actor(self, token: str) -> Caller | None:
        """Who a token is about; None if it proves nothing."""
        ...


@dataclass(frozen=True, slots=True)
class AccessOptions:
    # Whether only this machine reaches the server.
    loopback: bool = True
    # The token of `--token-file`: an admin's, kept nowhere.
    token: str | None = None
    issuer: Issuer | None = None
    # Pages of these origins may ask (`--cors`).
    origins: Collection[str] = ()
    # Requests a second for each token, or address where nothing is proved; None: as many as they like.
    rate: float | None = None


class Access:
    """Judges requests."""

    def __init__(self, home: AccessHome, options: AccessOptions | None = None) -> None:
        self._home = home
        self._options = options or AccessOptions()
        self._known: OrderedDict[str, tuple[float, TokenRow | None]] = OrderedDict()
        self._used: OrderedDict[str, int] = OrderedDict()
        self._writing: set[asyncio.Task[object]] = set()
        self._noted = RateLimit(1)
        self._rates = None if self._options.rate is None else RateLimit(self._options.rate)
        # Once a token was made the store never becomes open again.
        self._made = False
        self._looked = -_BELIEVED_S
        self._file_hash = None if self._options.token is None else tokens.hash_of(self._options.token)

    async def closed(self, *, shown: bool = False) -> bool:
        """Whether a token is needed here. Where one was shown the store is asked in any case."""
        if self._is_known_closed:
            return True
        if shown or time.monotonic() - self._looked >= _BELIEVED_S:
            self._made = await self._home.read(tokens.any_made)
            self._looked = time.monotonic()
        return self._made

    @property
    def login(self) -> Login | None:
        issuer = self._options.issuer
        return None if issuer is None else issuer.login

    @property
    def _is_known_closed(self) -> bool:
        """As far as is known without asking the store."""
        options = self._options
        return self._made or not options.loopback or options.token is not None or options.issuer is not None

    async def name(self) -> str:
        return "tokens" if await self.closed() else "open"

    def believed(self) -> str:
        """Its name, as it was when the store last said."""
        return "tokens" if self._is_known_closed else "open"

    async def judge(self, request: Request, role: str) -> Caller:
        """The actor of a request that may be answered; else raises what is answered in its place."""
        try:
            return await self._judged(request, role)
        except RequestRefused as refusal:
            self._note_refusal(request, refusal)
            raise

    async def _judged(self, request: Request, role: str) -> Caller:
        is_probe = request.scope["path"] in _UNLIMITED
        limits = None if role == WORKER or is_probe else self._rates
        if is_probe:
            # Whether this process lives is not for the store to say.
            is_closed = self._is_known_closed
        else:
            is_closed = await self.closed(shown="authorization" in request.headers)
        if is_closed:
            if role == EVERYBODY:
                _count(limits, request)
                return Caller("", ())
            actor = await self._proved(request, limits)
        else:
            _count(limits, request)
            self._check_page(request)
            actor = _said(request)
        request.state.user = actor.user
        if not may(actor.roles, role):
            raise RequestRefused("FORBIDDEN", f"this needs the role {role}", cls="authorization")
        return actor

    def _check_page(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not is_loopback(_name_of(host)):
            raise RequestRefused(
                "HOST_REFUSED",
                f"this server is open and answers as localhost only, not as {host[:100]!r}",
                cls="authorization",
            )
        origin = request.headers.get("origin")
        if origin is None or origin in self._options.origins:
            return
        if not is_loopback(_name_of(origin.partition("://")[2])):
            # A browser names the page that asks. What a page may send unasked (a form, a body of no type,
            # nothing at all) needs no leave of ours, so it is the page that is refused.
            raise RequestRefused(
                "ORIGIN_REFUSED", f"pages of {origin[:100]!r} may not ask this server", cls="authorization"
            )

    # --- tokens ---

    async def _proved(self, request: Request, limits: RateLimit | None) -> Caller:
        given = request.headers.get("authorization", "")
        if given[: len(_BEARER)].lower() != _BEARER:
            _count(limits, request)
            raise _unknown("this server needs a token: Authorization: Bearer tdl_…")
        token = given[len(_BEARER) :].strip()
        if limits is not None and limits.spent(_address(request)) and not self._is_known(token):
            # Whoever guesses is not even looked up; who has a good token and the same address goes on.
            raise _too_often()
        found = await self._who(token)
        if found is None:
            _count(limits, request)
            raise _unknown("this token is wrong, has expired or was revoked")
        # By the id of what was proved, so that nobody can use up what is somebody else's.
        _count(limits, request, f"token {found.token} {found.user}")
        return _acting_as(found, request.headers.get("x-treadle-act-as"))

    def _is_known(self, token: str) -> bool:
        return self._known.get(tokens.id_of(token) or "", (0, None))[1] is not None

    async def _who(self, token: str) -> Caller | None:
        if self._file_hash is not None and tokens.proves(token, self._file_hash):
            return Caller("token-file", (ADMIN,), "file")
        id = tokens.id_of(token)
        if id is None:
            issuer = self._options.issuer
            # What looks like one of ours never leaves the house.
            return None if issuer is None or token.startswith("tdl_") else await issuer.actor(token)
        row = await self._row(id)
        now = self._home.clock.now_ns()
        if row is None or not tokens.proves(token, row.hash) or not row.good(now):
            return None
        self._note_use(row.id, now)
        return Caller(row.user, tuple(row.roles), row.id, row.workflow, row.expires_ns)

    async def _row(self, id: str) -> TokenRow | None:
        known = self._known.get(id)
        now = time.monotonic()
        if known is not None and now - known[0] < _BELIEVED_S:
            return known[1]
        row = await self._home.read(lambda reads: tokens.row_of(reads, id))
        self._known[id] = (now, row)
        self._known.move_to_end(id)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return row

    def _note_use(self, id: str, now: int) -> None:
        """Writes down that a token was used, aside: nobody waits for it, and it may be lost."""
        if now - self._used.get(id, 0) < _USED_EVERY_NS:
            return
        self._used[id] = now
        self._used.move_to_end(id)
        if len(self._used) > _KNOWN_MAX:
            self._used.popitem(last=False)
        self._write_aside(self._home.operate("token", {"op": "used", "id": id, "at_ns": now}))

    def _note_refusal(self, request: Request, refusal: RequestRefused) -> None:
        """Writes down who was turned away, one a second for each address: a flood fills no store."""
        if status_of(refusal) not in (401, 403) or not self._noted.take(_address(request)):
            return
        state = request.state
        entry = AuditEntry(
            getattr(state, "user", ""),
            "request.refuse",
            f"{request.method} {_route_of(request)}",
            server=request.app.state.member.name,
            request=state.request_id,
        )
        self._write_aside(trail.refused(self._home, entry, refusal.code))

    def _write_aside(self, work: Coroutine[Any, Any, Any]) -> None:
        if len(self._writing) >= _WRITING_MAX:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._writing.add(task)
        task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[object]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()


def _address(request: Request) -> str:
    return address_key(request.client.host if request.client is not None else "")


def _route_of(request: Request) -> str:
    """The route that was asked for, without what stands in its place: an id may be somebody's."""
    route = request.scope.get("route")
    return route.path.removeprefix("/api/v1") if isinstance(route, BareRoute) else "/"


def _acting_as(actor: Caller, user: str | None) -> Caller:
    """Somebody else than the token's user (`--user`): only an admin may say so."""
    if user is None or user == actor.user:
        return actor
    if ADMIN not in actor.roles or user.startswith(OWN_NAMES):
        raise RequestRefused(
            "FORBIDDEN",
            f"this token is {actor.user}'s; only an admin acts as {user[:100]!r}",
            cls="authorization",
        )
    return replace(actor, user=user)


def _said(request: Request) -> Caller:
    """On an open server everybody is believed."""
    user = request.headers.get("x-treadle-user")
    roles = request.headers.get("x-treadle-roles")
    if user is None and roles is None:
        return Caller("local", (ADMIN,))
    if user is not None and user.startswith(OWN_NAMES):
        raise RequestRefused(
            "FORBIDDEN", f"{user[:100]!r} is a name of the engine's own", cls="authorization"
        )
    # A header that names no role names none: only who says nothing about roles is everybody.
    said = ADMIN if roles is None else roles
    return Caller(user or "local", tuple(role.strip() for role in said.split(",") if role.strip()))


def _count(limits: RateLimit | None, request: Request, key: str | None = None) -> None:
    """By the key of what was proved, or by the address where nothing was."""
    if limits is not None and not limits.take(_address(request) if key is None else key):
        raise _too_often()


def _too_often() -> RequestRefused:
    return RequestRefused("RATE_LIMITED", "too many requests; wait a second")


def _unknown(message: str) -> RequestRefused:
    return RequestRefused("UNAUTHENTICATED", message, cls="authorization")


def may(roles: Sequence[str], needed: str) -> bool:
    """Whether one of the roles is enough. On which tasks a task's role may act is judged where they are known."""
    if needed == EVERYBODY or not _INCLUDES[needed].isdisjoint(roles):
        return True
    return needed in (TASK, INBOX) and not ROLES.issuperset(roles)


@functools.lru_cache(1_000)
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
