"""Agent runs on the real engine and store: observers, secrets, kill -9, resuming, children."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle import Engine, RunFailed
from treadle.agent import Skill
from treadle.kernel.model import Receipt
from treadle.testing.scripted import ScriptedModel

# Also on PostgreSQL, with a worker behind NATS.
pytestmark = pytest.mark.house

SECRET = "tr0ub4dor-and-3-horses"


def save(folder: Path, wf: dict[str, Any], name: str = "flow") -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(wf))
    return str(file)


def engine_on(folder: Path, wf: dict[str, Any], script: Any = None, *skills: Skill) -> Engine:
    engine = Engine(f"sqlite:///{folder}/t.db")
    for skill in skills:
        engine.register(skill)
    if script is not None:
        engine.models["fake"] = ScriptedModel(script)
    engine.deploy(save(folder, wf))
    return engine


def mail(sent: list[Any]) -> Skill:
    skill = Skill(
        "mail", name="Mail", config={"MAIL_KEY": {"description": "key", "required": True, "env": "MAIL_KEY"}}
    )

    @skill.tool("send", idempotent=True)
    async def send(input: dict, ctx: Any) -> Any:
        sent.append(ctx.config["MAIL_KEY"])
        ctx.logger.warning("using %s", ctx.config["MAIL_KEY"])
        try:
            raise KeyError(ctx.config["MAIL_KEY"])
        except KeyError:
            ctx.logger.exception("lost")
        await ctx.progress(f"with {ctx.config['MAIL_KEY']}")
        if input.get("leak") == "error":
            raise RuntimeError(f"bad key {ctx.config['MAIL_KEY']}")
        return {"key": ctx.config["MAIL_KEY"], "nested": [f"x{ctx.config['MAIL_KEY']}y"]}

    return skill


async def test_observers_may_raise_and_still_see_everything_in_order(tmp_path, flow):
    seen: list[Any] = []

    def broken(event: dict[str, Any]) -> None:
        seen.append(event)
        raise RuntimeError("observer")

    async def slow(event: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        later.append(event)

    later: list[Any] = []
    logging.getLogger("treadle.observer").disabled = True
    engine = engine_on(tmp_path, flow("a b", "a b"), {"run": {"a": [{"data": {}}], "b": [{"data": {}}]}})
    engine.observe(broken)
    engine.observe(slow)
    async with engine:
        run = await engine.start("wf", model="fake")
        result = await run.result(timeout=30)
        stored = [event async for event in run.events()]
    logging.getLogger("treadle.observer").disabled = False
    types = [event["type"] for event in seen]
    assert types == [
        "workflow:start",
        "sources:resolved",
        "node:enter",
        "node:exit",
        "route",
        "node:enter",
        "node:exit",
        "workflow:end",
    ]
    assert [event["seq"] for event in seen] == list(range(1, 9))
    assert [event["type"] for event in later] == types
    assert [event["type"] for event in stored] == types
    assert seen[-1]["results"] == result["results"]


async def test_nothing_follows_the_end_of_a_run_not_even_a_late_answer(tmp_path, flow):
    wf = flow("a b c", "a b", "a c", parallel=True, on_failure="halt")
    script = {
        "run": {
            "a": [{"data": {}}],
            "b": [{"status": "failed", "data": {"error": "no"}}],
            "c": [{"data": {}, "delay": 20}],
        }
    }
    async with engine_on(tmp_path, wf, script) as engine:
        run = await engine.start("wf", id="r", model="fake")
        with pytest.raises(RunFailed):
            await run.result(timeout=30)
        opened = [intent for record in await run.journal() for intent in record.get("opened", [])]
        (cut,) = [intent["id"] for intent in opened if intent["params"].get("node") == "c"]
        answer = await engine.submit("r", Receipt(intent=cut, status="ok", value={"data": {}}))
        found = [event["type"] async for event in run.events()]
        late = [line["code"] for line in await engine.diagnostics("r")]
    assert answer["stale"] is True
    assert late == ["receipt.stale"]
    assert found.count("node:exit") == 3
    assert found[-1] == "workflow:end"


async def test_what_a_tool_an_observer_or_a_model_changes_is_its_own(tmp_path, flow):
    skill = Skill("s", name="S")

    @skill.tool("pops", idempotent=True)
    def pops(input: dict, ctx: Any) -> Any:
        return input.pop("q")

    class Careless(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            (await request.context()).clear()
            for value in (await request.context()).values():
                value.clear()
            reply = await super().turn(request)
            for told in request.results:
                told["output"].clear()
            return reply

    wf = flow({"a": {"skills": ["s"]}, "b": {}}, "a b")
    called = {"tool_calls": [{"tool": "pops", "input": {"q": {"w": 1}}}], "data": {"deep": {"x": 1}}}
    engine = engine_on(tmp_path, wf, None, skill)
    engine.models["fake"] = Careless({"run": {"a": [called], "b": [{"data": {}}]}})
    engine.observe(lambda event: [value.clear() for value in event.values() if isinstance(value, dict)])
    async with engine:
        run = await engine.start("wf", {"k": {"l": 1}}, id="r", model="fake")
        result = await run.result(timeout=30)
        assert (await engine.replay("r"))["equal"]
    assert result["results"]["a"]["toolCalls"] == [
        {"tool": "pops", "input": {"q": {"w": 1}}, "output": {"w": 1}}
    ]
    assert engine.models["fake"].calls[-1]["context"] == {"input": {"k": {"l": 1}}, "a": {"deep": {"x": 1}}}


async def test_a_tool_that_waits_for_a_cancelled_task_has_failed(tmp_path, flow):
    skill = Skill("s", name="S")

    @skill.tool("gives_up", idempotent=True)
    async def gives_up(input: dict, ctx: Any) -> Any:
        task = asyncio.ensure_future(asyncio.sleep(9))
        task.cancel()
        await task

    script = {"run": {"a": [{"tool_calls": [{"tool": "gives_up", "input": {}}], "data": {}}]}}
    async with engine_on(tmp_path, flow({"a": {"skills": ["s"]}}), script, skill) as engine:
        run = await engine.start("wf", model="fake")
        result = await run.result(timeout=30)
    assert result["results"]["a"]["toolCalls"][0]["error"] == "CancelledError"


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_observer_hears_of_a_call_before_it_is_made(tmp_path, flow, idempotent):
    order: list[str] = []
    skill = Skill("s", name="S")

    @skill.tool("t", idempotent=idempotent)
    async def t(input: dict, ctx: Any) -> Any:
        order.append("made")

    calls = [{"tool": "t", "input": {}}] * 3
    engine = engine_on(
        tmp_path, flow({"a": {"skills": ["s"]}}), {"run": {"a": [{"tool_calls": calls, "data": {}}]}}, skill
    )
    engine.observe(lambda event: order.append(event["type"]) if event["type"].startswith("tool") else None)
    async with engine:
        await (await engine.start("wf", model="fake")).result(timeout=30)
    assert order == ["tool:call", "made", "tool:result"] * 3


async def test_a_failed_run_raises_with_its_result(tmp_path, flow):
    async with engine_on(
        tmp_path, flow("a"), {"run": {"a": [{"status": "failed", "data": {"error": "x"}}]}}
    ) as engine:
        run = await engine.start("wf", model="fake")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=30)
    assert caught.value.error["code"] == "NODE_FAILED"
    assert caught.value.result["results"]["a"]["status"] == "failed"


async def test_secrets_never_leave_the_worker(tmp_path, flow, caplog):
    sent: list[Any] = []
    calls = [{"tool": "send", "input": {}}, {"tool": "send", "input": {"leak": "error"}}]
    wf = flow({"a": {"skills": ["mail"]}, "b": {}}, "a b")
    model = {
        "run": {"a": [{"tool_calls": calls, "data": {"echo": SECRET}}], "b": [{"throw": f"refused {SECRET}"}]}
    }
    engine = engine_on(tmp_path, wf, model, mail(sent))
    told: list[Any] = []
    engine.observe(told.append)
    async with engine:
        run = await engine.start("wf", id="r1", model="fake", config={"MAIL_KEY": SECRET})
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=30)
        shown = await run.show()
        events = [event async for event in run.events()]
    assert sent == [SECRET, SECRET], "the tool itself got the real value"
    assert shown["state"]["results"]["a"]["toolCalls"][0]["output"]["key"] == "[redacted:MAIL_KEY]"
    assert "using [redacted:MAIL_KEY]" in caplog.text
    assert SECRET not in caplog.text
    everything = json.dumps([shown, events, told, caught.value.result, caught.value.error], default=str)
    assert SECRET not in everything
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


async def approve_and_settle(engine: Engine, id: str) -> dict[str, Any]:
    (task,) = await engine.tasks(run=id)
    await engine.task_claim(task["id"], user="ann", roles=["lead"])
    await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["lead"])
    run = await engine.run(id)
    return await run.settled(timeout=30)


@pytest.mark.parametrize("missing", ["skill", "config"])
async def test_a_call_that_cannot_be_made_here_stays_open(tmp_path, flow, missing, caplog):
    """Started where the skill was; taken on by a process without it (or without its key); ended by
    one that has both again."""
    sent: list[Any] = []
    approve = {"approve": {"roles": ["lead"], "prompt": "Send?"}}
    wf = flow({"a": {"skills": ["mail"], **approve}, "b": {}}, "a b")
    script = {
        "run": {"a": [{"tool_calls": [{"tool": "send", "input": {}}], "data": {"n": 1}}], "b": [{"data": {}}]}
    }
    async with engine_on(tmp_path, wf, script, mail(sent)) as engine:
        run = await engine.start("wf", id="r1", model="fake", config={"MAIL_KEY": SECRET})
        assert (await run.settled(timeout=30))["status"] == "waiting"
    with_skill = [mail(sent)] if missing == "config" else []
    async with engine_on(tmp_path, wf, script, *with_skill) as poor:
        shown = await approve_and_settle(poor, "r1")
        assert [(wait["kind"], wait["name"]) for wait in shown["waiting_for"]] == [("call", "a: send")]
        assert sent == []
    assert any("stays open" in record.message for record in caplog.records)
    again = engine_on(tmp_path, wf, script, mail(sent))
    # Configuration is never recorded: whoever takes the run on gives it anew, before recovery starts.
    again.configs["r1"] = {"MAIL_KEY": SECRET}
    async with again:
        await (await again.run("r1")).result(timeout=30)
    assert sent == [SECRET]


async def test_a_node_runs_another_workflow(tmp_path, flow):
    parent = flow("a")
    parent["id"] = "parent"
    parent["nodes"]["a"] = {"name": "A", "run": {"workflow": "wf", "input": {"n": "{{ input.n }}"}}}
    engine = engine_on(tmp_path, flow("x"), {"run": {"x": [{"data": {"ok": True}}]}})
    engine.deploy(save(tmp_path, parent, "parent"))
    async with engine:
        run = await engine.start("parent", {"n": 7}, model="fake")
        shown = await run.settled(timeout=30)
    assert shown["status"] in ("completed", "failed"), shown
    child = shown["state"]["results"]["a"]
    assert child["status"] == "success", child
    assert child["data"]["results"]["x"]["data"] == {"ok": True}
    assert len(shown["children"]) == 1


async def test_every_workflow_is_a_tool(tmp_path, flow):
    inner = flow("x")
    outer = flow({"a": {"skills": ["workflows"]}}) | {"id": "outer"}
    calls = [
        {"tool": "list_workflows", "input": {}},
        {"tool": "run_workflow", "input": {"workflow": "wf", "input": {"k": 1}}},
        {"tool": "run_workflow", "input": {"workflow": "nobody"}},
    ]
    script = {"run": {"x": [{"data": {"ok": 1}}], "a": [{"tool_calls": calls, "data": {}}]}}
    engine = engine_on(tmp_path, inner, script)
    engine.deploy(save(tmp_path, outer, "outer"))
    async with engine:
        result = await (await engine.start("outer", model="fake")).result(timeout=30)
    listed, ran, missing = result["results"]["a"]["toolCalls"]
    assert {row["name"] for row in listed["output"]} == {"wf", "outer"}
    assert ran["output"]["result"]["results"]["x"]["data"] == {"ok": 1}, ran
    assert "nobody" in missing["error"]


# --- kill -9 ------------------------------------------------------------------------------------

CHILD = """
import asyncio, json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from killed import engine_for

