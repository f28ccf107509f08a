"""One step of a run: what it was given, what came of it, each attempt, and what was printed meanwhile.

Read from what is recorded. What a step is called is a playbook's step, an agent's node, a process's name or
path: whatever events and intents say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_NAMES: Final = ("step", "node", "name", "path")
# What an intent says of itself, beside its input.
_OWN: Final = frozenset({"name", "step", "node", "path", "per_item"})
# What tools say while they work; the text of each kind.
_SAID: Final = {"output": "text", "log": "text", "transfer": "rows", "node:progress": "message"}


def is_of(step: str, said: Mapping[str, Any]) -> bool:
    """Whether an event, or an intent's parameters, are about this step."""
    return any(said.get(name) == step for name in _NAMES)


def is_log(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _SAID


def log_text(event: Mapping[str, Any]) -> str:
    said = event.get(_SAID[str(event["type"])])
    return f"{said} rows" if event["type"] == "transfer" else str(said or "")


def place_of(event: Mapping[str, Any]) -> str:
    """`load #3 fetch`: whose log it is."""
    parts = [str(event[name]) for name in ("step", "node", "name") if isinstance(event.get(name), str)][:1]
    if isinstance(event.get("iteration"), int):
        parts.append(f"#{event['iteration']}")
    if isinstance(event.get("task"), str):
        parts.append(str(event["task"]))
    return " ".join(parts)


def step_view(
    step: str,
    document: Mapping[str, Any],
    journal: Sequence[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """`{step, runs, attempts, logs}`, each run with its input, output and error; None: there was no such step."""
    runs = _runs(step, journal)
    told = [event for event in events if is_of(step, event)]
    if not runs and not told:
        return None
    return {
        "run": document["id"],
        "step": step,
        **_entry(step, document),
        "runs": runs,
        "attempts": [_attempt(event) for event in told if _ends_attempt(event)],
        "logs": [
            {
                "at": event["at"],
                "place": place_of(event),
                "stream": event.get("stream"),
                "text": log_text(event),
            }
            for event in told
            if is_log(event)
        ],
    }


def _entry(step: str, document: Mapping[str, Any]) -> dict[str, Any]:
    state = document.get("state")
    steps = state.get("steps") if isinstance(state, Mapping) else None
    found = steps.get(step) if isinstance(steps, Mapping) else None
    return {"status": found.get("status")} if isinstance(found, Mapping) else {}


def _runs(step: str, journal: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for record in journal:
        event = record.get("event") or {}
        run: dict[str, Any] | None = found.get(str(event.get("intent")))
        if run is not None and record["kind"] == "receipt":
            run.update(_outcome(event), ended_at=record["at"])
        for opened in record.get("opened") or ():
            params = opened.get("params") or {}
            if is_of(step, params):
                found[str(opened["id"])] = {
                    "intent": opened["id"],
                    "status": "open",
                    "started_at": record["at"],
                    "ended_at": None,
                    "input": {key: value for key, value in params.items() if key not in _OWN},
                    "output": None,
                    "error": None,
                }
    return list(found.values())


def _outcome(receipt: Mapping[str, Any]) -> dict[str, Any]:
    value: Any = receipt.get("value")
    if isinstance(value, Mapping) and "status" in value and ("result" in value or "error" in value):
        # What a playbook's worker reports of a pipeline.
        error = value.get("error") or receipt.get("error")
        return {"status": value["status"], "output": value.get("result"), "error": error}
    return {"status": receipt.get("status", "ok"), "output": value, "error": receipt.get("error")}


def _ends_attempt(event: Mapping[str, Any]) -> bool:
    return "attempt" in event and str(event["type"]).endswith(("failed", "done", "completed", "timeout"))


def _attempt(event: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("at", "type", "task", "iteration", "attempt", "error")
    return {key: event[key] for key in kept if event.get(key) is not None}
