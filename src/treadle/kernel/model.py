"""The words of the kernel as data: events, intents, receipts, decisions, and the ids of them.

Events are what a run is told; they are journaled verbatim, so each has one canonical form
(`event_value`, `event_from_value`). Intents are what a run asks for. Nothing here acts.

Ids are derived, never drawn: equal replays give equal ids, on whatever machine they happen. A run's id tells its root, so a
child lives where its root lives (`shard_of`): messages between them stay there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from .errors import BlobMissing
from .values import Value, decode_trusted, digest_bytes, encode

Status = Literal["running", "waiting", "stalled", "completed", "failed", "cancelled", "partial"]
# What people call a run that waits for its place in line.
QUEUED: Final = "queued"
# Every status that a run is shown with.
STATUSES: Final = ("running", "waiting", QUEUED, "stalled", "completed", "failed", "cancelled", "partial")
TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled", "partial"})

ReceiptStatus = Literal["ok", "error", "timeout", "cancelled"]
# Of a run whose workflow is limited: whether it has its place in line, or waits for it.
Placed = Literal["", "held", "queued"]

# Kinds that the engine settles itself; every other kind is performed by a worker.
# A place in line, for what must not begin yet. No author's effect can have this name.
PLACE: Final = ":place"
ENGINE_KINDS: frozenset[str] = frozenset({"timer", "task", "signal", "child", "start", "deliver", PLACE})
# Kinds that are done when they are committed: they are never open and get no receipt.
DETACHED_KINDS: frozenset[str] = frozenset({"deliver"})

_CHILD_CHARS: Final = 12
_SUFFIX: Final = re.compile(rf"\.[0-9a-f]{{{_CHILD_CHARS}}}")


class Started(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A run begins. `options` are settings of this run (paths and names, never secret values)."""

    kind: ClassVar[str] = "started"
    definition: str = ""
    input: Value = None
    seed: bytes = b""
    machine: int = 1
    reference: str | None = None
    parent: str | None = None
    parent_intent: str | None = None
    depth: int = 0
    options: dict[str, Any] = {}
    forked_from: dict[str, Any] | None = None
    continued_from: str | None = None
    # How urgent it is among those who wait; None leaves that to the limits of its workflow.
    priority: int | None = None
    # A run that is `queued` begins with the receipt for its place, not with this event.
    place: Placed = ""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How one intent settled. The machine finds the intent itself at `ctx.intent`."""

    kind: ClassVar[str] = "receipt"
    intent: str
    status: ReceiptStatus = "ok"
    value: Value = None
    error: dict[str, Any] | None = None
    attempts: int = 1
    by: str | None = None
    events: list[dict[str, Any]] = []
    # Who performed it vouches for it, where the dialect asks for that (`Traits.signed`).
    signature: bytes = b""


class Rejected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A receipt came whose payload does not validate; the intent is settled by it."""

    kind: ClassVar[str] = "rejected"
    intent: str
    status: ReceiptStatus = "ok"
    payload: Value = None
    error: dict[str, Any] | None = None


class Signal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    kind: ClassVar[str] = "signal"
    name: str
    data: Value = None
    key: str | None = None
    by: str | None = None


class Domain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A domain event, routed to this run (reactive workflows)."""

    kind: ClassVar[str] = "event"
    schema: str
    value: Value = None
    submission: str | None = None
    source: str | None = None


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    kind: ClassVar[str] = "frame"
    intent: str
    seq: int
    type: str = "progress"
    value: Value = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    kind: ClassVar[str] = "cancel"
    reason: str = ""
    by: str | None = None


class Patch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    kind: ClassVar[str] = "patch"
    data: dict[str, Any]
    by: str | None = None


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A person moves a stalled or failed run on. `how` holds the dialect's own choice:
    {"from": step} | {"input": value} | {"skip": value} | {"fail": text}. With a `definition` it goes on under that
    one from this record on, in place of the one that it `was`."""

    kind: ClassVar[str] = "retry"
    how: dict[str, Any] = {}
    by: str | None = None
    definition: str | None = None
    was: str | None = None
    place: Placed = ""


class Apply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run moves to another definition (a cell at an apply). `was` is the one it comes from."""

    kind: ClassVar[str] = "apply"
    definition: str
    was: str | None = None


class Reset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    kind: ClassVar[str] = "reset"
    by: str | None = None


class Continue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The next slice of a decision that was larger than one step may be."""

    kind: ClassVar[str] = "continue"
    more: Value = None


