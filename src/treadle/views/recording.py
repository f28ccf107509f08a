"""A run as a test script: what the outside answered, in a form that can answer again.

For an agent it is the script of the scripted model (`recording_agent.py`). For every other dialect it lists the
answers in order, with the input and the result they led to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.kernel.model import is_reference
from treadle.kernel.values import Value

Journal = Iterable[Mapping[str, Any]]
Blob = Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class Answer:
    """A settled intent and its receipt, with the records that opened and settled it."""

    intent: Mapping[str, Any]
    receipt: Mapping[str, Any]
    opened: int
    settled: int

    @property
    def params(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.intent.get("params") or {}
        return found

    @property
    def is_ok(self) -> bool:
        return bool(self.receipt.get("status", "ok") == "ok")

    @property
    def value(self) -> Mapping[str, Any]:
        found = self.receipt.get("value")
        return found if isinstance(found, Mapping) else {}

    @property
    def error(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.receipt.get("error") or {}
        return found


def answers_of(journal: Journal, blob: Blob) -> list[Answer]:
    """Every settled intent with its receipt, in the order of the answers. `blob` gives the payload
    behind a digest."""
    opened: dict[str, tuple[int, Any]] = {}
    found = []
    for record in journal:
        event = record.get("event") or {}
        seq, intent = opened.pop(str(event.get("intent")), (0, None))
        if record["kind"] == "signal":
            named = (
                id
                for id, (_, i) in opened.items()
                if i["kind"] == "signal" and i["params"].get("name") == event.get("name")
            )
            if (id := next(named, None)) is not None:
                seq, intent = opened.pop(id)
                event = {"status": "ok", "value": event.get("data"), "by": event.get("by")}
        if intent is not None:
            found.append(Answer(resolved(intent, blob), resolved(dict(event), blob), seq, int(record["seq"])))
        for new in record.get("opened") or ():
            opened[str(new["id"])] = (int(record["seq"]), new)
    return found


def unanswered_of(journal: Journal, blob: Blob, message: str) -> list[Answer]:
    """Every intent that was opened and never settled (its run ended before), as one that failed with `message`."""
    opened: dict[str, tuple[int, Any]] = {}
    last = 0
    for record in journal:
        last = int(record["seq"])
        opened.pop(str((record.get("event") or {}).get("intent")), None)
        for new in record.get("opened") or ():
            opened[str(new["id"])] = (last, new)
    receipt = {"status": "error", "error": {"message": message}}
    return [Answer(resolved(intent, blob), receipt, seq, last + 1) for seq, intent in opened.values()]


def resolved(value: Value, blob: Blob) -> Any:
    """The value with every reference in it replaced by what it stands for."""
    if is_reference(value):
        return resolved(blob(str(value["checksum"])), blob)
    if isinstance(value, dict):
        return {key: resolved(item, blob) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, blob) for item in value]
    return value


def answer_list(document: Mapping[str, Any], journal: Journal, blob: Blob) -> dict[str, Any]:
    return {
        "workflow": document["workflow"],
        "version": document.get("version"),
        "digest": document["digest"],
        "input": document.get("input"),
        "answers": [_shown(answer) for answer in answers_of(journal, blob)],
        "status": document["status"],
        "result": document.get("result"),
    }


def _shown(answer: Answer) -> dict[str, Any]:
    receipt = answer.receipt
    shown = {
        "kind": answer.intent["kind"],
        "name": answer.params.get("name") or answer.intent.get("ref") or "",
        "status": receipt.get("status", "ok"),
        "value": receipt.get("value"),
    }
    if receipt.get("error"):
        shown["error"] = receipt["error"]
    if receipt.get("by"):
        shown["by"] = receipt["by"]
    return shown