async def main():
    folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
    engine = engine_for(folder, idempotent=kill_at > 0, deadly=kill_at == 0)
    def observe(event):
        if event["seq"] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    engine.observe(observe)
    async with engine:
        run = await engine.start("wf", id="r1", model="scripted:" + str(folder / "script.json"))
        await run.result(timeout=60)

asyncio.run(main())
"""


async def die(folder: Path, kill_at: int) -> None:
    program = CHILD.format(here=str(Path(__file__).parent))
    child = await asyncio.to_thread(nursery.run, ["-c", program, folder, str(kill_at)])
    assert child.returncode == -signal.SIGKILL, child.stderr


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]


@pytest.mark.at_home("kills a process of its own on one file")
@pytest.mark.parametrize("kill_at", [1, 5, 7, 10])
async def test_a_killed_process_is_resumed_by_the_next(tmp_path, kill_at):
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)
    from killed import FLOW, SCRIPT, engine_for

    undisturbed, killed = tmp_path / "a", tmp_path / "b"
    shown: dict[str, Any] = {}
    for folder in (undisturbed, killed):
        folder.mkdir()
        (folder / "flow.json").write_text(json.dumps(FLOW))
        (folder / "script.json").write_text(json.dumps(SCRIPT))
    await die(killed, kill_at)
    for folder in (undisturbed, killed):
        async with engine_for(folder) as engine:
            run = await engine.start("wf", id="r1", model=f"scripted:{folder / 'script.json'}")
            await run.result(timeout=60)
            document = await run.show()
            events = [
                {**e, "at": None, "record": None} async for e in run.events() if e["type"] != "node:progress"
            ]
            numbers = [event["seq"] async for event in run.events()]
            assert numbers == list(range(1, len(numbers) + 1)), "without gaps, progress and all"
            for number, event in enumerate(events):  # progress of a repeated turn may be there twice
                event["seq"] = number
            shown[folder.name] = [document["state"], events]
            assert (await engine.replay("r1"))["equal"] is True
    assert json.loads(json.dumps(shown["a"]).replace(str(undisturbed), str(killed))) == shown["b"]
    sent = (killed / "sent.txt").read_text().split()
    assert len(set(sent)) == 1, "the tool always saw the same idempotency key"
    counts: dict[Any, int] = {}
    for asked in logged(killed):
        key = (asked["op"], asked.get("node"), asked.get("turn"))
        counts[key] = counts.get(key, 0) + 1
    assert sum(counts.values()) <= len(logged(undisturbed)) + 1, "at most what was in flight is asked again"


@pytest.mark.at_home("a process of its own dies on one file")
@pytest.mark.parametrize("decision", ["retry", "skip", "fail"])
async def test_a_process_that_dies_inside_a_tool_leaves_a_question(tmp_path, decision):
    """The tool took effect and is not idempotent: nobody but a person may repeat it."""
    sys.path.insert(0, str(Path(__file__).parent))
    from killed import FLOW, SCRIPT, engine_for

    (tmp_path / "flow.json").write_text(json.dumps(FLOW))
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    await die(tmp_path, 0)
    async with engine_for(tmp_path, idempotent=False) as engine:
        run = await engine.run("r1")
        shown = await run.settled(timeout=60)
        assert shown["status"] == "waiting"
        assert len((tmp_path / "sent.txt").read_text().split()) == 1, "it was not repeated"
        (task,) = await engine.tasks(run="r1")
        assert (task["name"], task["payload"]["tool"]) == ("in_doubt", "send")
        await engine.task_claim(task["id"], user="ann")
        await engine.task_complete(task["id"], {"decision": decision}, user="ann")
        shown = await run.settled(timeout=60)
        types = [event["type"] async for event in run.events()]
    sent = (tmp_path / "sent.txt").read_text().split()
    assert len(sent) == (2 if decision == "retry" else 1)
    assert len(set(sent)) == 1, "repeated under the same idempotency key"
    assert shown["status"] == ("failed" if decision == "fail" else "completed")
    assert types.count("tool:call") == types.count("tool:result") == 1
