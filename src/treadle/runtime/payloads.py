"""Payloads moved out of what people send in, and put back where people look at a run.

What is too large for the journal goes to the blobs, and a reference stands in its place, marked as the dialect
says (`Traits.payload_hint`). For people only those are resolved that are marked as bookkeeping (`payload`; two dialects
wrote words of their own, which are in journals): others show references to their users on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.errors import BlobMissing, ValueRefused
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.machine import Machine
from treadle.kernel.model import (
    Event,
    OpenIntent,
    Patch,
    Receipt,
    Retry,
    Signal,
    Started,
    addressed,
    disarmed,
    is_reference,
    put_away,
)
from treadle.kernel.values import Value, decode_trusted, digest, digest_bytes, encode

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


# The operation that keeps a payload for what will refer to it.
KEEP: Final = "blob"
HIDDEN: Final = frozenset({"agent", "process", "payload"})
# What people are shown of one value, about.
SHOWN_BYTES_MAX: Final = 64 * 1024 * 1024
SHOWN_LEVELS_MAX: Final = 200
# How their fields look in canonical bytes: most records have none, and are not walked.
_MARKS: Final = tuple(encode({"schema_hint": hint})[2:] for hint in sorted(HIDDEN))


def perform_keep(desk: Desk, body: dict[str, Value]) -> None:
    """A collection leaves it for a while, though nobody refers to it yet."""
    digest, payload = str(body["digest"]), bytes(body["payload"])
    if digest_bytes(payload) != digest:
        raise ValueRefused(f"the payload {digest:.100} is another one")
    desk.batch.blobs[digest], desk.batch.blobs_waiting[digest] = payload, desk.clock.now_ns()


# The events in which somebody may hand something in: the others are left as they are by all that follows.
CARRIERS: Final = frozenset({Started, Receipt, Signal, Patch, Retry})


def disarming(event: Event, intent: OpenIntent | None) -> Event:
    """An event with everything that people sent in marked as data where it looks like a reference. What
    starts a run is marked before its payload is stored (`Engine.start`); what workers and children give
    holds references of ours, and was marked where it came from."""
    changed: dict[str, Value] = {}
    match event:
        case Signal():
            changed["data"] = disarmed(event.data)
        case Receipt() if intent is not None and intent.kind == "task":
            changed["value"] = disarmed(event.value)
        case Patch():
            changed["data"] = disarmed(event.data)
        case Retry():
            changed["how"] = disarmed(event.how)
        case _:
            return event
    return msgspec.structs.replace(event, **changed)


def lightened(event: Event, intent: OpenIntent | None, hint: str) -> tuple[Event, dict[str, bytes]]:
    """An event from outside without what is too large for the journal, and the payloads themselves.
    `intent` is what a receipt settles; what workers and children give is by reference already."""
    blobs: dict[str, bytes] = {}

    def light(value: Value) -> Value:
        body = encode(value)
        return value if len(body) <= PAYLOAD_INLINE_BYTES_MAX else put_away(body, blobs, schema_hint=hint)

    changed: dict[str, Value] = {}
    match event:
        case Signal():
            changed["data"] = light(event.data)
        case Receipt() if intent is not None and intent.kind == "task":
            changed["value"] = light(event.value)
        case Patch():
            changed["data"] = {key: light(value) for key, value in event.data.items()}
        case Retry():
            changed["how"] = {
                key: light(value) if key in ("input", "skip") else value for key, value in event.how.items()
            }
    return (msgspec.structs.replace(event, **changed) if blobs else event), blobs


def input_digest(machine: Machine, input: Value) -> str:
    """Names an input by its value, whether it stands in the journal itself or by reference."""
    if machine.traits.large_input and is_reference(input) and "path" not in input:
        return str(input["checksum"])
    return digest(input)


def handed_over(event: Event, intent: OpenIntent | None) -> list[str]:
    """The payloads that another run hands over with an event: by a child's report, or at a start."""
    match event:
        case Started():
            return _checksums(event.input, event.options)
        case Receipt() if intent is not None and intent.kind == "child":
            return _checksums(event.value, event.error)
    return []


def _checksums(*values: Value) -> list[str]:
    """The payloads that are referred to anywhere in these. Asked for every child, so one flat walk."""
    found: list[str] = []
    left = list(values)
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if is_reference(part):
                found.append(part["checksum"])
            else:
                left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
    return found


def started_with(reads: Reads, run: int) -> Value:
    """The input of a run."""
    first = reads.record(run, 1)
    return None if first is None else input_of(reads, first.record()["event"])


def input_of(reads: Reads, started: Mapping[str, Value]) -> Value:
    """The input of a run that began with this event. A fork begins with a copied state: it has the input of its
    original, as long as that is kept."""
    while origin := started.get("forked_from"):
        row = reads.run(str(origin["run"]))
        first = None if row is None else reads.record(row.no, 1)
        if first is None:
            return None
        started = first.record()["event"]
    return started.get("input")


# Whether a hidden reference may stand in canonical bytes.
may_refer: Final[Callable[[bytes], object]] = re.compile(b"|".join(map(re.escape, _MARKS))).search


def is_hidden(value: Value) -> bool:
    return is_reference(value) and value.get("schema_hint") in HIDDEN


def refers(value: Value) -> bool:
    """Whether a hidden reference stands anywhere in a value."""
    if isinstance(value, dict):
        return is_hidden(value) or any(map(refers, value.values()))
    return isinstance(value, list) and any(map(refers, value))


def whole(reads: Reads, value: Value) -> Value:
    """The value with every hidden reference replaced by what is stored behind it."""
    if not refers(value):
        return value
    return put_back(lambda checksum: decode_trusted(reads.blob(checksum)), value)


def put_back(blobs: Callable[[str], Value], value: Value) -> Value:
    """The same, by whatever knows the payloads. A payload may refer to others many times, so that it would
    fill the memory written out: what is beyond any reading stays a reference. Each is put together once, and
    counted each time."""
    room = SHOWN_BYTES_MAX
    made: dict[bytes, tuple[Value, int]] = {}

    def back(item: Value, levels: int) -> Value:
        nonlocal room
        if not is_hidden(item) or room <= 0 or levels <= 0:
            return within(item, levels)
        known = made.get(name := encode(item))
        if known is not None:
            room -= known[1]
            return known[0]
        before = room
        try:
            found = addressed(item, blobs(item["checksum"]))
        except BlobMissing:
            return item  # gone, or never ours: the run is shown all the same
        room -= len(encode(found))
        value = within(found, levels) if refers(found) else found
        made[name] = value, before - room
        return value

    def within(item: Value, levels: int) -> Value:
        if isinstance(item, dict):
            return {key: back(part, levels - 1) for key, part in item.items()}
        return [back(part, levels - 1) for part in item] if isinstance(item, list) else item

    return back(value, SHOWN_LEVELS_MAX)
