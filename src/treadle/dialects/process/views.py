"""What people see of a run: business data first, and the engine's own state beside it.

The machine does not know intent ids (a fork reissues them), so waits carry the intent's `ref`;
whoever has the open intents fills in `token` from it.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.values import Value
from treadle.lang.duration import instant_text

from .program import Program, Start

_ENTRY = {"call": "call", "retry": "timer", "start": "child", "join": "join", "stalled": "retry"}


def view(program: Program, data: dict[str, Any]) -> dict[str, Value]:
    """`state`, `results`, `engine` and `stats` of the run document."""
    threads = sorted(data["threads"].values(), key=lambda thread: int(thread["id"]))
    waiting = [thread for thread in threads if thread["wait"] and thread["wait"]["kind"] != "join"]
    pointers = [_pointer(data, thread) for thread in waiting]
    waits = [thread["wait"] for thread in waiting]
    return {
        "state": data["state"],
        "results": data["results"],
        "engine": {
            "waits": [_wait(wait, pointer) for wait, pointer in zip(waits, pointers, strict=True)],
            "resume_pointer": pointers[0] if pointers else None,
            "frames": [_frame(thread, frame) for thread in threads for frame in thread["frames"]],
            "timers": [_timer(wait) for wait in waits if wait.get("due") is not None],
            "last_event": data["last"],
            "children": [_child(program, wait) for wait in waits if wait["kind"] == "child"],
            "retention_ns": program.retention_ns,
            "ended": data.get("ended"),
        },
        "stats": {"steps": sum(data["seen"].values())},
        "steps": dict(data["seen"]),
    }


def _due(wait: dict[str, Any]) -> str | None:
    return None if wait.get("due") is None else instant_text(wait["due"])


def _wait(wait: dict[str, Any], pointer: dict[str, Value]) -> dict[str, Value]:
    shown: dict[str, Value] = {
        "kind": "timer" if wait["kind"] == "retry" else wait["kind"],
        "ref": wait.get("ref"),
        "token": None,
        "path": wait["path"],
        "name": wait.get("name"),
        "due": _due(wait),
        "resume": pointer,
    }
    for key in ("attempt", "error"):
        if key in wait:
            shown[key] = wait[key]
    return shown


def _timer(wait: dict[str, Any]) -> dict[str, Value]:
    return {"ref": wait["ref"], "path": wait["path"], "name": wait["name"], "due": _due(wait)}


def _child(program: Program, wait: dict[str, Any]) -> dict[str, Value]:
    op = program.ops[wait["path"]]
    assert isinstance(op, Start)
    return {
        "id": None,
        "ref": wait["ref"],
        "name": op.workflow,
        "version": None,
        "reference": None,
        "into": op.into,
    }


def _frame(thread: dict[str, Any], frame: dict[str, Any]) -> dict[str, Value]:
    shown: dict[str, Value] = {"thread": thread["id"], "branch": frame["block"], "next": frame["next"]}
    if "loop" in frame:
        shown["loop"], shown["iteration"] = frame["loop"], frame["round"]
    return shown


def _pointer(data: dict[str, Any], thread: dict[str, Any]) -> dict[str, Value]:
    """Where the thread goes on when its wait is over."""
    wait = thread["wait"]
    top = thread["frames"][-1]
    iterations: list[Value] = []
    around: dict[str, Any] | None = thread
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
