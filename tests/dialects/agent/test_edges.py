"""Routing (E1-E9) and the decided questions about edges (B3-B9, B14, B21)."""

from __future__ import annotations

from typing import Any

import pytest


def script(nodes: str, n: int = 1, **evaluate: list[Any]) -> dict[str, Any]:
    return {"run": {id: [{"data": {}}] * n for id in nodes.split()}, "evaluate": evaluate}


def test_one_unconditional_edge_never_asks_the_model(play, flow):
    run = play(flow("a b", "a b"), script("a b"))
    assert run.asked("evaluate") == []
    assert run.path() == ["a", "b"]


def test_one_conditional_edge_alone_is_asked(play, flow):
    run = play(flow("a b", ("a", "b", {"when": "x"})), script("a b", a=["b"]))
    assert run.asked("evaluate")[0]["choices"] == [{"id": "b", "description": "x"}]
    assert run.trace["edges"] == [{"from": "a", "to": "b", "reason": "x"}]


def test_the_default_edge_is_the_last_choice(play, flow):
    wf = flow("a b c", "a c", ("a", "b", {"when": "x"}))
    run = play(wf, script("a b c", a=["c"]))
    assert run.asked("evaluate")[0]["choices"] == [
        {"id": "b", "description": "x"},
        {"id": "c", "description": "None of the above / default path"},
    ]
    assert run.of("route") == [{"from": "a", "to": "c", "reason": "None of the above / default path"}]
    assert run.trace["edges"] == [{"from": "a", "to": "c", "reason": "only path"}]


@pytest.mark.parametrize("answer", [None, "nowhere", 7, ""])
def test_an_answer_that_is_no_choice_takes_the_default(play, flow, answer):
    wf = flow("a b c", ("a", "b", {"when": "x"}), "a c")
    assert play(wf, script("a b c", a=[answer])).path() == ["a", "c"]


@pytest.mark.parametrize("answer", [None, "nowhere"])
def test_an_answer_that_is_no_choice_without_a_default_ends_there(play, flow, answer):
    run = play(flow("a b", ("a", "b", {"when": "x"})), script("a b", a=[answer]))
    assert run.path() == ["a"]
    assert run.status == "completed"
    assert run.of("route") == []
    assert run.of("workflow:halted") == [{"node": "a", "reason": "no condition applies"}]


def test_an_exhausted_edge_is_not_offered_any_more(play, flow):
    wf = flow("a b", ("a", "a", {"when": "again", "max_iterations": 2}), ("a", "b", {"when": "done"}))
    run = play(wf, script("a b", 3, a=["a", "a", "b"]))
    offered = [[choice["id"] for choice in call["choices"]] for call in run.asked("evaluate")]
    assert offered == [["a", "b"], ["a", "b"], ["b"]]
    assert run.path() == ["a", "a", "a", "b"]


def test_an_exhausted_condition_leaves_the_plain_edge_without_asking(play, flow):
    wf = flow("a b", ("a", "a", {"when": "again", "max_iterations": 1}), "a b")
    run = play(wf, script("a b", 2, a=["a"]))
    assert len(run.asked("evaluate")) == 1
    assert run.path() == ["a", "a", "b"]


def test_exhaustion_that_leaves_no_edge_makes_the_node_terminal(play, flow):
    run = play(flow("a", ("a", "a", {"max_iterations": 2})), script("a", 3))
    assert run.path() == ["a", "a", "a"]
    assert run.status == "completed"
    assert [step["iteration"] for step in run.trace["steps"]] == [1, 2, 3]


def test_counts_are_kept_per_pair_of_nodes(play, flow):
    wf = flow(
        "a b",
        ("a", "a", {"when": "first", "max_iterations": 2}),
        ("a", "a", {"when": "second", "max_iterations": 2}),
        ("a", "b", {"when": "done"}),
    )
    run = play(wf, script("a b", 3, a=["a", "a (2)", "b"]))
    assert [choice["id"] for choice in run.asked("evaluate")[2]["choices"]] == ["b"]


def test_of_two_edges_to_one_node_the_chosen_one_is_reported(play, flow):
    wf = flow("a b", ("a", "b", {"when": "first"}), ("a", "b", {"when": "second"}))
    run = play(wf, script("a b", a=["second"]))
    assert run.trace["edges"] == [{"from": "a", "to": "b", "reason": "second"}]
    assert run.of("route")[0]["reason"] == "second"


