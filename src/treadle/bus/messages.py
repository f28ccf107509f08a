"""Work, receipts and progress as bytes. They come from other processes, so they are read strictly: what is unknown,
missing or of another type is refused, and named."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from treadle.kernel.brief import shaped
from treadle.kernel.errors import InputInvalid, TreadleError
from treadle.kernel.model import OpenIntent, Receipt, ReceiptStatus, event_value
from treadle.kernel.values import Value, decode, encode
from treadle.runtime.ports import Work

from .data import DEFAULT_POOL, Handed, Settling, Told

T = TypeVar("T")


class _Handed(msgspec.Struct, kw_only=True):
    """Unknown fields are passed over: a newer server may say more than this worker understands."""

    intent: str
    attempt: int
    run: str
    kind: str
    definition: str
    params: dict[str, Any]
    pool: str
    lease: str
    lease_s: float
    workflow: str
    dialect: str
    options: dict[str, Any] = {}
    ref: str = ""
    checkpoint: Any = None
    due_ns: int | None = None
    idempotency_key: str | None = None
    seq: int = 0
    at_ns: int = 0
    traceparent: str | None = None


class _Settling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    intent: str
    lease: str
    status: ReceiptStatus = "ok"
    value: Any = None
    error: dict[str, Any] | None = None
    attempts: int = 1
    events: list[dict[str, Any]] = []
    by: str | None = None


def convert(value: Value, shape: type[T], what: str) -> T:
    """A value from outside as a type of ours, or a refusal that says what is wrong with it."""
    try:
        return msgspec.convert(value, shape, builtin_types=(bytes,))
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise InputInvalid(f"{what}: {error}") from error


def _decoded(body: bytes, what: str) -> Value:
    try:
        return decode(body)
    except TreadleError as error:
        raise InputInvalid(f"{what}: {error.message}") from error


# --- work -------------------------------------------------------------------------------------------


def handed_value(handed: Handed) -> dict[str, Any]:
    work, intent = handed.work, handed.work.intent
    value: dict[str, Any] = {
        "intent": intent.id,
        "attempt": handed.attempt,
        "run": work.run,
        "kind": intent.kind,
        "definition": work.definition,
        "params": intent.params,
        "pool": intent.pool or DEFAULT_POOL,
        "lease": handed.lease,
        "lease_s": handed.lease_s,
        "workflow": work.workflow,
        "dialect": work.dialect,
        "options": dict(work.options),
        "ref": intent.ref,
        "seq": intent.seq,
        "at_ns": intent.at_ns,
    }
    if work.checkpoint is not None:
        value["checkpoint"] = work.checkpoint
    if intent.due_ns is not None:
        value["due_ns"] = intent.due_ns
    if intent.idempotency_key is not None:
        value["idempotency_key"] = intent.idempotency_key
    if work.traceparent is not None:
        value["traceparent"] = work.traceparent
    return value


def handed_from_value(value: Value) -> Handed:
    found = convert(value, _Handed, "work")
    intent = OpenIntent(
        id=found.intent,
        kind=found.kind,
        params=found.params,
        ref=found.ref,
        seq=found.seq,
        at_ns=found.at_ns,
        due_ns=found.due_ns,
        idempotency_key=found.idempotency_key,
        pool="" if found.pool == DEFAULT_POOL else found.pool,
    )
    work = Work(
        found.run,
        found.workflow,
        found.dialect,
        found.definition,
        found.options,
        intent,
        found.checkpoint,
        found.traceparent,
    )
    return Handed(work, found.attempt, found.lease, found.lease_s)


def handed_to_bytes(handed: Handed) -> bytes:
    return encode(handed_value(handed))


def handed_from_bytes(body: bytes) -> Handed:
    return handed_from_value(_decoded(body, "work"))


# --- receipts ---------------------------------------------------------------------------------------


def settling_value(settling: Settling) -> dict[str, Any]:
    value = event_value(settling.receipt)
    value.pop("signature", None)  # the owner signs for whom it knows by the lease
    return {**value, "lease": settling.lease}


def settling_from_value(value: Value) -> Settling:
    found = convert(value, _Settling, "a receipt")
    if found.error is not None if found.status == "ok" else found.error is None and found.status == "error":
        raise InputInvalid("a receipt: one that is ok has no error, one with the status error has one")
    receipt = Receipt(
        intent=found.intent,
        status=found.status,
        value=found.value,
        error=None if found.error is None else shaped(found.error),
        attempts=found.attempts,
        events=found.events,
        by=found.by,
    )
    return Settling(lease=found.lease, receipt=receipt)


def settling_to_bytes(settling: Settling) -> bytes:
    return encode(settling_value(settling))


def settling_from_bytes(body: bytes) -> Settling:
    return settling_from_value(_decoded(body, "a receipt"))


# --- progress ---------------------------------------------------------------------------------------


def told_value(told: Told) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(told, builtin_types=(bytes,))
    return value


def told_from_value(value: Value) -> Told:
    return convert(value, Told, "progress")


def told_to_bytes(told: Told) -> bytes:
    return encode(told_value(told))


def told_from_bytes(body: bytes) -> Told:
    return told_from_value(_decoded(body, "progress"))
