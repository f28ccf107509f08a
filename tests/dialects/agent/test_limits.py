"""Legal workflows that are wide, wordy or large: none of them runs into the limits of one record."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import Skill
from treadle.kernel.model import INERT, make_reference
from treadle.kernel.values import digest, encode
from treadle.testing.scripted import ScriptedModel

LARGE = "x" * 1_100_000


def large(**more: Any) -> dict[str, Any]:
    return {"data": {"text": LARGE, **more}}


def talkative(size: int) -> Skill:
    skill = Skill("s", name="S")

    @skill.tool("say", idempotent=True)
    def say(input: dict, ctx: Any) -> Any:
        return "y" * size

    return skill


def test_a_fork_of_three_hundred_branches(prepared, flow):
    names = [f"b{i}" for i in range(300)]
    edges = [f"a {name}" for name in names] + [f"{name} z" for name in names]
    wf = flow(" ".join(["a", *names, "z"]), *edges, parallel=True, max_steps=1000)
    run = prepared(wf, {"run": {name: [{"data": {}}] for name in ["a", *names, "z"]}}).start().go()
    assert run.status == "completed"
    assert len(run.trace["steps"]) == 302
    assert len(run.of("route")) == 600
    assert run.path()[-1] == "z"


def test_a_stop_amid_three_hundred_branches(prepared, flow):
    names = [f"b{i}" for i in range(300)]
    wf = flow(" ".join(["a", *names]), *[f"a {name}" for name in names], parallel=True, max_steps=1000)
    run = prepared(wf, {"run": {"a": [{"data": {}}]}}).start()
    for _ in range(2):
        run.perform(run.next())
    run.driver.cancel("enough")
    run.driver.assert_replays()
    assert run.status == "cancelled"
    assert len(run.trace["steps"]) == 301


def test_warnings_of_one_place_are_bounded(play, flow):
    wf = flow(
        {
            "a": {
                "tools": {"allow": [f"t{i}" for i in range(300)]},
                "skills": [f"s{i}" for i in range(300)],
                "skills_optional": True,
            }
        }
    )
    run = play(wf, {"run": {"a": [{"data": {}}]}})
    assert run.status == "completed"
    messages = [warning["message"] for warning in run.of("node:warning")]
    assert len(messages) == 42
    assert messages[20] == messages[41] == "and 280 more"


def test_missing_outputs_of_many_nodes_are_one_warning_more(prepared, flow):
    names = [f"n{i}" for i in range(300)]
    output = {"type": "object", "properties": {"k": {"type": "string"}}}
    edges: list[Any] = [f"{a} {b}" for a, b in itertools.pairwise(names)]
    wf = flow(
        {**{name: {"output": output} for name in names}, "z": {}},
        *edges,
        ("n299", "z", {"when": "x"}),
        max_steps=1000,
    )
    script = {"run": {name: [{"data": {}}] for name in [*names, "z"]}, "evaluate": {"n299": ["z"]}}
    run = prepared(wf, script).start().go()
    assert run.status == "completed"
    assert len(run.of("node:warning")) == 21


VALUE = [{"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}]


@pytest.mark.parametrize(
    ("node", "answer", "status", "error"),
    [
        ({"eval": VALUE}, large(x=1), "success", None),
        ({"eval": VALUE}, large(), "failed", "eval failed: has (value): x is missing"),
        ({}, {"status": "failed", **large()}, "failed", "the model reported failure"),
        ({}, {"status": "failed", **large(error="why")}, "failed", "why"),
        ({}, {"status": "failed", **large(error="y" * 1_100_000)}, "failed", "y" * 1_100_000),
        ({"fail_soft": True}, {"status": "failed", **large()}, "success", "the model reported failure"),
        (
            {"budget": {"tokens": 1}},
            {**large(), "usage": {"input_tokens": 1}},
            "failed",
            "budget exceeded: 1 of 1 tokens",
        ),
    ],
)
def test_large_data_keeps_its_place_whatever_becomes_of_the_node(play, flow, node, answer, status, error):
    wf = flow({"a": node, "b": {}, "c": {}}, ("a", "b", {"when": "x"}), "a c")
    script = {"run": {"a": [answer], "b": [{"data": {}}], "c": [{"data": {}}]}, "evaluate": {"a": [None]}}
    run = play(wf, script)
    assert run.results["a"]["status"] == status
    assert run.results["a"]["data"]["text"] == LARGE
    assert run.results["a"]["data"].get("error") == error
    assert run.path() == ["a", "c"]
    seen = run.asked("run")[-1]["context"]["a"]
    assert seen["text"] == LARGE
    assert ("evals" in seen) is ("eval" in node)
    assert run.events[-1]["type"] == "workflow:end"


def test_too_many_bytes_of_calls_fail_the_node_and_the_route_is_asked(play, flow):
    calls = [{"tool": "say", "input": {"t": "z" * 3000, "n": n}} for n in range(120)]
    entry = {"tool_calls": calls, "data": {}}
    wf = flow({"a": {"skills": ["s"]}, "b": {}}, ("a", "b", {"when": "x"}))
    script = {"run": {"a": [entry], "b": [{"data": {}}]}, "evaluate": {"a": ["b"]}}
    run = play(wf, script, skills=(talkative(3000),))
    assert "exceed 512 KiB" in run.results["a"]["data"]["error"]
    assert run.path() == ["a", "b"]
    types = [event["type"] for event in run.events if event.get("node") == "a"]
    assert types[-1] == "node:exit"
    assert types.count("tool:call") == types.count("tool:result") < 120


def test_a_child_is_not_handed_more_than_a_record_holds(play, flow):
    wf = flow({"a": {}, "b": {"run": {"workflow": "w", "input": {"x": "{{ a.text }}"}}}}, "a b")
    run = play(wf, {"run": {"a": [large()]}})
    assert run.results["b"]["data"]["error"].startswith("the input for w is larger than 256 KiB")


def test_a_long_prompt_of_an_approval_is_cut(prepared, flow):
    wf = flow({"a": {"approve": {"roles": ["r"], "prompt": LARGE}}})
    run = prepared(wf, {"run": {"a": [{"data": {}}]}}).start().go()
    (task,) = run.driver.open("task")
    assert task.params["payload"]["prompt"].endswith("(cut; the whole text is in the run's trace.sources)")


@pytest.mark.house
async def test_a_large_input_is_kept_beside_the_journal(tmp_path, flow):
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(flow({"a": {"requires": {"output_required": ["input.text"]}}})))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    model = engine.models["fake"] = ScriptedModel({"run": {"a": [{"data": {}}]}})
    async with engine:
        engine.deploy(str(file))
        run = await engine.start("wf", {"text": LARGE}, id="r", model="fake")
        await run.result(timeout=30)
        assert (await run.show())["input"] == {"text": LARGE}
        assert (await engine.replay("r"))["equal"]
    assert model.calls[0]["context"]["input"] == {"text": LARGE}


def test_a_run_with_much_in_flight_can_be_stopped(prepared, flow):
    names = [f"b{i}" for i in range(4)]
    wf = flow(
        {"a": {}, **{name: {"skills": ["s"]} for name in names}}, *[f"a {n}" for n in names], parallel=True
    )
    calls = [{"tool": "say", "input": {"t": "z" * 3000, "n": n}} for n in range(70)]
    script = {"run": {"a": [{"data": {}}], **{n: [{"tool_calls": calls, "data": {}}] for n in names}}}
    run = prepared(wf, script, skills=(talkative(3000),)).start()
    while any(len(b["visit"]["calls"]) < 69 for b in active(run) if b["visit"]) or len(active(run)) < 4:
        run.perform(run.next())
    run.driver.cancel("enough")
    assert run.status == "cancelled"
    assert run.events[-1]["type"] == "workflow:end"
    assert len(run.results["b3"]["toolCalls"]) >= 69


def active(run: Any) -> list[Any]:
    return [branch for branch in run.driver.run.state["branches"].values() if branch["id"] != "0"]


async def test_the_context_of_a_loop_costs_the_same_at_every_visit(prepared, flow):
    """Chunks that hold nothing but replaced data are folded away."""
    from treadle.performers.agent.payloads import Payloads

    class Job:
        def __init__(self) -> None:
            self.blobs: dict[str, Any] = {}

        async def load_blob(self, reference: Any) -> Any:
            return self.blobs[reference["checksum"]]

        async def store_blob(self, value: Any, *, schema_hint: str | None = None) -> Any:
            checksum = digest(value)
            self.blobs[checksum] = value
            return make_reference(checksum=checksum, size=len(encode(value)), schema_hint=schema_hint)

    job, payloads, own = Job(), Payloads(), list[Any]()
    longest = 0
    for visit in range(3000):
        own.append([f"n{visit % 20}", {"visit": visit}])
        stored = await payloads.chunk(job, own)
        own = [stored] if stored is not None else own
        longest = max(longest, len(await payloads.items(job, own)) if visit % 50 == 0 else 0)
    context = await payloads.context(job, {}, [], own)
    assert {name: data["visit"] for name, data in context.items() if name != "input"} == {
        f"n{i}": 2980 + i for i in range(20)
    }
    assert longest < 400


async def test_an_input_may_look_like_a_reference(tmp_path, flow):
    odd = make_reference(checksum="sha256:" + "0" * 64, size=3)
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(flow("a")))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    model = engine.models["fake"] = ScriptedModel({"run": {"a": [{"data": {}}]}})
    async with engine:
        engine.deploy(str(file))
        await (await engine.start("wf", odd, model="fake")).result(timeout=30)
    assert model.calls[0]["context"]["input"] == {**odd, INERT: True}, "it is data, and says so"


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_of_any_size_approves(tmp_path, flow, approved):
    file = tmp_path / "flow.json"
    file.write_text(
        json.dumps(flow({"a": {"approve": {"roles": ["lead"], "prompt": "ok?"}}, "b": {}}, "a b"))
    )
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    model = engine.models["fake"] = ScriptedModel({"run": {n: [{"data": {}}] for n in "ab"}})
    async with engine:
        engine.deploy(str(file))
        run = await engine.start("wf", id="r", model="fake")
        await run.settled(timeout=30)
        (task,) = await engine.tasks(run="r")
        answer = {"approved": approved, "note": LARGE}
        await engine.task_complete(task["id"], answer, user="ann", roles=["admin"])
        result = await run.result(timeout=30)
        assert (await engine.replay("r"))["equal"]
    if approved:
        assert model.calls[0]["context"]["approval"] == answer
    else:
        assert len(result["results"]["a"]["data"]["skipped_reason"]) < 5_000


async def test_gc_of_the_source_leaves_a_fork_what_it_needs(tmp_path, flow):
    file = tmp_path / "flow.json"
    node = {"approve": {"roles": ["lead"], "prompt": "ok?"}}
    file.write_text(json.dumps(flow({"a": {}, "b": node}, "a b")))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    model = engine.models["fake"] = ScriptedModel({"run": {"a": [large()], "b": [{"data": {}}]}})
    async with engine:
        engine.deploy(str(file))
        run = await engine.start("wf", id="r", model="fake")
        await run.settled(timeout=30)
        fork = await engine.fork("r", new_id="f")
        await engine.cancel("r")
        assert (await engine.gc(now_ns=2**62))["runs"] == 1
        (task,) = await engine.tasks(run="f")
        await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["admin"])
        await fork.result(timeout=30)
    assert model.calls[-1]["context"]["a"] == {"text": LARGE}
