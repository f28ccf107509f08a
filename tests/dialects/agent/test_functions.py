"""Nodes by Python (`run: module:function`), approvals that see data, budgets that are raised, skills in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed
from treadle.agent import Skill
from treadle.kernel.errors import TreadleError, Unsupported
from treadle.testing import VirtualClock
from treadle.testing.scripted import ScriptedModel

STEPS = """
import asyncio, pathlib
HERE = pathlib.Path(__file__).parent

def total(context):
    return {"total": sum(context["input"]["amounts"])}

async def keyed(context, ctx):
    ctx.progress("adding")
    await asyncio.sleep(0)
    return {"key": ctx.idempotency_key, "node": ctx.node, "seen": sorted(context)}

def plain(context):
    return 7

def flaky(context):
    tries = HERE / "tries"
    done = int(tries.read_text()) if tries.exists() else 0
    tries.write_text(str(done + 1))
    if done < 2:
        raise ValueError(f"try {done}")
    return {"tries": done + 1}

async def slow(context):
    await asyncio.sleep(60)
"""


@pytest.fixture(name="started")
def _started(tmp_path, flow):
    """Starts a workflow from a folder that has `steps.py`."""
    name = f"steps_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(STEPS)

    async def start(engine: Engine, nodes: Any, *edges: Any, input: Any = None, **more: Any) -> Any:
        text = json.dumps(flow(nodes, *edges)).replace("steps:", f"{name}:")
        body = json.loads(text)
        for node in body["nodes"].values():
            if "run" in node:
                del node["instruction"]
        path = tmp_path / "flow.json"
        path.write_text(json.dumps(body))
        return await engine.start(engine.load(str(path))[0], input, **more)

    return start


async def replays(engine: Engine, id: str) -> None:
    assert (await engine.replay(id))["equal"] is True


@pytest.mark.house
async def test_a_functions_result_is_the_nodes_data_and_routes_by_data(tmp_path, started):
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await started(
            engine,
            {"add": {"run": "steps:total"}, "big": {"run": "steps:keyed"}, "small": {"run": "steps:plain"}},
            ("add", "big", {"if": {"$": "add.total > 5"}}),
            "add small",
            input={"amounts": [1, 2, 3]},
        )
        result = await run.result(60)
        assert result["results"]["add"] == {"status": "success", "data": {"total": 6}, "toolCalls": []}
        keyed = result["results"]["big"]["data"]
        assert (keyed["node"], keyed["seen"]) == ("big", ["add", "input"])
        opened = [i for r in await run.journal() for i in r["opened"] if i["params"].get("node") == "big"]
        assert keyed["key"] == opened[0]["id"]
        await replays(engine, run.id)


async def test_what_is_no_object_is_its_result(tmp_path, started):
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await started(engine, {"a": {"run": "steps:plain"}})
        assert (await run.result(60))["results"]["a"]["data"] == {"result": 7}


@pytest.mark.house
async def test_a_function_that_raises_is_called_again_after_its_pause(tmp_path, started):
    clock = VirtualClock()
    async with clock.engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await started(engine, {"a": {"run": "steps:flaky", "retry": {"max": 3, "delay": "1h"}}})
        for _ in range(2):
            await run.settled(until_wait=True, timeout=60)
            await clock.advance(3600)
        result = await run.result(60)
        assert result["results"]["a"]["data"] == {"tries": 3}
        assert [(s["status"], s["retryAttempt"]) for s in result["trace"]["steps"]] == [
            ("failed", 0),
            ("failed", 1),
            ("success", 2),
        ]
        retried = [e async for e in run.events(follow=False) if e["type"] == "node:retry"]
        assert [event["reason"].endswith(f"try {n}") for n, event in enumerate(retried)] == [True, True]
        await replays(engine, run.id)


async def test_a_function_that_keeps_raising_fails_its_node(tmp_path, started):
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await started(engine, {"a": {"run": "steps:flaky", "retry": {"max": 1}}})
        with pytest.raises(RunFailed, match="ValueError: try 1"):
            await run.result(60)
        await replays(engine, run.id)


@pytest.mark.house
async def test_a_function_has_a_time_limit(tmp_path, started):
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await started(engine, {"a": {"run": "steps:slow", "timeout": "200ms"}})
        with pytest.raises(RunFailed, match="did not end in time"):
            await run.result(60)
        await replays(engine, run.id)


@pytest.mark.parametrize("name", ["steps:nothing", "no_such_module_at_all:f"])
async def test_a_function_that_is_not_there_fails_its_node_at_once(tmp_path, started, name):
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await started(engine, {"a": {"run": name, "retry": {"max": 5}}})
        with pytest.raises(RunFailed):
            await run.result(60)
        assert len((await run.show())["state"]["trace"]["steps"]) == 1


@pytest.mark.house
async def test_a_registered_function_goes_by_its_name(tmp_path, started):
    engine = Engine(f"sqlite:///{tmp_path}/t.db")

    @engine.transport("billing")
    def bill(context: Any) -> Any:
        return {"billed": context["input"]["n"]}

    async with engine:
        run = await started(engine, {"a": {"run": "billing"}}, input={"n": 3})
        assert (await run.result(60))["results"]["a"]["data"] == {"billed": 3}


@pytest.mark.parametrize(
    ("node", "code"),
    [
        ({"run": "steps:f", "instruction": "x"}, "RUN_FUNCTION"),
        ({"run": "steps:f", "skills": ["files"]}, "RUN_FUNCTION"),
        ({"run": "not a name"}, "RUN_FUNCTION"),
        ({"instruction": "x", "timeout": "5s"}, "RUN_FUNCTION"),
        ({"instruction": "x", "retry": {"max": 1, "delay": "5s"}}, "RUN_FUNCTION"),
        ({"run": "steps:f", "timeout": "soon"}, "BAD_DURATION"),
        ({"instruction": "x", "approve": {"roles": ["r"], "prompt": "p", "show": ["zz.x"]}}, "APPROVE_SHOW"),
    ],
)
def test_what_a_function_or_an_approval_cannot_have_is_said(problems, node, code):
    wf = {"id": "w", "name": "W", "entry": "a", "nodes": {"a": {"name": "A", **node}}, "edges": []}
    assert [problem.code for problem in problems(wf).errors] == [code]


# --- approvals ---


@pytest.mark.house
async def test_an_approver_sees_the_data_and_the_prompt_filled_in(tmp_path, flow):
    approve = {
        "roles": ["lead"],
        "prompt": "Refund {{ classify.amount }} to {{ input.who }}? {{ classify.items }}",
        "show": ["classify.amount", "input.who", "classify.nothing"],
    }
    wf = flow({"classify": {}, "pay": {"approve": approve}}, "classify pay")
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    model = ScriptedModel(
        {"run": {"classify": [{"data": {"amount": 120, "items": ["a"]}}], "pay": [{"data": {}}]}}
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(engine.load(str(tmp_path / "flow.json"))[0], {"who": "Ann"}, model=model)
        await run.settled(timeout=60)
        (task,) = await engine.tasks(run=run.id)
        assert task["payload"]["prompt"] == "Refund 120 to Ann? a"
        assert task["payload"]["show"] == {
            "classify.amount": 120,
            "input.who": "Ann",
            "classify.nothing": None,
        }
        await engine.task_claim(task["id"], user="ann", roles=["lead"])
        await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["lead"])
        await run.result(60)
        await replays(engine, run.id)


async def test_a_result_that_waits_for_a_person_says_for_whom(tmp_path, flow):
    wf = flow({"a": {"approve": {"roles": ["lead"], "prompt": "Go?"}}})
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(engine.load(str(tmp_path / "flow.json"))[0], model=ScriptedModel({}))
        await run.settled(timeout=60)
        with pytest.raises(TimeoutError, match=r"waits for task a \(lead\)"):
            await run.result(timeout=0.05)


# --- budgets ---


@pytest.mark.house
async def test_a_retry_raises_the_budget_and_the_journal_has_it(tmp_path, flow):
    spends = {"data": {}, "usage": {"input_tokens": 60, "output_tokens": 60}}
    wf = flow("a b", "a b", budget={"tokens": 100})
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        model = ScriptedModel({"run": {"a": [spends], "b": [spends]}})
        run = await engine.start(engine.load(str(tmp_path / "flow.json"))[0], model=model)
        with pytest.raises(RunFailed, match="120 of 100 tokens"):
            await run.result(60)
        for refused in (
            {"tokens": 110},
            {"tokens": 0},
            {"euro": 1},
            {"nodes": {"zz": {"tokens": 1}}},
            "much",
            {},
        ):
            with pytest.raises(Unsupported):
                await engine.retry(run.id, budget=refused)
        await engine.retry(run.id, budget={"tokens": 500}, by="ann")
        assert (await run.result(60))["results"]["b"]["status"] == "success"
        (retried,) = [r["event"] for r in await run.journal() if r["kind"] == "retry"]
        assert (retried["how"], retried["by"]) == ({"budget": {"tokens": 500}}, "ann")
        await replays(engine, run.id)


async def test_a_retry_raises_the_budget_of_one_node(tmp_path, flow):
    call = {"tool_calls": [{"tool": "list_files", "input": {}}], "data": {}, "usage": {"input_tokens": 50}}
    (tmp_path / "flow.json").write_text(
        json.dumps(flow({"a": {"skills": ["files"], "budget": {"tokens": 10}}}))
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        model = ScriptedModel({"run": {"a": [call, call]}})
        run = await engine.start(engine.load(str(tmp_path / "flow.json"))[0], model=model)
        with pytest.raises(RunFailed, match="50 of 10 tokens"):
            await run.result(60)
        await engine.retry(run.id, budget={"nodes": {"a": {"tokens": 60}}})
        await run.result(60)
        await replays(engine, run.id)


@pytest.mark.house
async def test_a_budget_is_raised_on_a_run_that_waits_without_a_retry(tmp_path, flow):
    spends = {"data": {}, "usage": {"input_tokens": 60, "output_tokens": 60}}
    wf = flow({"a": {}, "b": {"approve": {"roles": ["lead"], "prompt": "Go?"}}, "c": {}}, "a b", "b c")
    wf["budget"] = {"tokens": 130}
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        model = ScriptedModel({"run": {"a": [spends], "b": [spends], "c": [spends]}})
        run = await engine.start(engine.load(str(tmp_path / "flow.json"))[0], model=model)
        assert (await run.settled(timeout=60))["status"] == "waiting"
        before = (await run.show())["version_no"]
        for refused in ({"budget": {"tokens": 110}}, {"budget": {"tokens": 900}, "more": 1}, {"ctx": 1}, {}):
            with pytest.raises(Unsupported):
                await engine.patch(run.id, refused)
        assert (await run.show())["version_no"] == before, "what is refused is not recorded"
        await engine.patch(run.id, {"budget": {"tokens": 500}}, by="ann")
        (task,) = await engine.tasks()
        await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["admin"])
        assert (await run.result(60))["results"]["c"]["status"] == "success"
        told = [event async for event in run.events(follow=False) if event["type"] == "budget:raised"]
        assert [(event["budget"], event["by"]) for event in told] == [({"tokens": 500}, "ann")]
        with pytest.raises(TreadleError, match=r"ended|completed"):
            await engine.patch(run.id, {"budget": {"tokens": 900}})
        await replays(engine, run.id)


# --- models and skills ---


@pytest.mark.house
async def test_a_model_object_answers_the_run_it_was_given_to(tmp_path, flow):
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        definition = engine.load(str(tmp_path / "flow.json"))[0]
        models = [ScriptedModel({"run": {"a": [{"data": {"n": n}}]}}) for n in range(2)]
        runs = [await engine.start(definition, model=model) for model in models]
        assert [(await run.result(60))["results"]["a"]["data"]["n"] for run in runs] == [0, 1]
        assert [len(model.calls) for model in models] == [1, 1]
        with pytest.raises(TreadleError, match="turn, choose and ask"):
            await engine.start(definition, model=object())  # type: ignore[arg-type]


@pytest.mark.at_home("a start is not refused where somebody else does the work")
async def test_a_run_that_can_ask_nobody_is_refused_where_the_work_is_done(tmp_path, flow, monkeypatch):
    for name in ("TREADLE_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        with pytest.raises(TreadleError, match="no model is chosen") as raised:
            await engine.start(engine.load(str(tmp_path / "flow.json"))[0])
        assert raised.value.code == "UNKNOWN_PROVIDER"
        assert await engine.list() == []
    async with Engine(f"sqlite:///{tmp_path}/t.db", work=False) as engine:
        await engine.start(engine.load(str(tmp_path / "flow.json"))[0])
        assert len(await engine.list()) == 1, "a worker may have one"


SKILLS = """
from treadle.agent import Skill
net = Skill("net", name="Net")

