"""A run that calls others: what it waits for, how it goes on, and what is seen of the others meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.output import Output
from treadle.cli.progress import Progress

from .conftest import Cli

Write = Callable[[str, str], Path]

PARENT = {
    "id": "parent", "name": "P", "entry": "b", "edges": [{"from": "b", "to": "c"}],
    "nodes": {"b": {"name": "b", "run": {"workflow": "child"}}, "c": {"name": "c", "instruction": "c"}},
}  # fmt: skip
ASKING = {
    "id": "child", "name": "C", "entry": "x", "edges": [],
    "nodes": {"x": {"name": "x", "instruction": "x", "approve": {"roles": ["lead"], "prompt": "Go?"}}},
}  # fmt: skip
SCRIPT = {
    "run": {
        "x": [{"data": {"n": 1}, "progress": ["looking"], "usage": {"input_tokens": 1200, "output_tokens": 30, "usd": 0.01}}],
        "c": [{"data": {}}],
    }
}  # fmt: skip

PROCESS_PARENT = """
dialect: process
name: Outer
steps:
  - child: {workflow: Inner, into: inner}
  - complete: {}
"""
PROCESS_CHILD = """
dialect: process
name: Inner
steps:
  - await: {signal: papers, into: papers}
  - complete: {}
"""


@pytest.fixture
def agents(cli: Cli, write: Write) -> None:
    write("parent.json", json.dumps(PARENT))
    write("child.json", json.dumps(ASKING))
    write("script.json", json.dumps(SCRIPT))


def run(cli: Cli, *more: str, code: int) -> Any:
    return cli("run", "parent.json", "--model", "scripted:script.json", "--id", "r", *more, code=code)


@pytest.mark.usefixtures("agents")
def test_a_run_whose_child_waits_says_what_for_and_how_it_goes_on(cli: Cli) -> None:
    said = run(cli, code=3).err
    (task,) = cli("tasks", "--json", code=0).json
    for told in (said, cli("resume", "r", code=3).err, cli("show", "r", code=0).out):
        assert "waits for task child › x" in told
        assert f"treadle task claim {task['id']} --user YOU --role lead" in told
        assert f"treadle task complete {task['id']} --user YOU --data '{{\"approved\":true}}'" in told
        assert "Go?" in told
        assert "waits for child" not in told
    (wait,) = cli("show", "r", "--json", code=0).json["waiting_for"]
    assert (wait["kind"], wait["name"], wait["run"]) == ("child", "child", task["run"])
    assert [(inner["kind"], inner["id"]) for inner in wait["waiting_for"]] == [("task", task["id"])]

    answer = ("--user", "ann", "--role", "lead", "--data", '{"approved": true}')
    cli("task", "claim", task["id"], *answer[:4], code=0)
    cli("task", "complete", task["id"], *answer, code=0)
    assert cli("show", "r", "--json", code=0).json["status"] == "completed"


def test_the_same_in_another_dialect(cli: Cli, write: Write) -> None:
    write("inner.yaml", PROCESS_CHILD)
    write("outer.yaml", PROCESS_PARENT)
    cli("deploy", "inner.yaml", code=0)
    said = cli("run", "outer.yaml", "--id", "o", code=3).err
    (child,) = cli("show", "o", "--json", code=0).json["children"]
    assert f"waits for signal Inner › papers  treadle signal {child} papers" in said


@pytest.mark.usefixtures("agents")
def test_progress_shows_the_called_run_at_work(cli: Cli, write: Write) -> None:
    node = {"name": "x", "instruction": "x"}
    write("child.json", json.dumps({**ASKING, "nodes": {"x": node}}))
    lines = run(cli, code=0).err.splitlines()
    shown = [line.partition(" ms")[0].rstrip("0123456789") for line in lines]
    # Each run has its order; which of two runs is read first is nobody's promise.
    called = [line for line in shown[:6] if "child › x" in line]
    assert called == ["· child › x started", "  child › x: looking", "✓ child › x "]
    assert [line for line in shown[:6] if line not in called] == ["· b started", "✓ b ", "· c started"]
    (done,) = [line for line in lines if line.startswith("✓ child › x")]
    assert done.endswith(" 1,230 tokens, $0.0100")


@pytest.mark.usefixtures("agents")
def test_a_stream_has_the_events_of_the_run_itself(cli: Cli) -> None:
    events = run(cli, "--stream", code=3).lines
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event.get("node") for event in events} == {None, "b"}


# --- what a node costs --------------------------------------------------------------------------


def test_progress_counts_turns_tokens_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    usage = {"input_tokens": 1000, "output_tokens": 115, "usd": 0.005}
    at = "2026-11-15T08:00:00Z"
    with Progress(Output()) as progress:
        for event in (
            {"type": "node:enter", "node": "a"},
            {"type": "node:turn", "node": "a", "nth": 1, "turn": 1},
            {"type": "node:usage", "node": "a", "usage": usage},
            {"type": "tool:call", "node": "a", "tool": "search"},
            {"type": "tool:result", "node": "a", "tool": "search"},
            {"type": "node:turn", "node": "a", "nth": 1, "turn": 2},
            {"type": "node:turn", "node": "a", "nth": 1, "turn": 2},
            {"type": "node:usage", "node": "a", "usage": usage},
            {"type": "node:exit", "node": "a", "result": {"status": "success"}},
        ):
            progress.feed({"at": at, **event})
    assert capsys.readouterr().err.splitlines() == [
        "· a started",
        "  a › search",
        "✓ a 0 ms 2 turns, 2,230 tokens, $0.0100",
    ]


# --- versions -----------------------------------------------------------------------------------


def test_a_run_by_name_says_which_version_it_is_of(cli: Cli, write: Write) -> None:
    flow = {**ASKING, "nodes": {"x": {"name": "x", "instruction": "one"}}}
    write("child.json", json.dumps(flow))
    write("script.json", json.dumps({"run": {"x": [{"data": {}}]}}))
    cli("deploy", "child.json", code=0)
    flow["nodes"] = {"x": {"name": "x", "instruction": "two"}}
    write("child.json", json.dumps(flow))
    cli("deploy", "child.json", code=0)
    started = {"a": "child", "b": "child@1", "c": "child.json"}
    for id, target in started.items():
        cli("run", target, "--model", "scripted:script.json", "--id", id, code=0)
    shown = {id: cli("show", id, "--json", code=0).json["version"] for id in started}
    assert shown == {"a": "2", "b": "1", "c": None}
    assert {row["id"]: row["version"] for row in cli("list", "--json", code=0).json} == shown
    # The same definition, whichever way it was named.
    assert cli("diff", "a", "c", "--json", code=0).json["equal"] is True
    fork = cli("fork", "b", "--at", "1", "--id", "d", "--json", code=0).json
    assert fork["version"] == "1"
