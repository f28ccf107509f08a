"""record: a script that leads to the same run again, whatever happened in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli

Write = Callable[[str, str], Path]


def workflow(nodes: dict[str, Any], *edges: str, **more: Any) -> str:
    full = {
        id: {"name": id, **({} if "run" in node else {"instruction": id}), **node}
        for id, node in nodes.items()
    }
    pairs = [edge.split() for edge in edges]
    return json.dumps(
        {"id": "f", "name": "F", "entry": next(iter(nodes)), "nodes": full,
         "edges": [{"from": a, "to": b, **({"when": " ".join(when)} if when else {})} for a, b, *when in pairs], **more}
    )  # fmt: skip


JUDGED = {"eval": [{"name": "j", "kind": "judge", "rubric": "ok?"}]}
VALUE = {"eval": [{"name": "v", "kind": "value", "rule": {"output_required": ["x"]}}]}
REFLECTING = {**VALUE, "retry": {"max": 1, "instruction": {"auto": True}}}
FILES = {"skills": ["files"]}
READ = {"tool": "read_file", "input": {"path": "data.txt"}}


@pytest.fixture
def again(cli: Cli, write: Write, folder: Path) -> Callable[..., dict[str, Any]]:
    """Runs a workflow by a script, records it, runs the recording; the two must be equal. Gives the recording."""

    def prove(flow: str, script: dict[str, Any], *, ordered: bool = True, **children: str) -> dict[str, Any]:
        write("f.json", flow)
        write("script.json", json.dumps(script))
        write("data.txt", "seven")
        for name, text in children.items():
            write(f"{name}.json", text)
        first = cli("run", "f.json", "--model", "scripted:script.json", "--id", "r1", "--json")
        assert first.code in (0, 1), first
        cli("record", "r1", "-o", "recorded.json", code=0)
        cli("run", "f.json", "--model", "scripted:recorded.json", "--id", "r2", "--json", code=first.code)
        differences = cli("diff", "r1", "r2", "--json").json["differences"]
        assert [d for d in differences if ordered or not d["path"].startswith(("steps", "edges"))] == []
        recorded: dict[str, Any] = json.loads((folder / "recorded.json").read_text())
        return recorded

    return prove


Again = Callable[..., dict[str, Any]]


def test_what_failed_keeps_its_place_among_the_questions(again: Again) -> None:
    script = {
        "run": {"a": [{"data": {}}, {"data": {"x": 3}}], "b": [{"data": {}}]},
        "ask": [{"throw": "reflect down"}, "yes"],
    }
    recorded = again(workflow({"a": REFLECTING, "b": JUDGED}, "a b"), script)
    assert recorded["ask"] == [{"throw": "reflect down"}, "yes"]


def test_a_route_that_failed_fails_again(again: Again) -> None:
    script = {"run": {"a": [{"data": {}}]}, "evaluate": {"a": [{"throw": "router down"}]}}
    recorded = again(workflow({"a": {}, "b": {}}, "a b if so"), script)
    assert recorded["evaluate"] == {"a": [{"throw": "router down"}]}


def test_the_cost_of_routes_and_judges_is_kept(again: Again) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5}
    script = {
        "run": {"a": [{"data": {}}], "b": [{"data": {}}]},
        "evaluate": {"a": [{"choice": "b", "usage": usage}]},
        "ask": [{"text": "yes", "usage": usage}],
    }
    recorded = again(workflow({"a": {}, "b": JUDGED}, "a b if so"), script)
    assert (recorded["evaluate"], recorded["ask"]) == (script["evaluate"], script["ask"])


def test_calls_progress_and_the_throw_after_them(again: Again) -> None:
    entry = {"progress": ["one", "two"], "tool_calls": [READ], "usage": {"input_tokens": 3}, "throw": "gone"}
    recorded = again(workflow({"a": FILES}), {"run": {"a": [entry]}})
    assert recorded["run"] == {"a": [entry]}


def test_turns_are_written_out_where_the_short_form_would_say_less(again: Again) -> None:
    """Charged all at once, the tokens would be over the budget before the second turn."""
    turns = [
        {"progress": ["one"], "tool_calls": [READ], "usage": {"input_tokens": 60}},
        {"progress": ["two"], "tool_calls": [READ], "usage": {"input_tokens": 30}},
        {"data": {"n": 1}, "usage": {"input_tokens": 20}},
    ]
    recorded = again(workflow({"a": FILES}, budget={"tokens": 100}), {"run": {"a": [{"turns": turns}]}})
    assert recorded["run"] == {"a": [{"turns": turns}]}


def test_a_node_stopped_by_its_turns_is_stopped_again(again: Again) -> None:
    turns = [{"tool_calls": [READ]}, {"tool_calls": [READ]}]
    again(workflow({"a": {**FILES, "max_turns": 2}}), {"run": {"a": [{"turns": turns}]}})


def test_a_script_that_ran_out_runs_out_again(again: Again) -> None:
    assert again(workflow({"a": {}, "b": {}}, "a b"), {"run": {"a": [{"data": {}}]}})["run"].keys() == {"a"}


def test_judges_of_parallel_branches_are_recorded_by_node(again: Again) -> None:
    """The slower branch is asked last in the run, and first in the re-run, which has no delays."""
    nodes = {"a": {}, "b": JUDGED, "c": JUDGED, "d": JUDGED}
    script = {
        "run": {
            "a": [{"data": {}}],
            "b": [{"data": {}, "delay": 0.3}],
            "c": [{"data": {}}],
            "d": [{"data": {}}],
        },
        "ask": {"b": ["yes"], "c": ["no"], "d": ["yes"]},
    }
    flow = workflow(nodes, "a b", "a c", "b d", "c d", parallel=True)
    recorded = again(flow, script, ordered=False)
    assert recorded["ask"] == script["ask"]


# --- runs that are called -----------------------------------------------------------------------

CHILD = workflow({"x": JUDGED}).replace('"id": "f"', '"id": "child"')


def test_a_run_that_calls_another_is_recorded_whole(again: Again) -> None:
    script = {"run": {"x": [{"data": {"n": 1}}], "c": [{"data": {}}]}, "ask": ["yes"]}
    recorded = again(workflow({"b": {"run": {"workflow": "child"}}, "c": {}}, "b c"), script, child=CHILD)
    assert recorded["run"] == {
        "b": [{"script": {"run": {"x": [{"data": {"n": 1}}]}, "ask": ["yes"]}}],
        "c": [{"data": {}}],
    }


def test_two_calls_of_one_workflow_and_a_node_of_the_same_name(again: Again) -> None:
    """One name space would not do: all three are called x."""
    inner = [
        {"script": {"run": {"x": [{"data": {"n": n}}]}, "ask": [word]}} for n, word in ((1, "yes"), (2, "no"))
    ]
    script = {"run": {"b": inner[:1], "c": inner[1:], "x": [{"data": {"n": 3}}]}, "ask": ["yes"]}
    call = {"run": {"workflow": "child"}}
    recorded = again(workflow({"b": call, "c": call, "x": JUDGED}, "b c", "c x"), script, child=CHILD)
    assert recorded["run"] == script["run"]
    assert recorded["ask"] == ["yes"]


def test_calls_within_calls_and_again(again: Again) -> None:
    deep = workflow({"y": {"run": {"workflow": "child"}}}).replace('"id": "f"', '"id": "deep"')
    retried = {"run": {"workflow": "deep"}, **VALUE, "retry": {"max": 1}}
    leaf = {"script": {"run": {"x": [{"data": {}}]}, "ask": ["yes"]}}
    script = {"run": {"b": [{"script": {"run": {"y": [leaf]}}}] * 2}}
    recorded = again(workflow({"b": retried}), script, child=CHILD, deep=deep)
    assert recorded["run"] == script["run"]


MIDDLE = """
metadata: {name: middle}
workflow:
  - step: one
    tool: {kind: workflow, workflow: child}
    next: {arcs: [{step: two}]}
  - step: two
    tool: {kind: workflow, workflow: OTHER}
