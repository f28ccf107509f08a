"""What people are shown of a record: the events of its work and of its decision.

A machine tells in its decisions what happened, in its own words. Where it does not (`Traits.narrated`), what
came to a run and what it asked for is told here, from the record: the journal holds nothing twice, and what was
recorded before can be told as well.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.model import DETACHED_KINDS
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text

# Fields of every event; no field of its own can replace them.
OWN_FIELDS: Final = ("seq", "at", "record", "type")


def events_of(record: dict[str, Value], *, narrated: bool) -> list[dict[str, Value]]:
    """A record's events in order: what happened inside the work first, then what was decided."""
    event = record["event"]
    inner = event.get("events", []) if record["kind"] == "receipt" else []
    decided = record.get("events", [])
    if not narrated:
        return [*inner, *decided]
    asked = _asked(record) if "opened" in record or "cancelled" in record else ()
    return [*inner, *_came(record, event), *decided, *asked]


def frame_event(type: str, data: Value) -> dict[str, Value]:
    """A frame as an event: its fields beside the type. What is no mapping, or has fields that an event has
    of its own, is shown whole."""
    fields = {} if data is None else data
    if not isinstance(fields, dict) or any(name in fields for name in OWN_FIELDS):
        fields = {"value": fields}
    return {"type": type, **fields}


def _came(record: dict[str, Value], event: dict[str, Value]) -> list[dict[str, Value]]:
    """What the record admits, and the status that it left the cell in."""
    status = {"status": record["status"]}
    kind = record["kind"]
    if kind == "fault":
        return [
            *_came({**record, "kind": event["kind"]}, event),
            {"type": "failed", "error": record["error"]},
        ]
    match kind:
        case "started" if event.get("input") is None:
            return []
        case "started" | "event":
            given = event["input"] if kind == "started" else event
            about = {name: given[name] for name in ("schema", "value", "source") if name in given}
            return [{"type": "received", **about, **status}]
        case "receipt" | "rejected":
            about = {"intent": event["intent"], "receipt": event.get("status", "ok")}
            if event.get("error") is not None:
                about["error"] = event["error"]
            return [{"type": kind, **about, **status}]
        case "frame":
            return [frame_event(event["type"], event.get("value"))]
        case "cancel" | "reset" | "retry":
            return [{"type": kind, **status}]
        case "apply":
            return [{"type": kind, "definition": event["definition"]}]
        case _:
            return []


def _asked(record: dict[str, Value]) -> list[dict[str, Value]]:
    """The effects that the record opened and cancelled; messages to other cells are events already."""
    found: list[dict[str, Value]] = []
    for intent in record.get("opened", ()):
        if intent["kind"] not in DETACHED_KINDS:
            told = {"effect": intent["kind"], "intent": intent["id"], "ref": intent.get("ref")}
            if "due_ns" in intent:
                told["due"] = instant_text(intent["due_ns"])
            found.append({"type": "effect", **told})
    return found + [{"type": "effect.cancelled", "intent": id} for id in record.get("cancelled", ())]


def numbered(events: list[dict[str, Value]], first_no: int, seq: int, at_ns: int) -> list[dict[str, Value]]:
    """Events as people see them: their own number, the time, the record they stand in."""
    at = instant_text(at_ns)
    return [shown(event, first_no + i, at, seq) for i, event in enumerate(events)]


def shown(event: dict[str, Value], number: int, at: str, record: int | None) -> dict[str, Value]:
    """One event under its number, which no field of its own can replace."""
    own = {"seq": number, "at": at, "record": record}
    return {**own, **event, **own}
