"""What must not grow: records of a long run, and what must not break: odd and huge answers."""

from __future__ import annotations

import itertools
import os
import string
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agent import Skill, TurnReply


def chain(flow, length: int) -> dict[str, Any]:
    names = [f"n{i}" for i in range(length)]
    edges = [f"{a} {b}" for a, b in itertools.pairwise(names)]
    return flow(" ".join(names), *edges, max_steps=length)


def test_the_cost_of_a_node_does_not_grow_with_the_run(prepared, flow):
    """No record of node 600 is larger than one of node 60: the context travels by reference."""
    from treadle.performers.agent.models.scripted import ScriptedModel

    script = {"run": {f"n{i}": [{"data": {"i": i, "text": "x" * 40}}] for i in range(600)}}
    run = prepared(chain(flow, 600), ScriptedModel(script, quiet=True)).start().go()
    assert run.status == "completed"
    sizes = [len(record.body) for record in run.driver.journal]
    early, late = max(sizes[20:80]), max(sizes[500:580])
    assert late < early * 1.1
    assert late < 4096
    assert len(run.result["results"]) == 600
    assert len(run.result["trace"]["steps"]) == 600
    assert run.of("workflow:end")[0]["results"] == run.result["results"]


def test_chunks_give_the_whole_context(play, flow):
    script = {"run": {f"n{i}": [{"data": {"i": i}}] for i in range(40)}}
    run = play(chain(flow, 40), script)
    for index, call in enumerate(run.asked("run")):
        assert call["context"] == {"input": {}, **{f"n{i}": {"i": i} for i in range(index)}}


def test_a_long_run_can_be_cancelled_and_retried(prepared, flow):
    script: dict[str, Any] = {"run": {f"n{i}": [{"data": {"text": "x" * 9000}}] for i in range(150)}}
    script["run"]["n149"] = [{"status": "failed", "data": {"error": "no"}}, {"data": {}}]
    run = prepared(chain(flow, 150), script).start().go(100)
    run.driver.cancel("enough")
    assert run.status == "cancelled"
    assert len(run.results) == 100
    assert run.results["n99"]["data"] == {"error": "stopped: enough"}
    again = prepared(chain(flow, 150), script).start().go()
    assert again.status == "failed"
    assert len(again.result["results"]) == 150
    again.driver.retry()
    again.go()
    assert again.status == "completed"
    assert len(again.asked("run")[-1]["context"]) == 151
    assert again.path()[-2:] == ["n149", "n149"]


def test_many_large_tool_calls_stay_within_one_record(play, flow):
    skill = Skill("s", name="S")
    skill.tool("big")(lambda input, ctx: {"text": "y" * 30_000})
    calls = [{"tool": "big", "input": {"pad": "z" * 5000}}] * 60
    run = play(
        flow({"a": {"skills": ["s"]}}), {"run": {"a": [{"tool_calls": calls, "data": {}}]}}, skills=(skill,)
    )
    assert run.status == "completed"
    assert run.result["results"]["a"]["toolCalls"][59]["output"] == {"text": "y" * 30_000}
    assert max(len(record.body) for record in run.driver.journal) < 400_000


def test_too_many_calls_at_once_fail_the_node(play, flow):
    run = play(flow("a"), {"run": {"a": [{"tool_calls": [{"tool": "x"}] * 200, "data": {}}]}})
    assert "200 tool calls" in run.results["a"]["data"]["error"]


def test_data_that_looks_like_a_reference_is_just_data(play, flow):
    fake = {"store": "blob", "key": "sha256:x", "checksum": "sha256:x", "size": 1, "schema_hint": "agent"}
    run = play(flow("a b", "a b"), {"run": {"a": [{"data": fake}], "b": [{"data": {"in": fake}}]}})
    assert run.asked("run")[1]["context"]["a"] == {**fake, "$inert": True}
    assert run.status == "completed"


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(string.printable, max_size=8)
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


class Odd:
    """Answers with whatever it is given."""

    default_model = small_model = None
    keeps_history = True

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply

    async def turn(self, request: Any) -> TurnReply:
        return TurnReply(**self.reply) if request.turn == 1 else TurnReply(data={})


REPLY = st.fixed_dictionaries(
    {},
    optional={
        "data": JUNK,
        "status": JUNK,
        "text": st.text(max_size=20),
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "usd"]), JUNK),
        "native": JUNK,
        "calls": st.lists(
            st.fixed_dictionaries({"tool": st.text(max_size=5)}, optional={"input": JUNK, "id": JUNK}),
            max_size=3,
        ),
    },
)


@settings(max_examples=int(os.environ.get("TREADLE_FUZZ_REPLIES", "150")), deadline=None)
@given(reply=REPLY)
def test_no_answer_of_a_model_breaks_a_run(prepared, flow, reply):
    run = prepared(flow("a"), Odd(reply)).start().go()
    assert run.status in ("completed", "failed")
    assert run.results["a"]["status"] in ("success", "skipped", "failed")
    assert run.events[-1]["type"] == "workflow:end"
