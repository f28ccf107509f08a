"""Playbooks under cases/ run end to end through the engine, each with what it must come to.

A case says what it expects under `x-expect` (roots that start with x- are ignored by the loader):
input, what it waits for and what is done then, status, result, error, ctx, steps, runs, events.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.lang.text import parse
from treadle.tools.protocol import Outcome, ToolCall

from .harness import DIALECT, echo

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
EVENTS = ("step.started", "step.done", "step.failed", "loop.")


class Echo:
    kind = "echo"
    idempotent = True
    sync = True

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        value = echo(config, call)
        return value if isinstance(value, Outcome) else Outcome(result=value)

    async def close(self) -> None: ...


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 25


@pytest.mark.house
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
async def test_case(path: Path) -> None:
    document = parse(path.read_text(), file=str(path))
    expect = document.value["x-expect"]
    definition, problems = DIALECT.compile(document, strict=bool(expect.get("strict")))
    assert definition is not None, problems
    async with Engine("memory:") as engine:
        engine.register(Echo())
        (definition,) = engine.load(str(path))
        run = await engine.start(definition, expect.get("input"))
        shown = await run.settled(timeout=20)
        if "waits" in expect:
            waits = [f"{item['kind']} {item['name']}" for item in shown["waiting_for"]]
            assert (shown["status"], waits) == ("waiting", expect["waits"])
            await _act(engine, run.id, shown, expect)
            shown = await run.settled(timeout=20)
        events = [event async for event in run.events(follow=False)]
        replayed = await engine.replay(run.id)
    assert replayed["equal"], replayed
    assert shown["status"] == expect["status"], shown["error"]
    _compare(shown, expect)
    if "events" in expect:
        wanted = {item.split()[0] for item in expect["events"]}
        seen = [
            _line(event) for event in events if event["type"] in wanted or event["type"].startswith(EVENTS)
        ]
        assert seen == expect["events"]


async def _act(engine: Engine, run: str, shown: dict[str, Any], expect: dict[str, Any]) -> None:
    if "patch" in expect:
        await engine.patch(run, expect["patch"])
    if "signal" in expect:
        await engine.signal(run, expect["signal"]["name"], expect["signal"].get("data"))
    if "task" in expect:
        (task,) = shown["waiting_for"]
        await engine.task_complete(task["id"], expect["task"], user="ann", roles=["admin"])


def _compare(shown: dict[str, Any], expect: dict[str, Any]) -> None:
    if "result" in expect:
        assert shown["result"] == expect["result"]
    for key, value in expect.get("error", {}).items():
        assert shown["error"][key] == value
    state = shown["state"]
    if "ctx" in expect:
        assert state["ctx"] == expect["ctx"]
    for step, status in expect.get("steps", {}).items():
        assert state["steps"][step]["status"] == status
    for step, runs in expect.get("runs", {}).items():
        assert state["steps"][step]["runs"] == runs
    if expect.get("runs") == {}:
        assert state["steps"] == {}


def _line(event: dict[str, Any]) -> str:
    parts = [event["type"], event.get("step"), event.get("iteration")]
    return " ".join(str(part) for part in parts if part is not None)