def test_an_empty_condition_is_no_condition(play, flow):
    run = play(flow("a b", ("a", "b", {"when": ""})), script("a b"))
    assert run.asked("evaluate") == []
    assert run.trace["edges"][0]["reason"] == "only path"


def test_the_workflow_model_routes_not_the_node_model(play, flow):
    wf = flow({"a": {"model": "node-model"}, "b": {}}, ("a", "b", {"when": "x"}), model="flow-model")
    run = play(wf, script("a b", a=["b"]))
    assert run.asked("run")[0]["model"] == "node-model"
    assert run.asked("run")[1]["model"] == "flow-model"
    assert run.asked("evaluate")[0]["model"] == "flow-model"


def test_the_router_sees_only_declared_output_and_evals(play, flow):
    output = {"type": "object", "properties": {"n": {"type": "object"}, "gone": {}}}
    check = [{"name": "has", "kind": "value", "rule": {"output_required": ["n"]}}]
    wf = flow({"a": {"output": output, "eval": check}, "b": {}, "c": {}}, "a b", ("b", "c", {"when": "x"}))
    run = play(
        wf,
        {
            "run": {
                "a": [{"data": {"n": {"x": 1}, "secret": 2}}],
                "b": [{"data": {"m": 1}}],
                "c": [{"data": {}}],
            },
            "evaluate": {"b": ["c"]},
        },
    )
    seen = run.asked("evaluate")[0]["context"]
    assert seen["a"].keys() == {"n", "gone", "evals"}
    assert seen["a"]["n"] == {"x": 1}, "the filter is top-level only"
    assert seen["a"]["gone"] is None
    assert seen["a"]["evals"]["has"]["pass"] is True
    assert seen["b"] == {"m": 1}, "no schema: full data"
    downstream = run.asked("run")[2]["context"]["a"]
    assert downstream["secret"] == 2, "downstream nodes still see everything"
    assert [w["node"] for w in run.of("node:warning")] == ["a"]
    assert "gone" in run.of("node:warning")[0]["message"]


def test_a_route_that_cannot_be_asked_fails_the_run(play, flow):
    run = play(flow("a b", ("a", "b", {"when": "x"})), script("a b", a=[{"throw": "down"}]))
    assert run.status == "failed"
    assert run.error["code"] == "ROUTE_FAILED"
    assert run.error["where"] == "a"
    assert run.events[-1]["type"] == "workflow:end"


# --- parallel branches --------------------------------------------------------------------------


def test_branches_join_once_and_the_join_sees_all(play, flow):
    wf = flow("a b c d", "a b", "a c", "b d", "c d", parallel=True)
    run = play(wf, {"run": {id: [{"data": {"id": id}}] for id in "abcd"}})
    asked = {call["node"]: call["context"] for call in run.asked("run")}
    assert asked["b"] == {"input": {}, "a": {"id": "a"}}
    assert asked["c"] == {"input": {}, "a": {"id": "a"}}
    assert list(asked["d"]) == ["input", "a", "b", "c"]
    assert sorted(run.path()) == ["a", "b", "c", "d"]
    assert run.path()[-1] == "d"
    assert len(run.trace["edges"]) == 4
    assert run.status == "completed"


def test_branches_are_open_at_the_same_time(prepared, flow):
    wf = flow("a b c d", "a b", "a c", "b d", "c d", parallel=True)
    run = prepared(wf, script("a b c d")).start().go(2)
    assert [intent.params["node"] for intent in run.driver.open("model")] == ["b", "c"]
    b, c = run.driver.open("model")
    run.perform(c)
    assert [intent.params["node"] for intent in run.driver.open("model")] == ["b"], "the join waits for both"
    run.perform(b)
    (d,) = run.driver.open("model")
    assert d.params["node"] == "d"
    context = run.go().asked("run")[-1]["context"]
    assert list(context) == ["input", "a", "b", "c"], "merged in edge order, whoever came first"
    run.driver.assert_replays()


def test_a_failed_or_ended_branch_still_counts(play, flow):
    wf = flow("a b c d e", "a b", "a c", ("b", "d", {"when": "x"}), "c d", "d e", parallel=True)
    run = play(wf, script("a b c d e", b=[None]))
    assert run.path() == ["a", "b", "c", "d", "e"]
    failed = script("a b c d e", b=["d"])
    failed["run"]["c"] = [{"status": "failed", "data": {"error": "no"}}]
    run = play(wf, failed)
    assert run.path()[-2:] == ["d", "e"]
    assert run.status == "failed"