Event: TypeAlias = (
    Started | Receipt | Rejected | Signal | Domain | Frame | Cancel | Patch | Retry | Apply | Reset | Continue
)
EVENT_TYPES: dict[str, type[Event]] = {
    t.kind: t
    for t in (Started, Receipt, Rejected, Signal, Domain, Frame, Cancel, Patch, Retry, Apply, Reset, Continue)
}

# Events that came from outside and can still be refused; the others report what has happened.
REFUSABLE: tuple[type, ...] = (Started, Signal, Domain, Patch, Retry, Cancel, Apply, Reset)


# The canonical form of an event. Made with every step, so without a call of Python's.
event_value: Final[Callable[[Event], dict[str, Any]]] = partial(msgspec.to_builtins, builtin_types=(bytes,))


def event_from_value(kind: str, value: dict[str, Any]) -> Event:
    # Constructed, not converted: the bytes are our own, and nested values must stay as they are.
    return EVENT_TYPES[kind](**value)


class Intent(msgspec.Struct, kw_only=True, gc=False):
    """A request for outside work, as a machine writes it.

    `ref` is the machine's own label, echoed with the receipt and used to cancel. `due_ns` is when
    a timer fires; for every other kind it is the deadline at which the engine settles the intent
    with status `timeout`. `params["name"]` is what people see in `waiting_for`. `pool` names the workers
    that may do it; empty for those that take whatever nobody asked for by name.
    """

    kind: str
    params: dict[str, Any]
    ref: str = ""
    due_ns: int | None = None
    idempotency_key: str | None = None
    pool: str = ""


