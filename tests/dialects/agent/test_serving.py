"""Treadle as an MCP server, and the examples as people run them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from treadle import Engine
from treadle.cli.mcp_server import make_server
from treadle.testing.scripted import ScriptedModel

EXAMPLES = Path(__file__).parents[3] / "examples" / "agent"


async def ask(client: Client, tool: str, **input: Any) -> Any:
    answer = await client.call_tool(tool, input)
    if answer.is_error:
        raise LookupError(answer.content[0].text)
    found = answer.structured_content
    return found["result"] if isinstance(found, dict) and set(found) == {"result"} else found


async def test_a_client_starts_watches_and_answers(tmp_path, flow):
    wf = flow({"a": {"approve": {"roles": ["lead"], "prompt": "Go?"}}})
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = ScriptedModel({"run": {"a": [{"data": {"ok": True}}]}})
    engine.deploy(str(tmp_path / "flow.json"))
    async with engine:
        async with Client(make_server(engine, user="ann", roles=("lead",))) as client:
            assert [row["name"] for row in await ask(client, "list_workflows")] == ["wf"]
            started = await ask(
                client, "start_workflow", workflow="wf", input={"k": 1}, id="r1", model="fake"
            )
            assert started == {"run": "r1"}
            shown = await ask(client, "watch_run", run="r1")
            assert shown["status"] == "waiting"
            (task,) = await ask(client, "list_tasks", run="r1")
            assert task["payload"]["prompt"] == "Go?"
            await ask(client, "answer_task", task=task["id"], data={"approved": True})
            shown = await ask(client, "watch_run", run="r1")
            assert shown["status"] == "completed"
            assert [row["id"] for row in await ask(client, "list_runs", status="completed")] == ["r1"]
            events = await ask(client, "run_events", run="r1", after=2)
            assert events[0]["seq"] == 3
            with pytest.raises(LookupError, match="RUN_NOT_FOUND"):
                await ask(client, "show_run", run="nobody")


async def test_treadle_mcp_speaks_stdio(tmp_path, flow):
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    (tmp_path / "script.json").write_text(json.dumps({"run": {"a": [{"data": {"ok": 1}}]}}))
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "treadle.cli", "mcp", "--deploy", "flow.json", "--store", "sqlite:///t.db"],
        cwd=str(tmp_path),
    )
    async with Client(command) as client:
        await ask(client, "start_workflow", workflow="wf", id="r1", model=f"scripted:{tmp_path}/script.json")
        shown = await ask(client, "watch_run", run="r1")
        assert shown["state"]["results"]["a"]["data"] == {"ok": 1}


@pytest.mark.parametrize("name", ["triage", "research", "release-notes"])
async def test_an_example_runs_offline(tmp_path, name):
    import shutil

    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("out"))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(str(folder / "flow.yaml"))
        run = await engine.start(name, model=f"scripted:{folder / 'script.json'}", offline=True)
        shown = await run.settled(timeout=60)
        if name == "release-notes":
            assert shown["status"] == "waiting"
            (task,) = await engine.tasks(run=run.id)
            await engine.task_claim(task["id"], user="ann", roles=["lead"])
            await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["lead"])
            shown = await run.settled(timeout=60)
            assert (folder / "out" / "notes.md").read_text().startswith("Fixed:")
        if name == "research":
            (call,) = shown["state"]["results"]["numbers"]["toolCalls"]
            assert call["output"]["rows"] == [[240]]
        assert shown["status"] == "completed", shown["error"]
        assert (await engine.replay(run.id))["equal"]
