"""Tokens: who somebody is, in a text that is shown once.

`tdl_<id>_<secret>`: the id finds the row, the secret proves the right to it. The store keeps the secret's hash, so
who reads the store cannot act as anybody. A revoked token keeps its row: a store in which one was ever made does not
become open again.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from treadle.kernel.errors import InputInvalid, TreadleError, ValueRefused
from treadle.kernel.values import encode
from treadle.lang.duration import instant_text, parse_duration, parse_instant
from treadle.runtime.commands import OWN_NAMES
from treadle.runtime.ports import Clock

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk
    from treadle.store.protocol import Reads


T = TypeVar("T")

KIND: Final = "token"
# Written apart, now and then, so that a busy token is not a busy row.
USED: Final = "token_used"
LIFE_DEFAULT: Final = "90d"
NEVER: Final = "never"
_TOKEN: Final = re.compile(r"tdl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:/+-]{0,99}")


class AccessHome(Protocol):
    """What tokens need of an engine."""

    @property
    def clock(self) -> Clock: ...
    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any: ...
    def read(self, question: Callable[[Reads], T]) -> Awaitable[T]: ...


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    hash: str
    user: str
    roles: list[str]
    workflow: str | None = None
    made_ns: int
    expires_ns: int | None
    revoked_ns: int | None = None

    def good(self, now_ns: int) -> bool:
        return self.revoked_ns is None and (self.expires_ns is None or now_ns < self.expires_ns)

    def shown(self, now_ns: int, used_ns: int | None) -> dict[str, Any]:
        """As people see it: everything but what could prove a right."""
        status = "live" if self.good(now_ns) else "expired" if self.revoked_ns is None else "revoked"
        return {
            "id": self.id,
            "user": self.user,
            "roles": self.roles,
            "workflow": self.workflow,
            "status": status,
            "made_at": instant_text(self.made_ns),
            "expires_at": _instant(self.expires_ns),
            "revoked_at": _instant(self.revoked_ns),
            "used_at": _instant(used_ns),
        }


def _instant(at_ns: int | None) -> str | None:
    return None if at_ns is None else instant_text(at_ns)


def id_of(token: str) -> str | None:
    """The id in a token; None if this is no token of ours."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else found[1]


def hash_of(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def proves(token: str, hash: str) -> bool:
    return compare_digest(hash_of(token), hash)


def expiry_ns(text: str | None, now_ns: int) -> int | None:
    """When a token made now ends: after a duration, at an instant, never."""
    text = text or LIFE_DEFAULT
    if text == NEVER:
        return None
    try:
        until = now_ns + parse_duration(text)
    except TreadleError:
        try:
            until = parse_instant(text)
        except TreadleError:
            raise InputInvalid(
                f"{text!r} is no end of a token; write 30d, 2026-12-31T00:00:00Z or never", where="expires"
            ) from None
    if until <= now_ns:
        raise InputInvalid(f"a token that ends at {text} has ended already", where="expires")
    return until


def check_user(user: str) -> str:
    if not 1 <= len(user) <= 200 or not user.isprintable() or user != user.strip():
        raise InputInvalid("a user is a name of 1 to 200 printable characters", where="user")
    if user.startswith(OWN_NAMES):
        raise ValueRefused(f"{user!r} is a name of the engine's own", where="user")
    return user


async def create(
    home: AccessHome,
    user: str,
    roles: Sequence[str],
    *,
    workflow: str | None = None,
    expires: str | None = None,
) -> dict[str, Any]:
    """Makes a token. Its text is in the answer and nowhere else."""
    if not roles or (wrong := [role for role in roles if not _NAME.fullmatch(role)]):
        told = f"{wrong[0]!r} is no role" if roles else "a token needs a role"
        raise InputInvalid(f"{told}; give viewer, operator, worker, admin, or roles of tasks", where="roles")
    now = home.clock.now_ns()
    id = secrets.token_hex(8)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    token = f"tdl_{id}_{secret}"
    row = TokenRow(
        id=id,
        hash=hash_of(token),
        user=check_user(user),
        roles=list(dict.fromkeys(roles)),
        workflow=workflow or None,
        made_ns=now,
        expires_ns=expiry_ns(expires, now),
    )
    await home.operate("token", {"op": "create", "row": msgspec.to_builtins(row)})
    return {
        "id": id,
        "token": token,
        "user": row.user,
        "roles": row.roles,
        "workflow": row.workflow,
        "expires_at": _instant(row.expires_ns),
    }


async def revoke(home: AccessHome, id: str) -> dict[str, Any]:
    """Ends a token, at every server within a second. Again changes nothing."""
    await home.operate("token", {"op": "revoke", "id": id})
    row = await home.read(lambda reads: row_of(reads, id))
    assert row is not None, "a revoked token keeps its row"
    return row.shown(home.clock.now_ns(), None)


async def listed(home: AccessHome) -> list[dict[str, Any]]:
    """All tokens that were ever made, oldest first."""
    now = home.clock.now_ns()

    def ask(reads: Reads) -> list[dict[str, Any]]:
        used = dict(reads.documents(USED))
        rows = [msgspec.convert(body, TokenRow) for _, body in reads.documents(KIND)]
        return [row.shown(now, used.get(row.id)) for row in sorted(rows, key=lambda row: row.made_ns)]

    return await home.read(ask)


def row_of(reads: Reads, id: str) -> TokenRow | None:
    found = reads.document(KIND, id)
    return None if found is None else msgspec.convert(found, TokenRow)


def any_made(reads: Reads) -> bool:
    """Whether a token was ever made in this store."""
    return bool(reads.documents(KIND))


def perform(desk: Desk, body: dict[str, Any]) -> None:
    """The change itself, on the core thread. It is handed hashes only."""
    now = desk.clock.now_ns()
    match body["op"]:
        case "create":
            row = msgspec.convert(body["row"], TokenRow)
            if desk.store.document(KIND, row.id) is not None:
                raise InputInvalid(f"the token {row.id} is there already")
        case "revoke":
            found = row_of(desk.store, str(body["id"]))
            if found is None:
                raise InputInvalid(
                    f"there is no token {str(body['id'])!r}; list them with: treadle token list",
                    code="TOKEN_NOT_FOUND",
                )
            row = msgspec.structs.replace(found, revoked_ns=found.revoked_ns or now)
        case "used":
            at_ns = int(body["at_ns"])
            desk.batch.documents.append((USED, str(body["id"]), at_ns, encode(at_ns)))
            return
        case op:
            raise InputInvalid(f"{op!r} is no operation on tokens")
    desk.batch.documents.append((KIND, row.id, row.made_ns, encode(msgspec.to_builtins(row))))
