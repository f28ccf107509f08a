"""Messages that wait in the inbox table: from other processes, and from runs whose message did not
fit into the batch that sent it. Keyed, so that a message sent twice is one message.

What another process sends is an event for a run (`Deliver`) or an operation (`Operate`). Its answer is a
row under the same key, written by the commit that decides it; nobody concludes anything from a row that
is not there. Bytes from outside are taken strictly: what they may not say is refused, not passed over.
"""

from __future__ import annotations

from typing import Final

import msgspec

from treadle.kernel.errors import InputInvalid, TreadleError, ValueRefused
from treadle.kernel.limits import VALUE_DEPTH_MAX
from treadle.kernel.model import (
    EVENT_TYPES,
    Cancel,
    Domain,
    Event,
    Patch,
    Receipt,
    Reset,
    Retry,
    Signal,
    Started,
    event_from_value,
    event_value,
)
from treadle.kernel.run import error_of
from treadle.kernel.values import Value, decode, digest_bytes, encode, to_value
from treadle.store.protocol import GUEST

from .audit import AuditEntry
from .commands import Deliver, Operate
from .ports import NewRun

# Values keep to their levels where they are handed in; a message stands around one.
_LEVELS_MAX: Final = VALUE_DEPTH_MAX + 16
# How names begin that only the engine itself acts under.
OWN_NAMES: Final = "treadle:"
# What another process may tell a run; the rest is between a run and its own engine.
_FROM_OUTSIDE: Final = (Started, Receipt, Signal, Domain, Cancel, Patch, Retry, Reset)


class _Delivery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    event: dict[str, Value]
    create: tuple[str, str, str | None, str, Value] | None = None
    expected_version: int | None = None
    submission: tuple[str, str] | None = None
    reply: tuple[str, str] | None = None
    blobs: dict[str, bytes] = {}
    entry: AuditEntry | None = None


class _Operation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    body: dict[str, Value]
    home: str = ""
    entry: AuditEntry | None = None


# --- messages ---------------------------------------------------------------------------------------


def message_to_bytes(command: Deliver | Operate) -> bytes:
    if isinstance(command, Operate):
        operation: dict[str, Value] = {"home": command.home, "name": command.name, "body": command.body}
        return encode({"operate": operation | _signed(command.entry)})
    item = command
    assert item.event is not None, "only events travel"
    value: dict[str, Value] = {"run": item.run, "event": {"kind": item.event.kind, **event_value(item.event)}}
    if item.create is not None:
        new = item.create
        value["create"] = [new.dialect, new.workflow, new.version, new.definition, new.key]
    if item.expected_version is not None:
        value["expected_version"] = item.expected_version
    if item.submission is not None:
        value["submission"] = list(item.submission)
    if item.reply is not None:
        value["reply"] = list(item.reply)
    if item.blobs:
        value["blobs"] = item.blobs
    return encode(value | _signed(item.entry))


def _signed(entry: AuditEntry | None) -> dict[str, Value]:
    """Who asks, where somebody does: other messages stay as they were."""
    return {} if entry is None else {"entry": msgspec.to_builtins(entry)}


def message_from_bytes(body: bytes, key: str) -> Deliver | Operate:
    """Raises a TreadleError for anything that is no message."""
    try:
        value = decode(body, levels=_LEVELS_MAX)
        if not isinstance(value, dict):
            raise InputInvalid("a message is a mapping")
        if "operate" in value or "op" in value:  # `op`, beside a run without a name, is how 0.1.0 wrote it
            asked = value.pop("operate" if "operate" in value else "op")
            if value not in ({}, {"run": ""}):
                raise InputInvalid("an operation says nothing beside it")
            operation = msgspec.convert(asked, _Operation)
            check_entry(operation.entry)
            return Operate(operation.home, operation.name, operation.body, inbox=key, entry=operation.entry)
        delivery = msgspec.convert(value, _Delivery, builtin_types=(bytes,))
        item = _item(delivery, key)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputInvalid(f"the message {key} cannot be read: {error}") from error
    if key.startswith(GUEST):
        _check_foreign(item)
    return item


def _item(delivery: _Delivery, key: str) -> Deliver:
    fields = dict(delivery.event)
    kind = fields.pop("kind")
    made = EVENT_TYPES[kind]
    if unknown := fields.keys() - set(made.__struct_fields__):
        raise ValueError(f"{kind} has no {sorted(unknown)[0]!r}")
    # Looked at by the rules of its type, but made as it is: nested values must stay what they are.
    msgspec.convert(fields, made, builtin_types=(bytes,))
    for digest, payload in delivery.blobs.items():
        if digest_bytes(payload) != digest:
            raise ValueError(f"the payload {digest} is another one")
    return Deliver(
        delivery.run,
        event_from_value(kind, fields),
        create=NewRun(*delivery.create) if delivery.create is not None else None,
        expected_version=delivery.expected_version,
        submission=delivery.submission,
        reply=delivery.reply,
        inbox=key,
        blobs=delivery.blobs,
        entry=delivery.entry,
    )


def _check_foreign(item: Deliver) -> None:
    """Nothing in a message from another process may pass for the engine's own."""
    if not isinstance(item.event, _FROM_OUTSIDE) or item.reply is not None:
        raise InputInvalid(f"{item.inbox}: this is said only between a run and its engine")
    if isinstance(item.event, Started | Retry) and item.event.place:
        raise InputInvalid(f"{item.inbox}: a place is given by the engine, and not asked for")
    check_name(item.event)
    check_entry(item.entry)


def check_entry(entry: AuditEntry | None) -> None:
    if entry is not None and entry.user.startswith(OWN_NAMES):
        raise ValueRefused(f"an actor whose name begins with {OWN_NAMES}, as only Treadle's own names do")


def check_name(event: Event) -> None:
    """Refuses an event from outside under a name that is the engine's own."""
    if str(getattr(event, "by", None)).startswith(OWN_NAMES):
        raise ValueRefused(f"{event.kind}: `by` begins with {OWN_NAMES}, as only Treadle's own names do")


# --- answers ----------------------------------------------------------------------------------------


def reply_to_bytes(value: Value, error: TreadleError | None) -> bytes:
    if error is None:
        try:
            return encode({"value": value})
        except ValueRefused:
            return encode({"value": to_value(value)})  # tuples and such
    return encode({"error": error_of(error), "kind": type(error).__name__})


def reply_from_bytes(body: bytes) -> tuple[Value, TreadleError | None]:
    found: dict[str, Value] = decode(body, levels=_LEVELS_MAX)
    if "error" in found:
        return None, TreadleError.restored(found["error"], found["kind"])
    return found["value"], None