class OpenIntent(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """An admitted intent: durable, identified, not settled yet."""

    id: str
    kind: str
    params: dict[str, Any]
    ref: str = ""
    seq: int = 0
    at_ns: int = 0
    due_ns: int | None = None
    idempotency_key: str | None = None
    # The number of the last frame that the run was told.
    frame: int = 0
    pool: str = ""

    @property
    def name(self) -> str:
        return str(self.params.get("name") or self.ref)

    def to_value(self) -> dict[str, Any]:
        value: dict[str, Any] = {"id": self.id, "kind": self.kind, "params": self.params}
        if self.ref:
            value["ref"] = self.ref
        if self.due_ns is not None:
            value["due_ns"] = self.due_ns
        if self.idempotency_key is not None:
            value["idempotency_key"] = self.idempotency_key
        if self.pool:
            value["pool"] = self.pool
        return value


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


class Decision(msgspec.Struct, kw_only=True, gc=False):
    """What a machine wants to be so. All of it is validated before any of it is applied.

    `status=None` leaves running/waiting to the kernel: running while a worker holds something.
    `cancel` names open intents by `ref`. `more` asks for a `Continue(more)` right after this record.
    `log` is journaled beside the decision (a proof of the state, or the output of code that cannot be
    run again); replay hands it back as `ctx.logged`. `blobs` need not be filled by hand: whatever the step
    stored through its context is among them.
    """

    state: Value
    events: list[dict[str, Any]] = []
    intents: list[Intent] = []
    cancel: list[str] = []
    status: Status | None = None
    result: Value = None
    error: dict[str, Any] | None = None
    reference: Any = UNSET
    more: Value = None
    log: Value = None
    # Payloads that the decision refers to, by digest; they are committed with it (`Context.store`).
    blobs: dict[str, bytes] = {}


class Context(msgspec.Struct):
    """Everything a step may know that is neither state nor event. Replay gives the same."""

    now_ns: int
    run: str
    seq: int
    definition: str
    key: Value
    seed: bytes
    machine: int
    options: Mapping[str, Any]
    open: Mapping[str, OpenIntent]
    intent: OpenIntent | None = None
    reference: str | None = None
    started_ns: int = 0
    blobs: Callable[[str], Value] | None = None
    # What the run was before this event.
    status: str = "running"
    # On replay only: the `log` of the record, or {"fault": error} where the step had failed.
    logged: Value = None
    # What this step has stored, by digest.
    stored: dict[str, bytes] = {}
    # Only where a journal is read, not decided again: the record at hand. A machine whose code may be missing
    # takes its decision from there.
    recorded: Mapping[str, Any] | None = None

    @property
    def entropy(self) -> bytes:
        """64 bytes that are the same on every replay of this step and on no other step."""
        return hashlib.sha512(self.seed + self.seq.to_bytes(8, "big")).digest()

    def blob(self, reference: Mapping[str, Any]) -> Value:
        """The payload behind a reference. It is addressed by its content, so this is as pure as any
        other argument: there is one answer, or none."""
        checksum = str(reference["checksum"])
        if (body := self.stored.get(checksum)) is not None:
            return decode_trusted(body)
        if self.blobs is None:
            raise BlobMissing()
        return self.blobs(checksum)

    def store(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        """Puts a payload away and gives its reference. It is named by its content, so storing is as pure
        as computing: the bytes are committed with the decision, and replay makes the same ones again."""
        return put_away(encode(value), self.stored, schema_hint=schema_hint)


# A mapping with this key is data, whatever else it looks like.
INERT: Final = "$inert"
# How what looks like a reference, or like a manifest of references, looks in canonical bytes.
_CHECKSUM: Final = b"sha256:"
_COLON: Final = 0x3A  # one byte is found ten times as fast, and is in few values
_MANIFEST: Final = b"hmanifest"


def is_reference(value: Value) -> bool:
    """Whether a value is a reference of ours, standing in for a payload in the blob store. A user's
    storage tool returns references of the same form to its own store: these are plain values. What came
    from outside and looks like one of ours was marked as data when it came in (`disarmed`)."""
    return (
        isinstance(value, dict)
        and "store" in value  # hardly any has, and this one asks without a call
        and value["store"] == "blob"
        and INERT not in value
        and isinstance(checksum := value.get("checksum"), str)
        and checksum == value.get("key")
        and checksum.startswith("sha256:")
    )


def is_manifest(value: Value) -> bool:
    """Whether a value stands in for a list whose parts are stored one by one."""
    return (
        isinstance(value, dict)
        and value.get("kind") == "manifest"
        and value.get("strategy") == "concat"
        and isinstance(value.get("parts"), list)
        and INERT not in value
    )


def disarmed(value: Value, *, ours: Container[str] = ()) -> Value:
    """A value from outside, in which nothing will be taken for a reference: whatever looks like one gets
    a mark that it is data. `ours` are checksums that whoever gave the value was given by the engine."""
    return _disarmed(value, ours) if may_look_like_ours(encode(value)) else value


def may_look_like_ours(body: bytes) -> bool:
    """Whether something in these canonical bytes may be taken for a reference."""
    return (_COLON in body and _CHECKSUM in body) or body.find(_MANIFEST) >= 0


def _disarmed(value: Value, ours: Container[str]) -> Value:
    if isinstance(value, list):
        return [_disarmed(item, ours) for item in value]
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        if value["checksum"] in ours:
            return value
    elif not is_manifest(value):
        return {key: _disarmed(item, ours) for key, item in value.items()}
    return {**{key: _disarmed(item, ours) for key, item in value.items()}, INERT: True}


def addressed(reference: Mapping[str, Any], payload: Value) -> Value:
    """What a reference stands for in its payload: a part of it, where it has a `path`."""
    for key in reference.get("path") or ():
        try:
            payload = payload[key]
        except (LookupError, TypeError) as error:
            raise BlobMissing(f"there is no {key!r} in the payload {reference['checksum']}") from error
    return payload


def put_away(body: bytes, blobs: dict[str, bytes], *, schema_hint: str | None = None) -> dict[str, Any]:
    """Puts a payload among others, under the name of its content, and gives the reference that stands in for it."""
    checksum = digest_bytes(body)
    blobs[checksum] = body
    return make_reference(checksum=checksum, size=len(body), schema_hint=schema_hint)


def make_reference(*, checksum: str, size: int, schema_hint: str | None = None) -> dict[str, Any]:
    return {"store": "blob", "key": checksum, "checksum": checksum, "size": size, "schema_hint": schema_hint}


# --- ids ---


def intent_id(identity: bytes, intent: Intent, seq: int, index: int) -> str:
    """The id an intent gets: `identity` is `encode([run, definition, key])`, `index` its position in
    the decision. A machine may compute it to name its own waiting token in an event."""
    named = encode([intent.kind, intent.params, intent.idempotency_key, seq, index])
    return hashlib.sha256(identity + named).hexdigest()[:32]


def child_id(parent: str, intent: str) -> str:
    """The id of the run that an intent starts."""
    return f"{parent}.{intent[:_CHILD_CHARS]}"


def root_of(run: str) -> str:
    """The run at the head of a family. A name of somebody's own that ends as a child's does is taken for
    one, which only says where it lives."""
    end = len(run)
    while (start := end - _CHILD_CHARS - 1) > 0 and _SUFFIX.fullmatch(run, start, end):
        end = start
    return run[:end]


@lru_cache(maxsize=16_384)
def shard_of(run: str, count: int) -> int:
    """On which of a store's shards a run lives. Remembered: every step of a run asks."""
    if count == 1:
        return 0
    return int.from_bytes(hashlib.sha256(root_of(run).encode()).digest()[:8], "big") % count
