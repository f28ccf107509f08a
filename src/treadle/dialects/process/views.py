"""What people see of a run: business data first, and the engine's own state beside it.

What is open (waits with their tokens, timers, children) the runtime knows from the open intents,
each of which names its step in `params.path`. Here is what only the machine knows: where each
thread stands, where it goes on, where it has been.
"""

from __future__ import annotations

from treadle.kernel.values import Value
from treadle.lang.duration import instant_text

from .program import Program

_ENTRY = {"call": "call", "retry": "timer", "start": "child", "join": "join", "stalled": "retry"}


def view(program: Program, data: dict[str, Value]) -> dict[str, Value]:
    """`state`, `results`, `engine` and `stats` of the run document."""
    threads = sorted(data["threads"].values(), key=lambda thread: int(thread["id"]))
    waiting = [thread for thread in threads if thread["wait"] and thread["wait"]["kind"] != "join"]
    pointers = [_pointer(data, thread) for thread in waiting]
    return {
        "state": data["state"],
        "results": data["results"],
        "engine": {
            "resume_pointer": pointers[0] if pointers else None,
            "frames": [_frame(thread, frame) for thread in threads for frame in thread["frames"]],
            "last_event": data["last"],
            "places": [
                _place(thread["wait"], pointer) for thread, pointer in zip(waiting, pointers, strict=True)
            ],
            "visited": dict(data["seen"]),
            "ended": data.get("ended"),
            **_undo(data),
        },
        "stats": {"steps": sum(data["seen"].values()), "retries": data.get("retries", 0)},
    }


def _undo(data: dict[str, Value]) -> dict[str, Value]:
    """What would be undone, last first, and whether that is going on; nothing where nothing is."""
    if "undo" not in data:
        return {}
    going = data.get("undoing")
    registered = [entry["path"] for entry in reversed(data["undo"])]
    return {"undo": {"registered": registered, "running": going["now"] if going else None}}


def _due(wait: dict[str, Value]) -> str | None:
    return None if wait.get("due") is None else instant_text(wait["due"])


def _place(wait: dict[str, Value], pointer: dict[str, Value]) -> dict[str, Value]:
    shown: dict[str, Value] = {
        "kind": wait["kind"],
        "path": wait["path"],
        "due": _due(wait),
        "resume": pointer,
    }
    for key in ("attempt", "error"):
        if key in wait:
            shown[key] = wait[key]
    return shown


def _frame(thread: dict[str, Value], frame: dict[str, Value]) -> dict[str, Value]:
    shown: dict[str, Value] = {"thread": thread["id"], "branch": frame["block"], "next": frame["next"]}
    if "loop" in frame:
        shown["loop"], shown["iteration"] = frame["loop"], frame["round"]
    return shown


def _pointer(data: dict[str, Value], thread: dict[str, Value]) -> dict[str, Value]:
    """Where the thread goes on when its wait is over."""
    wait = thread["wait"]
    top = thread["frames"][-1]
    iterations: list[Value] = []
    around: dict[str, Value] | None = thread
    while around is not None:
        rounds = [{"loop": f["loop"], "index": f["round"]} for f in around["frames"] if "loop" in f]
        iterations = rounds + iterations
        parent = around.get("parent")
        around = data["threads"][parent] if parent is not None else None
    return {
        "entry": _ENTRY.get(wait["kind"], wait["kind"]),
        "task": wait["name"] if wait["kind"] == "task" else None,
        "thread": thread["id"],
        "branch": top["block"],
        "next": top["next"],
        "iterations": iterations,
    }
