"""Webhooks in: what a signed request from outside starts, signals or publishes.

A signature covers the moment and the bytes, so a request cannot be changed, nor used later than its window. Used twice
it is one request: what it does is named after its signature, and the engine does nothing of one name twice.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import encode

from .tokens import AccessHome

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk
    from treadle.store.protocol import Reads


KIND: Final = "hook"
WINDOW_S: Final = 300
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SIGNATURE: Final = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")
_TEMPLATE: Final = re.compile(r"\{\{\s*([a-z]+(?:\.[A-Za-z0-9_-]+)*)\s*\}\}")


class HookSignal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    name: str


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a hook does: one of `workflow`, `signal` and `event`."""

    secret: str
    workflow: str | None = None
    signal: HookSignal | None = None
    event: str | None = None
    id: str | None = None
    reference: str | None = None


def checked(name: str, body: Mapping[str, Any]) -> Hook:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputInvalid("a hook is named by letters, digits and _ . -", where="name")
    try:
        hook = msgspec.convert(dict(body), Hook)
    except msgspec.ValidationError as error:
        raise InputInvalid(f"this is no hook: {error}") from error
    if sum(part is not None for part in (hook.workflow, hook.signal, hook.event)) != 1:
        raise InputInvalid("a hook has one of workflow, signal and event", where="workflow")
    if hook.workflow is None and (hook.id is not None or hook.reference is not None):
        raise InputInvalid("id and reference are of a run that a hook starts", where="id")
    return hook


async def put(home: AccessHome, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    hook = checked(name, body)
    await home.operate("hook", {"op": "set", "name": name, "hook": msgspec.to_builtins(hook)})
    return shown(name, hook)


async def remove(home: AccessHome, name: str) -> None:
    await home.operate("hook", {"op": "remove", "name": name})


async def listed(home: AccessHome) -> list[dict[str, Any]]:
    def ask(reads: Reads) -> list[dict[str, Any]]:
        return [shown(name, msgspec.convert(body, Hook)) for name, body in reads.documents(KIND)]

    return await home.read(ask)


def shown(name: str, hook: Hook) -> dict[str, Any]:
    return {"name": name, **msgspec.to_builtins(hook)}


def row_of(reads: Reads, name: str) -> Hook:
    found = reads.document(KIND, name)
    if found is None:
        raise InputInvalid(f"there is no hook {name!r}", code="HOOK_NOT_FOUND")
    return msgspec.convert(found, Hook)


def perform(desk: Desk, body: dict[str, Any]) -> None:
    name = str(body["name"])
    if body["op"] == "set":
        row = encode(msgspec.to_builtins(checked(name, body["hook"])))
        desk.batch.documents.append((KIND, name, desk.clock.now_ns(), row))
        return
    row_of(desk.store, name)
    desk.batch.documents.append((KIND, name, 0, None))


# --- requests ---


def signature(secret: str, at_s: int, body: bytes) -> str:
    """The header of a request: `X-Treadle-Signature`."""
    mac = hmac.digest(secret.encode(), f"{at_s}.".encode() + body, "sha256").hex()
    return f"t={at_s},v1={mac}"


def proven(secret: str, header: str, body: bytes, now_ns: int) -> str | None:
    """The name of a request that is what it says and comes in time; None for any other."""
    found = _SIGNATURE.fullmatch(header)
    if found is None or not hmac.compare_digest(signature(secret, int(found[1]), body), header):
        return None
    if abs(now_ns // 1_000_000_000 - int(found[1])) > WINDOW_S:
        return None
    return sha256(header.encode()).hexdigest()[:32]


def filled(text: str, about: Mapping[str, Any]) -> str:
    """A text with what its templates name: `{{ body.order.id }}`, `{{ headers.x-event }}`, `{{ query.run }}`."""

    def value(match: re.Match[str]) -> str:
        found: Any = about
        for part in match[1].split("."):
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                found = found.get(part) if isinstance(found, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            raise InputInvalid(f"the request has no {match[1]}", where=match[1])
        return str(found)

    return _TEMPLATE.sub(value, text)