"""


def test_agents_that_another_dialect_calls_share_the_script_of_its_call(
    again: Again, write: Write, folder: Path
) -> None:
    write("middle.yaml", MIDDLE.replace("OTHER", "second"))
    second = CHILD.replace('"x"', '"z"').replace('"id": "child"', '"id": "second"')
    script = {"run": {"b": [{"script": {"run": {"x": [{"data": {}}], "z": [{"data": {}}]}, "ask": {"x": ["yes"], "z": ["no"]}}}]}}  # fmt: skip
    recorded = again(workflow({"b": {"run": {"workflow": "middle"}}}), script, child=CHILD, second=second)
    assert recorded["run"] == script["run"]


def test_where_they_clash_it_is_said(cli: Cli, write: Write) -> None:
    write("middle.yaml", MIDDLE.replace("OTHER", "child"))
    write("child.json", CHILD)
    write("f.json", workflow({"b": {"run": {"workflow": "middle"}}}))
    write("script.json", json.dumps({"run": {"x": [{"data": {}}]}, "ask": ["yes"]}))
    cli("run", "f.json", "--model", "scripted:script.json", "--id", "r", code=0)
    answer = cli("record", "r", code=0)
    assert "asks at x, which another run of this family does too" in " ".join(answer.err.split())
    assert json.loads(answer.out)["run"]["b"][0]["script"]["run"] == {"x": [{"data": {}}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"run": {"a": [', "script.json is not JSON: Expecting value: line 1"),
        ('{"run": {"a": [{"usage": 5}]}}', "script.json is not valid: run.a[0].usage"),
        (None, "script.json cannot be read: No such file"),
    ],
)
def test_a_script_that_is_no_script_starts_nothing(
    cli: Cli, write: Write, text: str | None, said: str
) -> None:
    write("f.json", workflow({"a": {}}))
    if text is not None:
        write("script.json", text)
    error = cli("run", "f.json", "--model", "scripted:script.json", "--json", code=2).error
    assert error["code"] == "SCRIPT_INVALID"
    assert said in error["message"]
    assert cli("list", "--json", code=0).json == []
