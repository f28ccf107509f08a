"""The built-in `workflows` skill: a run that a model starts stays within the settings of the run it works in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.testing.scripted import ScriptedModel

PLAYBOOK = """
metadata: {name: load, description: Loads a day}
workload: {day: today}
workflow:
  - step: extract
    tool: {kind: noop}
"""
PROCESS = """
dialect: process
name: Renewal
description: Renews
start: {schema: {type: object, required: [policy]}}
steps:
  - complete: {}
"""
APPROVED = {"approve": {"roles": ["lead"], "prompt": "Go?"}}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"tool": "run_workflow", "input": each} for each in made], "data": {}}


@pytest.fixture
def engine_with(tmp_path: Path, flow: Any) -> Any:
    """An engine with the workflow `outer`, whose node `a` may run workflows, and `inner` as given."""

    def make(inner: dict[str, Any], script: dict[str, Any], *more: str) -> Engine:
        folder = tmp_path / "flows"
        folder.mkdir(exist_ok=True)
        outer = flow({"a": {"skills": ["workflows"]}}) | {"id": "outer"}
        for body in (outer, inner | {"id": "inner"}):
            (folder / f"{body['id']}.json").write_text(json.dumps(body))
        for number, text in enumerate(more):
            (folder / f"more{number}.yaml").write_text(text)
        engine = Engine(f"sqlite:///{tmp_path}/t.db")
        engine.models["fake"] = ScriptedModel(script)
        engine.deploy(str(folder))
        return engine

    return make


async def called(engine: Engine, **options: Any) -> list[dict[str, Any]]:
    """The tool calls of `outer`, run to its end."""
    async with engine:
        run = await engine.start("outer", options.pop("input", {}), id="r1", model="fake", **options)
        result = await run.result(timeout=30)
    found: list[dict[str, Any]] = result["results"]["a"]["toolCalls"]
    return found


async def test_the_started_run_has_the_settings_of_its_caller(engine_with, flow, tmp_path):
    (tmp_path / "secrets.env").write_text("TOKEN=abcdefgh\n")
    engine = engine_with(
        flow("x"), {"run": {"a": [calls({"workflow": "inner"})], "x": [{"data": {"ok": 1}}]}}
    )
    async with engine:
        secrets = str(tmp_path / "secrets.env")
        run = await engine.start(
            "outer", {}, id="r1", model="fake", offline=True, secrets=secrets, config={"K": "v"}
        )
        (call,) = (await run.result(timeout=30))["results"]["a"]["toolCalls"]
        assert call["output"]["result"]["results"]["x"]["data"] == {"ok": 1}
        first = (await (await engine.run(call["output"]["run"])).journal())[0]
        assert engine.configs[call["output"]["run"]] == {"K": "v"}
    options = first["event"]["options"]
    wanted = {"model": "fake", "offline": True, "secrets": secrets}
    assert {name: options.get(name) for name in wanted} == wanted


async def test_an_offline_run_starts_none_that_fetches(engine_with, flow):
    inner = flow({"x": {"instruction": "https://example.com/text"}})
    (call,) = await called(engine_with(inner, {"run": {"a": [calls({"workflow": "inner"})]}}), offline=True)
    assert "offline" in call["error"]


@pytest.mark.parametrize("how", [{"dry_run": True}, {"input": {"dryRun": True}}])
async def test_a_dry_run_starts_dry_runs_only(engine_with, flow, how):
    inner = flow("x y", ("x", "y", {"when": "it is serious"}))
    script = {"run": {"a": [calls({"workflow": "inner"}, {"workflow": "load"})], "x": [{"data": {}}]}}
    agent, playbook = await called(engine_with(inner, script, PLAYBOOK), **how)
    assert list(agent["output"]["result"]["results"]) == ["x"]
    assert "dry run" in playbook["error"]
    assert "not started" in playbook["error"]


async def test_a_started_run_that_waits_for_a_person_keeps_nobody_waiting(engine_with, flow):
    script = {"run": {"a": [calls({"workflow": "inner"})], "x": [{"data": {"ok": 1}}]}}
    engine = engine_with(flow({"x": APPROVED}), script)
    async with engine:
        result = await (await engine.start("outer", {}, id="r1", model="fake")).result(timeout=30)
        (call,) = result["results"]["a"]["toolCalls"]
        (task,) = await engine.tasks()
        assert call["output"]["status"] == "waiting"
        assert [(wait["kind"], wait["id"]) for wait in call["output"]["waiting_for"]] == [
            ("task", task["id"])
        ]
        await engine.task_claim(task["id"], user="ann", roles=("lead",))
        await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=("lead",))
        inner = await (await engine.run(call["output"]["run"])).result(timeout=30)
    assert inner["results"]["x"]["data"] == {"ok": 1}


SLOW = {"run": {"a": [calls({"workflow": "inner"})], "x": [{"delay": 600, "data": {}}]}}


async def inner_at_work(engine: Engine) -> str:
    """The started run, once its model has been asked."""
    async with asyncio.timeout(30):
        while True:
            for row in await engine.list(workflow="inner"):
                if any(event["type"] == "node:enter" for event in await engine.events_after(row["id"], 0)):
                    return str(row["id"])
            await asyncio.sleep(0.01)


async def test_cancelling_the_caller_cancels_what_it_started(engine_with, flow):
    engine = engine_with(flow("x"), SLOW)
    async with engine:
        await engine.start("outer", {}, id="r1", model="fake")
        inner = await inner_at_work(engine)
        await engine.cancel("r1", "enough")
        shown = await (await engine.run(inner)).settled(timeout=30)
    assert shown["status"] == "cancelled"


async def test_an_engine_that_ends_cancels_nothing(engine_with, flow):
    engine = engine_with(flow("x"), SLOW)
    async with engine:
        await engine.start("outer", {}, id="r1", model="fake")
        inner = await inner_at_work(engine)
    again = engine_with(flow("x"), {"run": {"a": SLOW["run"]["a"], "x": [{"data": {"ok": 1}}]}})
    async with again:
        result = await (await again.run("r1")).result(timeout=30)
        assert [row["id"] for row in await again.list(workflow="inner")] == [inner]
    (call,) = result["results"]["a"]["toolCalls"]
    assert call["output"]["result"]["results"]["x"]["data"] == {"ok": 1}


async def test_a_model_is_told_what_workflows_do_and_take(engine_with, flow):
    inner = flow("x") | {"description": "Looks", "inputs": {"q": {"type": "string", "required": True}}}
    script = {"run": {"a": [{"tool_calls": [{"tool": "list_workflows", "input": {}}], "data": {}}]}}
    (call,) = await called(engine_with(inner, script, PLAYBOOK, PROCESS))
    found = {row["name"]: (row["dialect"], row["description"], row["inputs"]) for row in call["output"]}
    assert found == {
        "inner": ("agent", "Looks", {"q": {"type": "string", "required": True}}),
        "outer": ("agent", "", {}),
        "load": ("playbook", "Loads a day", {"day": "today"}),
        "Renewal": ("process", "Renews", {"type": "object", "required": ["policy"]}),
    }


async def test_a_run_that_cannot_be_started_is_an_error_of_the_tool(engine_with, flow):
    inner = flow("x") | {"inputs": {"q": {"type": "string", "required": True}}}
    script = {"run": {"a": [calls({"workflow": "inner"}, {"workflow": "nobody"})]}}
    refused, unknown = await called(engine_with(inner, script))
    assert "q" in refused["error"]
    assert "nobody" in unknown["error"]
