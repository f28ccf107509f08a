"""Edges by data (`if`): decided before anybody is asked, over what a router is shown."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.dialects.agent import DIALECT
from treadle.lang.text import parse


def script(nodes: str, data: dict[str, Any] | None = None, **evaluate: list[Any]) -> dict[str, Any]:
    return {"run": {id: [{"data": data or {}}] * 3 for id in nodes.split()}, "evaluate": evaluate}


def on(expression: str, **more: Any) -> dict[str, Any]:
    return {"if": {"$": expression}, **more}


REFUND = "classify.category == 'refund' and classify.amount > 100"


@pytest.mark.parametrize(("amount", "way"), [(150, "review"), (50, "pay")])
def test_an_edge_with_if_is_decided_by_the_data_and_no_model_is_asked(play, flow, amount, way):
    wf = flow("classify review pay", ("classify", "review", on(REFUND)), "classify pay")
    run = play(wf, script("classify review pay", {"category": "refund", "amount": amount}))
    assert run.path() == ["classify", way]
    assert run.asked("evaluate") == []
    reason = REFUND if way == "review" else "only path"
    assert run.trace["edges"] == [{"from": "classify", "to": way, "reason": reason}]
    assert run.of("route") == [{"from": "classify", "to": way, "reason": reason}]


def test_the_first_condition_that_holds_wins(play, flow):
    wf = flow("a b c", ("a", "b", on("input.n > 1")), ("a", "c", on("input.n > 0")))
    assert play(wf, script("a b c"), {"n": 2}).path() == ["a", "b"]
    assert play(wf, script("a b c"), {"n": 1}).path() == ["a", "c"]


def test_the_model_is_asked_only_among_the_edges_without_if(play, flow):
    wf = flow("a b c d", ("a", "b", {"when": "angry"}), ("a", "c", on("input.vip")), "a d")
    asked = play(wf, script("a b c d", a=["b"]), {"vip": False})
    assert [choice["id"] for choice in asked.asked("evaluate")[0]["choices"]] == ["b", "d"]
    assert asked.path() == ["a", "b"]
    decided = play(wf, script("a b c d"), {"vip": True})
    assert decided.path() == ["a", "c"]
    assert decided.asked("evaluate") == []


def test_when_no_condition_holds_and_nothing_else_is_there_the_run_ends_and_says_so(play, flow):
    run = play(flow("a b", ("a", "b", on("a.x"))), script("a b"))
    assert run.path() == ["a"]
    assert run.status == "completed"
    assert run.of("workflow:halted") == [{"node": "a", "reason": "no condition applies"}]


def test_a_condition_reads_what_the_router_is_shown(play, flow):
    """E9: of a node with declared output, the declared keys and evals only."""
    nodes = {"a": {"output": {"type": "object", "properties": {"open": {}}}}, "b": {}, "c": {}}
    wf = flow(nodes, ("a", "b", on("a.hidden == 1")), ("a", "c", on("a.open == 1")))
    assert play(wf, script("a b c", {"open": 1, "hidden": 1})).path() == ["a", "c"]


def test_a_condition_reads_the_verdicts_of_evaluators(play, flow):
    eval = [{"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}]
    wf = flow({"a": {"eval": eval}, "b": {}, "c": {}}, ("a", "b", on("a.evals.has.pass")), "a c")
    assert play(wf, script("a b c", {"x": 1})).path() == ["a", "b"]
    assert play(wf, script("a b c", {})).path() == ["a", "c"]


def test_a_condition_sees_that_its_node_failed(play, flow):
    wf = flow("a b c", ("a", "c", on("a.error != null")), "a b")
    run = play(wf, {"run": {"a": [{"throw": "down"}], "c": [{"data": {}}]}})
    assert run.path() == ["a", "c"]
    assert run.status == "failed"


def test_a_node_whose_id_is_no_name_is_reached_through_context(play, flow):
    wf = flow("fetch-logs b c", ("fetch-logs", "b", on("context['fetch-logs'].n > 1")), "fetch-logs c")
    assert play(wf, script("fetch-logs b c", {"n": 2})).path() == ["fetch-logs", "b"]


def test_a_condition_looks_into_data_that_is_kept_by_reference(play, flow):
    wf = flow("a b c", ("a", "b", on("length(a.pad) > 1000 and a.n == 7")), "a c")
    assert play(wf, script("a b c", {"pad": "p" * 300_000, "n": 7})).path() == ["a", "b"]


def test_a_loop_by_data_keeps_its_bound(play, flow):
    wf = flow("a b", ("a", "a", on("a.again", max_iterations=2)), "a b")
    assert play(wf, script("a b", {"again": True})).path() == ["a", "a", "a", "b"]


def test_a_branch_decides_by_its_own_data_and_the_join_sees_all(play, flow):
    wf = flow(
        "a b c d e",
        "a b",
        "a c",
        ("b", "d", on("b.go")),
        "c d",
        ("d", "e", on("b.go and c.go")),
        parallel=True,
    )
    run = play(wf, script("a b c d e", {"go": True}))
    assert run.path()[-2:] == ["d", "e"]


def test_a_dry_run_follows_data_and_stops_where_a_model_would_choose(play, flow):
    wf = flow("a b c", ("a", "b", on("a.go")), ("b", "c", {"when": "x"}))
    run = play(wf, script("a b c", {"go": True}), {"dryRun": True})
    assert run.path() == ["a", "b"]
    assert run.of("workflow:halted") == [{"node": "b", "reason": "dry run"}]


def test_a_condition_without_an_answer_fails_the_run_and_names_the_edge(play, flow):
    wf = flow("a b", ("a", "b", on("a.amount > 100")))
    run = play(wf, script("a b", {"amount": "much"}))
    assert run.status == "failed"
    assert run.error["where"] == "a"
    assert run.error["code"].startswith("EXPRESSION")
    assert "edges[0].if" in run.error["message"]
    assert run.results["a"]["status"] == "success"


@pytest.mark.parametrize(
    ("edge", "code", "said"),
    [
        ({"when": "{{ a.amount > 100 }}"}, "TEMPLATE_IN_WHEN", 'if: {$: "a.amount > 100"}'),
        ({"if": {"$": "a.x >"}}, "BAD_CONDITION", "classify"),
        ({"if": {"$": "b.x and nobody.y"}}, "BAD_CONDITION", "starts with input or a node"),
        ({"if": {"$": "lenght(a.x) > 1"}}, "BAD_CONDITION", "length"),
        ({"if": {"$": "fetch-logs.x"}}, "BAD_CONDITION", "context['fetch-logs']"),
        ({"if": {"$": "a.x"}, "when": "x"}, "IF_AND_WHEN", "Keep one"),
        ({"if": "a.x"}, "SCHEMA", "a mapping"),
    ],
)
def test_what_is_wrong_with_a_condition_is_said_with_its_remedy(problems, flow, edge, code, said):
    found = problems(flow("a b fetch-logs", ("a", "b", edge), "b fetch-logs"))
    assert [problem.code for problem in found.errors] == [code] * len(found.errors)
    assert said in found.errors[0].hint


def test_two_edges_with_if_are_not_ambiguous(problems, flow):
    wf = flow("a b c", ("a", "b", on("a.x")), ("a", "c", on("a.y")))
    assert not problems(wf).errors


def test_a_document_without_edges_is_told_that_edges_are_missing(problems):
    text = "id: a\nname: A\nentry: a\nnodes:\n  a: {name: A, instruction: x}\n"
    assert DIALECT.recognises(parse(text).value)
    found = problems(text)
    assert [(problem.code, problem.message) for problem in found.errors] == [("SCHEMA", "'edges' is missing")]
    assert "edges: []" in found.errors[0].hint
