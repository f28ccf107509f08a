"""Workflows that nobody would write, run to their ends: any graph, any features, any answers.

What must hold for all of them: the run ends (or waits for a person), every event is in the order
of the specification, results and trace agree, and the journal replays.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agent import AskReply, ChooseReply, ProviderError, Skill, TurnReply

IDS = ["a", "b", "c", "d", "e"]
FEATURES: list[dict[str, Any]] = [
    {},
    {},
    {"skills": ["s"]},
    {"skills": ["s"], "max_turns": 1},
    {"skills": ["s"], "tools": {"deny": ["t"]}, "in_doubt": "skip"},
    {"fail_soft": True},
    {"eval": [{"name": "v", "kind": "value", "rule": {"output_required": ["x"]}}]},
    {"eval": [{"name": "j", "kind": "judge", "rubric": "r"}], "retry": {"max": 2, "instruction": {"auto": True}}},
    {"eval": [{"name": "f", "kind": "function", "rule": {"any_tool_called": ["t"]}}], "retry": {"max": 1}},
    {"output": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, "retry": {"max": 1}},
    {"requires": {"output_required": ["a.x"], "on_fail": "skip"}},
    {"requires": {"output_matches": [{"path": "any:a.l[*]", "equals": 1}]}},
    {"budget": {"tokens": 3}},
    {"approve": {"roles": ["r"], "prompt": "p", "on_deny": "fail"}},
]  # fmt: skip
EDGE = st.tuples(
    st.sampled_from(IDS),
    st.sampled_from(IDS),
    st.sampled_from([None, None, "x", ""]),
    st.sampled_from([None, 1, 2]),
)


@st.composite
def workflows(draw: Any) -> dict[str, Any]:
    ids = IDS[: draw(st.integers(1, 5))]
    nodes = {id: {"name": id, "instruction": f"Do {id}.", **draw(st.sampled_from(FEATURES))} for id in ids}
    edges = []
    for source, target, when, limit in draw(st.lists(EDGE, max_size=9)):
        if source in ids and target in ids:
            edge: dict[str, Any] = {"from": source, "to": target}
            if when is not None:
                edge["when"] = when
            if limit is not None or target <= source:
                edge["max_iterations"] = limit or 1
            edges.append(edge)
    # Every node can be reached, whatever else there is.
    for before, id in itertools.pairwise(ids):
        if not any(edge["to"] == id and edge["from"] < id for edge in edges):
            edges.append({"from": before, "to": id, "when": "on"})
    return {
        "id": "wf",
        "name": "W",
        "entry": ids[0],
        "nodes": nodes,
        "edges": edges,
        "parallel": draw(st.booleans()),
        "max_steps": draw(st.sampled_from([3, 200])),
        "on_failure": draw(st.sampled_from(["continue", "halt"])),
        **draw(st.sampled_from([{}, {"budget": {"tokens": 20}}])),
    }


class Whim:
    """Answers by chance, the same each time for the same seed."""

    default_model = small_model = None
    keeps_history = True

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    async def turn(self, request: Any) -> TurnReply:
        pick = self.chance.random()
        if pick < 0.1:
            raise ProviderError("down", retryable=pick < 0.05)
        usage = {"input_tokens": self.chance.choice([0, 1, 2])}
        if pick < 0.35:
            calls = [
                {"id": "1", "tool": self.chance.choice(["t", "nobody"]), "input": {}}
            ] * self.chance.choice([1, 2])
            return TurnReply(calls=calls, text="hm", usage=usage)
        data = self.chance.choice([{}, {"x": 1}, {"x": "1"}, {"l": [1, 2]}, {"error": "e"}, "text", None])
        return TurnReply(
            data=data, status=self.chance.choice(["success"] * 5 + ["failed", "skipped", "odd"]), usage=usage
        )

    async def choose(self, request: Any) -> ChooseReply:
        if self.chance.random() < 0.05:
            raise ProviderError("down")
        ids = [choice["id"] for choice in request.choices]
        return ChooseReply(
            choice=self.chance.choice([*ids, *ids, None, "nowhere"]), usage={"input_tokens": 1}
        )

    async def ask(self, request: Any) -> AskReply:
        return AskReply(
            text=self.chance.choice(["yes", "no", "no: bad", "what?", ""]), usage={"output_tokens": 1}
        )


def tool() -> Skill:
    skill = Skill("s", name="S")
    skill.tool("t")(lambda input, ctx: {"ok": True})
    return skill


def drive(run: Any, chance: random.Random) -> None:
    """Performs open work in any order, answers people, moves the clock."""
    for _ in range(3000):
        if run.status in ("completed", "failed"):
            return
        open_ = run.driver.open()
        assert open_, "a run that has not ended waits for something"
        intent = chance.choice(open_)
        if intent.kind == "task":
            run.driver.ok(intent, chance.choice([{"approved": True}, {"approved": False, "note": "no"}, {}]))
        elif intent.kind == "timer":
            run.driver.advance(5)
        else:
            run.perform(intent)
    raise AssertionError("the run does not end")


def check_order(events: list[dict[str, Any]], parallel: bool) -> None:
    types = [event["type"] for event in events]
    assert types[:2] == ["workflow:start", "sources:resolved"]
    assert types[-1] == "workflow:end"
    assert types.count("workflow:start") == types.count("workflow:end") == 1
    inside: dict[str, int] = {}
    for event in events[2:-1]:
        node, kind = event.get("node"), event["type"]
        if kind == "node:enter":
            inside[node] = inside.get(node, 0) + 1
            assert parallel or inside[node] == 1
        elif kind in ("tool:call", "tool:result", "node:retry", "node:waiting"):
            assert inside.get(node), f"{kind} outside of its node"
        elif kind == "node:exit":
            inside[node] -= 1
        elif kind == "route":
            assert parallel or not inside.get(event["from"])


@settings(max_examples=int(os.environ.get("TREADLE_FUZZ_RUNS", "125")), deadline=None)
@given(wf=workflows(), seed=st.integers(0, 10**6))
def test_any_workflow_with_any_answers_ends_in_good_order(prepared, problems, wf, seed):
    if problems(wf).errors:
        return
    run = prepared(wf, Whim(seed), skills=(tool(),)).start()
    drive(run, random.Random(seed))
    run.driver.assert_replays()
    check_order(run.events, wf["parallel"])
    results, trace = run.results, run.trace
    assert {step["node"] for step in trace["steps"]} == set(results)
    last = {step["node"]: step["status"] for step in trace["steps"]}
    assert last == {node: result["status"] for node, result in results.items()}
    failed = any(result["status"] == "failed" for result in results.values())
    assert run.status == "failed" or not failed
    assert run.driver.view()["stats"]["usage"]["input_tokens"] >= 0
