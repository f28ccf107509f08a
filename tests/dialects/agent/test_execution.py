"""The execution model, line by line (seed 001; S1-S34 of AGENT.md §1.1)."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.agent import Skill

NINE = {
    "workflow:start",
    "sources:resolved",
    "node:enter",
    "tool:call",
    "tool:result",
    "node:progress",
    "node:exit",
    "route",
    "workflow:end",
}


def data(**value: Any) -> list[dict[str, Any]]:
    return [{"data": value}]


@pytest.fixture
def search() -> Skill:
    skill = Skill("search", name="Search", description="Finds things")

    @skill.tool("search", description="Find", input_schema={"type": "object", "required": ["q"]})
    def find(input: dict, ctx: Any) -> Any:
        if input["q"] == "boom":
            raise ValueError("the index is down")
        return {"hits": [input["q"]]}

    return skill


def test_context_has_input_and_every_completed_node(play, flow):
    run = play(
        flow("a b c", "a b", "b c"), {"run": {"a": data(n=1), "b": data(m=2), "c": data(o=3)}}, {"x": [1]}
    )
    seen = [call["context"] for call in run.asked("run")]
    assert seen == [
        {"input": {"x": [1]}},
        {"input": {"x": [1]}, "a": {"n": 1}},
        {"input": {"x": [1]}, "a": {"n": 1}, "b": {"m": 2}},
    ]
    assert run.status == "completed"


def test_edge_conditions_see_the_same_context(play, flow):
    wf = flow("a b c", ("a", "b", {"when": "good"}), ("a", "c", {"when": "bad"}))
    run = play(wf, {"run": {"a": data(n=1), "c": data()}, "evaluate": {"a": ["c"]}}, {"k": 1})
    (asked,) = run.asked("evaluate")
    assert asked["context"] == {"input": {"k": 1}, "a": {"n": 1}}
    assert asked["choices"] == [{"id": "b", "description": "good"}, {"id": "c", "description": "bad"}]
    assert run.path() == ["a", "c"]


def test_a_node_that_ran_again_is_seen_once_with_its_latest_data(play, flow):
    wf = flow(
        "a b c", "a b", ("b", "a", {"when": "again", "max_iterations": 1}), ("b", "c", {"when": "done"})
    )
    script = {
        "run": {
            "a": [{"data": {"n": 1}}, {"data": {"n": 2}}],
            "b": [{"data": {}}, {"data": {}}],
            "c": data(),
        },
        "evaluate": {"b": ["a", "c"]},
    }
    run = play(wf, script)
    assert run.asked("run")[-1]["context"] == {"input": {}, "a": {"n": 2}, "b": {}}
    assert run.trace["steps"][2]["iteration"] == 2
    assert run.results["a"]["data"] == {"n": 2}
    assert run.path() == ["a", "b", "a", "b", "c"]


def test_events_come_in_the_order_of_the_specification(play, flow, search):
    wf = flow({"a": {"skills": ["search"]}, "b": {}}, "a b")
    calls = [{"tool": "search", "input": {"q": "x"}}, {"tool": "search", "input": {"q": "y"}}]
    script = {"run": {"a": [{"tool_calls": calls, "progress": ["looking"], "data": {"n": 2}}], "b": data()}}
    run = play(wf, script, skills=(search,))
    assert [event["type"] for event in run.events] == [
        "workflow:start",
        "sources:resolved",
        "node:enter",
        "node:progress",
        "tool:call",
        "tool:result",
        "tool:call",
        "tool:result",
        "node:exit",
        "route",
        "node:enter",
        "node:exit",
        "workflow:end",
    ]
    assert run.of("workflow:start") == [{"workflow": "wf"}]
    assert run.of("node:enter")[0] == {"node": "a", "instruction": "Do a."}
    assert run.of("node:progress") == [{"node": "a", "message": "looking"}]
    assert run.of("tool:call")[0] == {"node": "a", "tool": "search", "input": {"q": "x"}}
    assert run.of("tool:result")[0] == {"node": "a", "tool": "search", "output": {"hits": ["x"]}}
    assert run.of("route") == [{"from": "a", "to": "b", "reason": "only path"}]
    assert run.of("node:exit")[0]["result"] == run.results["a"]
    assert run.of("workflow:end") == [{"results": run.results}]
    assert {event["type"] for event in run.events} <= NINE


def test_tool_calls_are_recorded_in_order_and_an_error_has_no_output(play, flow, search):
    calls = [{"tool": "search", "input": {"q": "x"}}, {"tool": "search", "input": {"q": "boom"}}]
    run = play(
        flow({"a": {"skills": ["search"]}}),
        {"run": {"a": [{"tool_calls": calls, "data": {"ok": True}}]}},
        skills=(search,),
    )
    first, second = run.results["a"]["toolCalls"]
    assert first == {"tool": "search", "input": {"q": "x"}, "output": {"hits": ["x"]}}
    assert second == {"tool": "search", "input": {"q": "boom"}, "error": "ValueError: the index is down"}
    assert run.of("tool:result")[1]["output"] == {"error": "ValueError: the index is down"}
    assert run.results["a"]["status"] == "success", "a tool's error ends nothing"


def test_the_result_has_trace_results_and_sources(play, flow):
    run = play(flow("a b", "a b"), {"run": {"a": data(n=1), "b": data(n=2)}})
    assert run.result["results"] == {
        "a": {"status": "success", "data": {"n": 1}, "toolCalls": []},
        "b": {"status": "success", "data": {"n": 2}, "toolCalls": []},
    }
    steps = [{k: step[k] for k in ("node", "status", "iteration")} for step in run.result["trace"]["steps"]]
    assert steps == [
        {"node": "a", "status": "success", "iteration": 1},
        {"node": "b", "status": "success", "iteration": 1},
    ]
    assert run.result["trace"]["edges"] == [{"from": "a", "to": "b", "reason": "only path"}]
    source = run.result["trace"]["sources"]["nodes.a.instruction"]
    assert source == {
        "content": "Do a.",
        "kind": "inline",
        "origin": "Do a.",
        "resolver": "inline",
        "hash": source["hash"],
    }
    assert run.of("sources:resolved") == [{"sources": run.result["trace"]["sources"]}]


def test_hash_is_the_first_sixteen_hex_digits_of_sha256(play, flow):
    import hashlib

    run = play(flow("a"), {"run": {"a": data()}})
    assert run.trace["sources"]["nodes.a.instruction"]["hash"] == hashlib.sha256(b"Do a.").hexdigest()[:16]


def test_a_failing_node_is_recorded_and_routing_goes_on(play, flow):
    script = {"run": {"a": [{"status": "failed", "data": {"error": "no"}}], "b": data()}}
    run = play(flow("a b", "a b"), script)
    assert run.results["a"] == {"status": "failed", "data": {"error": "no"}, "toolCalls": []}
    assert [step["status"] for step in run.trace["steps"]] == ["failed", "success"]
    assert run.status == "failed"
    assert run.error["code"] == "NODE_FAILED"
    assert run.error["where"] == "a"
    assert set(run.result["results"]) == {"a", "b"}


def test_on_failure_halt_stops_there(play, flow):
    script = {"run": {"a": [{"status": "failed", "data": {"error": "no"}}]}}
    run = play(flow("a b", "a b", on_failure="halt"), script)
    assert run.path() == ["a"]
    assert run.of("workflow:halted") == [{"node": "a", "reason": "node failed"}]
    assert run.events[-1]["type"] == "workflow:end"


def test_a_loop_that_recovers_completes(play, flow):
    wf = flow("a b", ("a", "a", {"when": "again", "max_iterations": 2}), ("a", "b", {"when": "ok"}))
    script = {
        "run": {"a": [{"status": "failed", "data": {}}, {"data": {"n": 1}}], "b": data()},
        "evaluate": {"a": ["a", "b"]},
    }
    run = play(wf, script)
    assert run.status == "completed"
    assert [step["iteration"] for step in run.trace["steps"]] == [1, 2, 1]


def test_a_model_that_raises_fails_the_node(play, flow):
    run = play(flow("a b", "a b"), {"run": {"a": [{"throw": "provider down"}], "b": data()}})
    assert run.results["a"]["status"] == "failed"
    assert run.results["a"]["data"]["error"] == "provider down"
    assert run.path() == ["a", "b"]


def test_a_node_may_be_skipped_by_the_model(play, flow):
    wf = flow(
        {"a": {"eval": [{"name": "e", "kind": "value", "rule": {"output_required": ["x"]}}]}, "b": {}}, "a b"
    )
    run = play(wf, {"run": {"a": [{"status": "skipped", "data": {}}], "b": data()}})
    assert run.results["a"]["status"] == "skipped"
    assert "evals" not in run.results["a"]
    assert run.status == "completed"


@pytest.mark.parametrize("status", ["done", "", 3, None, "SUCCESS"])
def test_a_status_that_is_none_fails_the_node(play, flow, status):
    run = play(flow("a"), {"run": {"a": [{"status": status, "data": {}}]}})
    assert run.results["a"]["status"] == "failed"
    assert "status" in run.results["a"]["data"]["error"]


def test_a_script_that_runs_out_fails_the_run(play, flow):
    run = play(flow("a b", "a b"), {"run": {"a": data()}})
    assert run.status == "failed"
    assert run.error["code"] == "SCRIPT_EXHAUSTED"
    assert run.events[-1]["type"] == "workflow:end"


def test_a_dry_run_stops_at_the_first_decision(play, flow):
    wf = flow("a b c d", "a b", ("b", "c", {"when": "x"}), "b d")
    run = play(wf, {"run": {"a": data(), "b": data()}}, {"dryRun": True})
    assert run.path() == ["a", "b"]
    assert run.asked("evaluate") == []
    assert run.trace["edges"] == [{"from": "a", "to": "b", "reason": "only path"}]
    assert run.status == "completed"
    assert set(run.result["results"]) == {"a", "b"}
    assert run.of("workflow:halted") == [{"node": "b", "reason": "dry run"}]
    assert run.events[-1]["type"] == "workflow:end"


@pytest.mark.parametrize("value", ["true", 1, None, [True]])
def test_only_true_itself_makes_a_dry_run(play, flow, value):
    wf = flow("a b", ("a", "b", {"when": "x"}))
    run = play(wf, {"run": {"a": data(), "b": data()}, "evaluate": {"a": ["b"]}}, {"dryRun": value})
    assert run.path() == ["a", "b"]


def test_the_option_dry_run_wins_over_the_input(play, flow):
    wf = flow("a b", ("a", "b", {"when": "x"}))
    run = play(wf, {"run": {"a": data()}}, {"dryRun": False}, dry_run=True)
    assert run.path() == ["a"]
    assert run.asked("run")[0]["context"]["input"] == {"dryRun": True}


def test_a_runaway_loop_ends_at_max_steps(play, flow):
    wf = flow("a", ("a", "a", {"max_iterations": 1000}), max_steps=5)
    run = play(wf, {"run": {"a": [{"data": {}}] * 10}})
    assert run.error["code"] == "MAX_STEPS"
    assert len(run.trace["steps"]) == 5
    assert run.events[-1]["type"] == "workflow:end"


def test_cancel_ends_the_run_and_tells_observers(prepared, flow):
    run = prepared(flow("a b", "a b"), {"run": {"a": data(), "b": data()}}).start().go(2)
    run.driver.cancel("enough")
    assert run.status == "cancelled"
    assert run.events[-1] == {"type": "workflow:end", "results": run.results}
    assert [event["node"] for event in run.of("node:exit")] == ["a", "b"], "the node it was in is left"
    assert run.results["b"] == {"status": "failed", "data": {"error": "stopped: enough"}, "toolCalls": []}
    assert run.path() == ["a", "b"]


def test_nothing_answered_is_asked_again(play, flow, search):
    """D2: each model turn, call and route is one intent, answered once."""
    wf = flow({"a": {"skills": ["search"]}, "b": {}}, ("a", "b", {"when": "x"}))
    script = {
        "run": {"a": [{"tool_calls": [{"tool": "search", "input": {"q": "x"}}], "data": {}}], "b": data()},
        "evaluate": {"a": ["b"]},
    }
    run = play(wf, script, skills=(search,))
    assert [intent.kind for intent in run.performed] == ["source", "model", "call", "model", "route", "model"]
    assert len({intent.id for intent in run.performed}) == 6