def test_branches_without_a_common_node_run_to_their_ends(play, flow):
    run = play(flow("a b c", "a b", "a c", parallel=True), script("a b c"))
    assert sorted(run.path()) == ["a", "b", "c"]
    assert run.status == "completed"
    assert run.events[-1]["type"] == "workflow:end"


def test_a_branch_that_leads_straight_to_the_join(play, flow):
    run = play(flow("a b d", "a b", "a d", "b d", parallel=True), script("a b d"))
    assert run.path() == ["a", "b", "d"]
    assert [(e["from"], e["to"]) for e in run.trace["edges"]] == [("a", "b"), ("a", "d"), ("b", "d")]


def test_forks_nest(play, flow):
    wf = flow("a b c x y j z", "a b", "a c", "b x", "b y", "x j", "y j", "c j", "j z", parallel=True)
    run = play(wf, script("a b c x y j z"))
    assert sorted(run.path()) == sorted("abcxyjz")
    assert run.path()[-2:] == ["j", "z"]
    context = run.asked("run")[-2]["context"]
    assert list(context) == ["input", "a", "b", "x", "y", "c"]


def test_a_fork_wider_than_one_step_may_open(play, flow):
    leaves = [f"n{i}" for i in range(150)]
    wf = flow(
        " ".join(["a", *leaves, "z"]),
        *[("a", leaf) for leaf in leaves],
        *[(leaf, "z") for leaf in leaves],
        parallel=True,
    )
    run = play(wf | {"max_steps": 200}, script(" ".join(["a", *leaves, "z"])))
    assert run.path()[-1] == "z"
    assert len(run.path()) == 152


def test_the_join_is_the_first_node_that_every_branch_reaches(play, flow):
    """The first on the way, whatever its name and wherever it stands in the file."""
    wf = flow("a b c d z", "a b", "a c", "b z", "c z", "z d", parallel=True)
    assert play(wf, script("a b c d z")).path() == ["a", "b", "c", "z", "d"]
    longer = flow("a b c d m z", "a b", "a c", "b m", "m z", "c z", "z d", parallel=True)
    assert play(longer, script("a b c d m z")).path() == ["a", "b", "c", "m", "z", "d"]


def test_counts_are_per_run_not_per_branch(prepared, flow):
    """Both branches come to x, on their ways to j: one may go round, then nobody may any more."""
    round_x = ("x", "x", {"when": "again", "max_iterations": 1})
    ways = [(node, "x", {"when": "long"}) for node in "bc"]
    wf = flow("a b c j x", "a b", "a c", *ways, "b j", "c j", round_x, "x j", parallel=True)
    run = prepared(wf, script("a b c j x", 3, b=["x"], c=["x"], x=["x", "x"])).start().go(2)
    b, c = (intent.ref for intent in run.driver.open("model"))
    for branch in (b, c):
        while intents := run.driver.open(ref=branch):
            run.perform(intents[0])
    run.go()
    assert len([call for call in run.asked("evaluate") if call["node"] == "x"]) == 1
    assert run.path() == ["a", "b", "x", "x", "c", "x", "j"]
    run.driver.assert_replays()


def test_counts_outlive_the_branch_that_made_them(play, flow):
    round_b = ("b", "b", {"when": "again", "max_iterations": 1})
    back = ("j", "a", {"max_iterations": 1})
    wf = flow("a b c j", "a b", "a c", round_b, ("b", "j", {"when": "on"}), "c j", back, parallel=True)
    run = play(wf, script("a b c j", 3, b=["b", "j", "j"]))
    offered = [[choice["id"] for choice in call["choices"]] for call in run.asked("evaluate")]
    assert offered == [["b", "j"], ["j"], ["j"]]
    assert run.status == "completed"


FORKED = ("a b", "a c", ("b", "d", {"when": "x"}), "d j", "c j")


def test_a_dry_run_stops_one_branch_and_lets_the_other_finish(play, flow):
    run = play(flow("a b c d j", *FORKED, parallel=True), script("a b c"), {"dryRun": True})
    assert run.path() == ["a", "b", "c"], (
        "what runs beside the decision is completed, nothing more is entered"
    )
    assert [edge["to"] for edge in run.trace["edges"]] == ["b", "c"]
    assert run.of("workflow:halted") == [{"node": "b", "reason": "dry run"}]
    assert run.status == "completed"
    assert run.events[-1]["type"] == "workflow:end"


