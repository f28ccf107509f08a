"""Compensation: undos that steps register, run in reverse order before a run ends badly.

A registered undo is data in the run's state: its block, and what it saw when it was registered (the
payload, the items of the loops around, the result it belongs to). A run that fails, is given up on or
is cancelled does not end yet: what it waited for is called off, and its undos run one after the other,
each as a thread like any other, so that a crash finds them where they were. An undo that ends badly is
noted and the next one runs; the error of the run lists all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.model import Status, is_reference
from treadle.kernel.values import Value
from treadle.lang.expressions.references import part_of

from .program import Op
from .scope import Thread

if TYPE_CHECKING:
    from .turn import Turn


def register(turn: Turn, current: Thread, op: Op, block: str, results: dict[str, Value]) -> None:
    """From here on the run owes this undo. While undos run, no more are taken."""
    if "undoing" in turn.data:
        return
    entry = {
        "path": op.path,
        "block": block,
        "payload": current["payload"],
        "around": _loops(turn, current),
        "results": results,
    }
    turn.data.setdefault("undo", []).append(entry)
    turn.event("undo.registered", op.path)


def _loops(turn: Turn, current: Thread) -> list[dict[str, Value]]:
    """The loops around, innermost first: the item of each, not the whole list it came from."""
    found: list[dict[str, Value]] = []
    for frame in turn.scope(current).frames():
        if "name" in frame:
            items, index = frame["items"], frame["round"]
            item = part_of(items, index) if is_reference(items) else items[index]
            found.append({"name": frame["name"], "item": item, "round": index})
    return found


def takes_over(turn: Turn, status: Status, error: dict[str, Value] | None, path: str | None) -> bool:
    """Whether the run goes on with an undo where it would have ended."""
    data = turn.data
    if (going := data.get("undoing")) is not None:
        if status == "failed":
            assert error is not None
            _failed(turn, going, error)
        else:
            _undone(turn, going)
    elif status == "completed" or not data.get("undo"):
        return False
    else:
        going = data["undoing"] = {"status": status, "error": error, "path": path, "done": [], "errors": []}
        turn.events.append({"type": "undo.started", "count": len(data["undo"]), "status": status})
    _next(turn, going)
    return True


def finished(turn: Turn) -> None:
    """The undo at hand came to its end."""
    going = turn.data["undoing"]
    _undone(turn, going)
    _next(turn, going)


def stop(turn: Turn, error: dict[str, Value]) -> None:
    """A person does not want to wait for the undos: the run ends now, and says what was left undone."""
    going = turn.data["undoing"]
    left = [going["now"], *(entry["path"] for entry in reversed(turn.data["undo"]))]
    _end(turn, {**going, "status": "cancelled"}, error, left)


def _next(turn: Turn, going: dict[str, Value]) -> None:
    turn.abandon()
    if not turn.data["undo"]:
        _end(turn, going, going["error"], [])
        return
    entry = turn.data["undo"].pop()
    going["now"] = entry["path"]
    more = {"around": entry["around"], "results": entry["results"], "error": going["error"]}
    turn.begin(entry["block"], payload=entry["payload"], undo=True, frame=more)
    turn.event("undo.running", entry["path"])


def _undone(turn: Turn, going: dict[str, Value]) -> None:
    going["done"].append(_place(turn, going["now"]))
    turn.event("undo.done", going["now"])


def _failed(turn: Turn, going: dict[str, Value], error: dict[str, Value]) -> None:
    brief = {key: error[key] for key in ("class", "code", "message", "where")}
    going["errors"].append({**_place(turn, going["now"]), "error": brief})
    turn.event("undo.failed", going["now"], error=brief)


def _place(turn: Turn, path: str) -> dict[str, Value]:
    return {"path": path, "step": turn.program.ops[path].label}


def _end(turn: Turn, going: dict[str, Value], error: dict[str, Value], left: list[str]) -> None:
    undone = {
        "undone": going["done"],
        "errors": going["errors"],
        "left": [_place(turn, path) for path in left],
    }
    details = {**(error.get("details") or {}), "compensation": undone}
    turn.abandon()
    turn.close(going["status"], None, {**error, "details": details}, going["path"])
