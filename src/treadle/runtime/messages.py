"""Messages that wait in the inbox table: from other processes, and from runs whose message did not
fit into the batch that sent it. Keyed, so that a message sent twice is one message."""

from __future__ import annotations

from typing import Any, Final

from treadle.kernel.errors import TreadleError, ValueRefused
from treadle.kernel.limits import RUN_ID_CHARS_MAX
from treadle.kernel.model import event_from_value, event_value
from treadle.kernel.values import decode_trusted, encode

from .ports import Item, NewRun

# How the keys of messages begin that another process left: somebody there waits for the answer.
GUEST: Final = "guest:"


def unusable(item: Item) -> TreadleError | None:
    """Why a message cannot even be looked at: names that no store can hold. Asked of every event, so
    the likely case comes first."""
    if type(item.run) is not str:
        return ValueRefused(f"a run's id is text, not {type(item.run).__name__}")
    if item.expected_version is not None and type(item.expected_version) is not int:
        return ValueRefused("the expected version is a whole number")
    if len(item.run) <= RUN_ID_CHARS_MAX and item.run.isascii() and item.submission is None:
        return None if item.run or item.event is None else ValueRefused("a run's id is empty")
    if len(item.run) > RUN_ID_CHARS_MAX:
        return ValueRefused(f"a run's id of {len(item.run)} characters; at most {RUN_ID_CHARS_MAX} are kept")
    names = [item.run, *(item.submission or ())]
    if not all(isinstance(name, str) for name in names):
        return ValueRefused("the key of a submission is text")
    try:
        encode(names)
    except ValueRefused as error:
        return error
    return None


def item_to_bytes(item: Item) -> bytes:
    value: dict[str, Any] = {"run": item.run}
    if item.event is not None:
        value["event"] = {"kind": item.event.kind, **event_value(item.event)}
    if item.create is not None:
        new = item.create
        value["create"] = [new.dialect, new.workflow, new.version, new.definition, new.key]
    if item.expected_version is not None:
        value["expected_version"] = item.expected_version
    if item.submission is not None:
        value["submission"] = list(item.submission)
    if item.reply is not None:
        value["reply"] = list(item.reply)
    if "op" in item.notes:
        value["op"] = item.notes["op"]
    return encode(value)


def item_from_bytes(body: bytes, key: str) -> Item:
    value: dict[str, Any] = decode_trusted(body)
    event = None
    if "event" in value:
        fields = dict(value["event"])
        event = event_from_value(fields.pop("kind"), fields)
    submission, reply = value.get("submission"), value.get("reply")
    return Item(
        value["run"],
        event,
        create=NewRun(*value["create"]) if "create" in value else None,
        expected_version=value.get("expected_version"),
        submission=(submission[0], submission[1]) if submission else None,
        reply=(reply[0], reply[1]) if reply else None,
        inbox=key,
        notes={"op": value["op"]} if "op" in value else {},
    )
