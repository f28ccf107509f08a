"""Agent runs at the command line: transcript, trace, skills in files, budgets, recordings of runs that were stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli
from .test_record import JUDGED, workflow

Write = Callable[[str, str], Path]
SKILLS = """
from treadle.agent import Skill
net = Skill("net", name="Net")

@net.tool("ping", idempotent=True)
def ping(input, ctx):
    return {"pong": input["host"]}
"""


@pytest.fixture
def run(cli: Cli, write: Write) -> Callable[..., Any]:
    def start(flow: str, script: dict[str, Any], *more: str, id: str = "r1", code: int = 0) -> Any:
        write("f.json", flow)
        write("script.json", json.dumps(script))
        return cli("run", "f.json", "--model", "scripted:script.json", "--id", id, *more, code=code)

    return start


def test_a_transcript_has_every_question_and_answer(cli: Cli, run: Any, write: Write) -> None:
    write("skills.py", SKILLS)
    flow = workflow(
        {"a": {"skills": ["net"], "instruction": "Look at it.", **JUDGED}, "b": {}, "c": {}},
        "a b if bad",
        "a c",
    )
    call = {
        "text": "let me see",
        "tool_calls": [{"tool": "ping", "input": {"host": "db1"}}],
        "data": {"up": True},
    }
    script = {
        "run": {"a": [{**call, "usage": {"input_tokens": 3}}], "c": [{"data": {}}]},
        "evaluate": {"a": ["c"]},
        "ask": ["yes, fine"],
    }
    run(flow, script, "--skills", "skills.py", "-i", "day=monday")
    entries = cli("transcript", "r1", "--json", code=0).json["entries"]
    assert [(said["kind"], said["node"]) for said in entries] == [
        ("turn", "a"),
        ("tool", "a"),
        ("turn", "a"),
        ("judge", "a"),
        ("route", "a"),
        ("turn", "c"),
    ]
    first, tool, second, judge, route, last = entries
    assert first["instruction"] == "Look at it."
    assert (first["context"], first["tools"]) == ({"input": {"day": "monday"}}, ["ping"])
    assert first["answer"]["calls"][0]["tool"] == "ping"
    assert (first["answer"]["text"], first["usage"]["input_tokens"]) == ("let me see", 3)
    assert (tool["input"], tool["answer"]) == ({"host": "db1"}, {"pong": "db1"})
    assert second["answer"]["data"] == {"up": True}
    assert "ok?" in judge["question"]
    assert judge["answer"] == "yes, fine"
    assert [choice["id"] for choice in route["choices"]] == ["b", "c"]
    assert (route["answer"], route["context"]["a"]["up"]) == ("c", True)
    assert last["context"]["a"]["up"] is True
    assert [said["kind"] for said in cli("transcript", "r1", "--node", "c", "--json").json["entries"]] == [
        "turn"
    ]
    text = cli("transcript", "r1", code=0).out
    for said in ("Look at it.", "let me see", "ping", "yes, fine", "monday"):
        assert said in text


def test_a_transcript_is_of_an_agent_run_and_of_a_node_that_is_there(
    cli: Cli, run: Any, write: Write
) -> None:
    run(workflow({"a": {}}), {"run": {"a": [{"data": {}}]}})
    assert (
        cli("transcript", "r1", "--node", "zz", "--json").error["message"].startswith("there is no node 'zz'")
    )
    write("etl.yaml", "metadata: {name: etl}\nworkflow: [{step: a, tool: {kind: noop}}]\n")
    cli("run", "etl.yaml", "--id", "e1", code=0)
    assert "only agent runs" in cli("transcript", "e1", "--json").error["message"]


def test_a_transcript_shows_no_secret_and_keeps_what_is_large_by_reference(
    cli: Cli, run: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("skills.py", SKILLS.replace('"pong": input["host"]', '"pong": "p" * 90_000, "key": ctx.config["NET_KEY"]').replace(
        'name="Net"', 'name="Net", config={"NET_KEY": {"description": "k", "required": True, "env": "NET_KEY_T"}}'))  # fmt: skip
    monkeypatch.setenv("NET_KEY_T", "hunter2hunter2")
    call = {"tool_calls": [{"tool": "ping", "input": {"host": "x"}}], "data": {}}
    run(workflow({"a": {"skills": ["net"]}}), {"run": {"a": [call]}}, "--skills", "skills.py:net")
    shown = cli("transcript", "r1", "--json", code=0)
    assert "hunter2" not in shown.out
    (answer,) = [said["answer"] for said in shown.json["entries"] if said["kind"] == "tool"]
    assert (answer["store"], answer["size"] > 90_000) == ("blob", True)


def test_a_trace_tells_the_true_reason_of_a_route(cli: Cli, run: Any) -> None:
    """B15: a default edge after the model's none is not the only path; a node that failed still routes."""
    flow = workflow({"a": {}, "b": {}, "c": {}, "d": {}}, "a b if angry", "a c", "c d")
    script = {
        "run": {"a": [{"data": {}}], "c": [{"throw": "down"}], "d": [{"data": {}}]},
        "evaluate": {"a": [None]},
    }
    run(flow, script, code=1)
    told = cli("trace", "r1", code=0).err
    assert "a → c: no condition applied, so the default edge" in told
    assert "c → d: only path (c had failed)" in told
    edges = cli("trace", "r1", "--json", code=0).json["edges"]
    assert edges[0] == {"from": "a", "to": "c", "reason": "only path"}, "as the format has it"


