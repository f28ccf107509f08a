"""The workflow that test_engine.py kills, for the process that is killed and the one that resumes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle.agent import Skill

FLOW: dict[str, Any] = {
    "id": "wf",
    "name": "Killed",
    "entry": "a",
    "nodes": {
        "a": {"name": "A", "instruction": "Do a.", "skills": ["mail"]},
        "b": {
            "name": "B",
            "instruction": "Do b.",
            "eval": [{"name": "j", "kind": "judge", "rubric": "Good?"}],
            "retry": {"max": 1},
        },
        "c": {"name": "C", "instruction": "Do c."},
    },
    "edges": [{"from": "a", "to": "b", "when": "there is more"}, {"from": "b", "to": "c"}],
}

SCRIPT: dict[str, Any] = {
    "log": "asked.jsonl",
    "run": {
        "a": [
            {"progress": ["on it"], "tool_calls": [{"tool": "send", "input": {"to": "x"}}], "data": {"n": 1}}
        ],
        "b": [{"data": {"m": 1}}, {"data": {"m": 2}}],
        "c": [{"data": {}}],
    },
    "evaluate": {"a": ["b"]},
    "ask": ["no", "yes"],
}


def engine_for(folder: Path, *, idempotent: bool = True, deadly: bool = False) -> Engine:
    """`deadly`: the process dies inside the tool, after it took effect."""
    skill = Skill("mail", name="Mail")

    @skill.tool("send", idempotent=idempotent)
    async def send(input: dict[str, Any], ctx: Any) -> Any:
        with (folder / "sent.txt").open("a") as file:
            file.write(ctx.idempotency_key + "\n")
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"sent": True}

    engine = Engine(f"sqlite:///{folder}/t.db")
    engine.register(skill)
    engine.deploy(str(folder / "flow.json"))
    return engine