@net.tool("ping", idempotent=True)
def ping(input, ctx):
    return {"pong": input["host"]}

other = Skill("other", instruction="Be brief.")
"""


@pytest.mark.house
async def test_skills_of_a_file_are_recorded_and_loaded_by_whoever_goes_on(tmp_path, flow):
    (tmp_path / "skills.py").write_text(SKILLS)
    (tmp_path / "flow.json").write_text(json.dumps(flow({"a": {"skills": ["net"]}})))
    call = {"tool_calls": [{"tool": "ping", "input": {"host": "db1"}}], "data": {}}
    (tmp_path / "script.json").write_text(json.dumps({"run": {"a": [call]}}))
    store = f"sqlite:///{tmp_path}/t.db"
    async with Engine(store, work=False) as engine:
        run = await engine.start(
            engine.load(str(tmp_path / "flow.json"))[0],
            model=f"scripted:{tmp_path}/script.json",
            skills=[f"{tmp_path}/skills.py:net"],
        )
    async with Engine(store) as engine:
        result = await (await engine.run(run.id)).result(60)
        assert result["results"]["a"]["toolCalls"][0]["output"] == {"pong": "db1"}
        await replays(engine, run.id)


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        (None, "skills.py", "there is no file"),
        ("x = 1", "skills.py", "holds no skill"),
        (SKILLS, "skills.py:nobody", "has no 'nobody'"),
        ("raise ValueError('no')", "skills.py", "ValueError: no"),
    ],
)
async def test_a_file_without_usable_skills_is_refused_before_there_is_a_run(
    tmp_path, flow, text, target, said
):
    if text is not None:
        (tmp_path / "skills.py").write_text(text)
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        with pytest.raises(TreadleError, match=said):
            await engine.start(
                engine.load(str(tmp_path / "flow.json"))[0],
                model=ScriptedModel({}),
                skills=[str(Path(tmp_path) / target)],
            )
        assert await engine.list() == []


def test_a_node_whose_skill_is_nowhere_fails_before_its_first_turn(play, flow):
    run = play(flow({"a": {"skills": ["github"]}, "b": {}}, "a b"), {"run": {"b": [{"data": {}}]}})
    assert run.results["a"]["status"] == "failed"
    assert "'github' is not known here" in run.results["a"]["data"]["error"]
    assert "skills_optional" in run.results["a"]["data"]["error"]
    assert [call["node"] for call in run.asked("run")] == ["b"], "routing goes on"


def test_with_skills_optional_it_runs_without_and_warns(play, flow):
    run = play(flow({"a": {"skills": ["github"], "skills_optional": True}}), {"run": {"a": [{"data": {}}]}})
    assert run.status == "completed"
    assert "runs without it" in run.of("node:warning")[0]["message"]


def test_a_call_of_a_tool_that_is_nowhere_is_an_error_and_a_warning(play, flow):
    skill = Skill("s")
    skill.tool("x")(lambda input, ctx: 1)
    call = {"tool_calls": [{"tool": "create_pr", "input": {}}], "data": {}}
    run = play(flow({"a": {"skills": ["s"]}}), {"run": {"a": [call]}}, skills=(skill,))
    (made,) = run.results["a"]["toolCalls"]
    assert "output" not in made
    assert "no tool 'create_pr'" in made["error"]
    assert run.of("tool:result")[0]["output"] == {"error": made["error"]}
    assert "create_pr" in run.of("node:warning")[0]["message"]