def test_a_dry_run_ends_although_branches_were_about_to_begin(play, flow):
    """More branches than one step enters; the first comes to its decision without being asked."""
    skip = {"requires": {"output_required": ["input.nothing"], "on_fail": "skip"}}
    names = [f"b{i}" for i in range(60)]
    edges = [f"a {name}" for name in names] + [("b0", "z", {"when": "x"})]
    wf = flow(
        {"a": {}, **{name: skip if name == "b0" else {} for name in names}, "z": {}}, *edges, parallel=True
    )
    run = play(wf, script(" ".join(["a", *names])), {"dryRun": True})
    assert run.status == "completed"
    assert run.events[-1]["type"] == "workflow:end"
    assert "b0" in run.path()


@pytest.mark.parametrize("halted_by", ["failure", "budget", "max_steps", "route"])
def test_a_run_that_stops_leaves_every_node_it_entered(prepared, flow, halted_by):
    more = {
        "failure": {"on_failure": "halt"},
        "budget": {"budget": {"tokens": 5}},
        "max_steps": {"max_steps": 3},
        "route": {},
    }[halted_by]
    edges = FORKED if halted_by != "max_steps" else ("a b", "a c", "b d", "d j", "c j")
    failed = {"status": "failed", "data": {"error": "no"}, "usage": {"input_tokens": 9}}
    fine = {"data": {}, "usage": {"input_tokens": 9}}
    answers = {
        "run": {"a": [{"data": {}}], "b": [failed if halted_by == "failure" else fine]},
        "evaluate": {"b": [{"throw": "no answer"}]},
    }
    run = prepared(flow("a b c d j", *edges, parallel=True, **more), answers).start()
    while (intent := run.next()) is not None and run.status == "running":
        if intent.params.get("node") == "c":
            (intent,) = [i for i in run.driver.open() if i.params.get("node") != "c"]
        run.perform(intent)
    run.driver.assert_replays()
    entered = [event["node"] for event in run.of("node:enter")]
    assert sorted(entered) == sorted(event["node"] for event in run.of("node:exit")) == ["a", "b", "c"]
    assert run.results["c"]["status"] == "failed"
    assert run.results["c"]["data"]["error"].startswith("stopped: ")
    assert run.events[-1]["type"] == "workflow:end"
    assert run.status == "failed"


def test_branches_that_are_asked_at_once_do_not_exceed_a_count(play, flow):
    """Both are offered the edge; whoever answers second finds it used up, and only "x j" is left."""
    again = ("x", "x", {"when": "again", "max_iterations": 1})
    ways = [(node, "x", {"when": "long"}) for node in "bc"]
    wf = flow("a b c j x", "a b", "a c", *ways, "b j", "c j", again, "x j", parallel=True)
    run = play(wf, script("a b c j x", 4, b=["x"], c=["x"], x=["x", "x"]))
    taken = [edge for edge in run.trace["edges"] if (edge["from"], edge["to"]) == ("x", "x")]
    assert len(taken) == 1
    assert [call["node"] for call in run.asked("evaluate")] == ["b", "c", "x", "x"], "both were asked"
    assert run.path() == ["a", "b", "c", "x", "x", "x", "j"]


def test_parallel_edges_need_parallel_true(problems, flow):
    assert [p.code for p in problems(flow("a b c", "a b", "a c")).errors] == ["AMBIGUOUS_EDGES"]
    assert not problems(flow("a b c", "a b", "a c", parallel=True)).errors
    mixed = flow("a b c d", "a b", "a c", ("a", "d", {"when": "x"}), parallel=True)
    assert [p.code for p in problems(mixed).errors] == ["AMBIGUOUS_EDGES"]


DECLARED = {"output": {"type": "object", "properties": {"x": {}, "y": {}}}}


def test_a_warning_about_output_names_reason_and_fields(play, flow):
    wf = flow({"a": DECLARED, "b": {}}, ("a", "b", {"when": "x"}))
    (warned,) = play(wf, {"run": {"a": [{"data": {"x": 1}}]}, "evaluate": {"a": [None]}}).of("node:warning")
    assert (warned["reason"], warned["fields"]) == ("declared output not emitted", ["y"])
    assert "y" in warned["message"]


def test_a_skipped_node_is_not_warned_about(play, flow):
    skip = {"output_required": ["input.nothing"], "on_fail": "skip"}
    wf = flow({"a": {**DECLARED, "requires": skip}, "b": {}}, ("a", "b", {"when": "x"}))
    assert play(wf, {"run": {}, "evaluate": {"a": [None]}}).of("node:warning") == []