def test_a_budget_is_raised_by_a_retry(cli: Cli, run: Any) -> None:
    """B16: the remedy that the message and the docs name works."""
    spends = {"data": {}, "usage": {"input_tokens": 120}}
    flow = workflow({"a": {}, "b": {}}, "a b", budget={"tokens": 100})
    failed = run(flow, {"run": {"a": [spends], "b": [spends]}}, code=1)
    assert "retry r1 --budget" in failed.err
    assert "usd=N or tokens=N" in cli("retry", "r1", "--budget", "many", code=2).err
    cli("retry", "r1", "--budget", "tokens=110", code=1)
    assert cli("retry", "r1", "--budget", "tokens=1000", "--json", code=0).json["status"] == "completed"
    assert cli("replay", "r1", "--json", code=0).json["equal"] is True


def test_a_budget_is_raised_without_a_retry(cli: Cli, run: Any) -> None:
    spends = {"data": {}, "usage": {"input_tokens": 120}}
    nodes = {"a": {}, "b": {"approve": {"roles": ["lead"], "prompt": "Go?"}}, "c": {}}
    flow = workflow(nodes, "a b", "b c", budget={"tokens": 130})
    run(flow, {"run": {name: [spends] for name in nodes}}, code=3)
    assert "usd=N or tokens=N" in cli("patch", "r1", "--budget", "many", code=2).err
    cli("patch", "r1", "--budget", "tokens=100", code=1)
    assert cli("patch", "r1", "--budget", "tokens=1000", "--json", code=3).json["status"] == "waiting"
    (task,) = cli("tasks", "--json", code=0).json
    done = cli(
        "task",
        "complete",
        task["id"],
        "--role",
        "admin",
        "--data",
        '{"approved": true}',
        "--json",
        code=0,
    )
    assert done.json["status"] == "completed"
    assert cli("replay", "r1", "--json", code=0).json["equal"] is True


def test_skills_of_a_file_help_a_run_that_waits_for_them(cli: Cli, run: Any, write: Write) -> None:
    path = write("skills.py", SKILLS)
    call = {"tool_calls": [{"tool": "ping", "input": {"host": "x"}}], "data": {}}
    run(workflow({"a": {"skills": ["net"]}}), {"run": {"a": [call]}}, "--skills", "skills.py")
    assert cli("show", "r1", "--json", code=0).json["status"] == "completed"
    missing = cli("run", "f.json", "--model", "scripted:script.json", "--skills", "gone.py", "--json", code=2)
    assert "there is no file" in missing.error["message"]
    assert cli("resume", "--skills", f"{path}:net", code=0)


def test_a_recording_of_a_run_that_was_stopped_inside_a_node_does_not_run_out(
    cli: Cli, run: Any, write: Write
) -> None:
    flow = workflow(
        {"a": {}, "b": {}, "c": {}, "d": {}}, "a b", "a c", "b d", "c d", parallel=True, on_failure="halt"
    )
    slow = {"data": {}, "delay": 30}
    run(flow, {"run": {"a": [{"data": {}}], "b": [{"throw": "down"}], "c": [slow]}}, code=1)
    cli("record", "r1", "-o", "recorded.json", code=0)
    second = cli("run", "f.json", "--model", "scripted:recorded.json", "--id", "r2", "--json", code=1)
    assert second.json["error"]["code"] != "SCRIPT_EXHAUSTED"


def test_two_parallel_runs_that_did_the_same_are_equal_whatever_ended_first(cli: Cli, run: Any) -> None:
    flow = workflow({"a": {}, "b": {}, "c": {}, "d": {}}, "a b", "a c", "b d", "c d", parallel=True)

    def script(slow: str) -> dict[str, Any]:
        return {
            "run": {
                id: [{"data": {}, **({"delay": 0.3} if id == slow else {})}] for id in ("a", "b", "c", "d")
            }
        }

    for id, slow in (("r1", "b"), ("r2", "c")):
        run(flow, script(slow), id=id)
    orders = [[s["node"] for s in cli("trace", id, "--json").json["steps"]] for id in ("r1", "r2")]
    assert orders == [["a", "c", "b", "d"], ["a", "b", "c", "d"]]
    assert cli("diff", "r1", "r2", "--json", code=0).json["equal"] is True


def test_two_runs_that_went_another_way_still_differ(cli: Cli, run: Any) -> None:
    flow = workflow({"a": {}, "b": {}, "c": {}}, "a b x", "a c y")
    for id, way in (("r1", "b"), ("r2", "c")):
        run(flow, {"run": {n: [{"data": {}}] for n in "abc"}, "evaluate": {"a": [way]}}, id=id)
    assert cli("diff", "r1", "r2", "--json", code=1).json["equal"] is False
