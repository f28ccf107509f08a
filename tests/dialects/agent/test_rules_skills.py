"""Rules of skills, their servers and Sources, each from its sentence (S7, K3, K5, R2, §4, §8.6, §8.13, §8.14)."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import ProviderError, Skill
from treadle.kernel.errors import ToolError
from treadle.performers.agent.api import McpServer, McpTool
from treadle.performers.agent.mcp import Sessions
from treadle.performers.agent.skill_finding import FOLDERS, Skills, Values, discover
from treadle.performers.agent.skills.fetch import TIMEOUT_S, fetcher
from treadle.testing.scripted import ScriptedModel

SERVER = str(Path(__file__).with_name("mcp_plain.py"))
CALC = {"mcp": {"command": sys.executable, "args": [SERVER]}}


async def no_secret(name: str) -> str:
    raise KeyError(name)


def written(root: Path, id: str, text: str, folder: str = ".treadle/skills") -> None:
    (root / folder / id).mkdir(parents=True)
    (root / folder / id / "SKILL.md").write_text(text)


async def server_of(mcp: dict[str, Any], learned: dict[str, str], base: str | None = None) -> McpServer:
    skills = Skills(learn=learned.__setitem__)
    return await skills.server(Skill("s", name="S", mcp=mcp), "s", Values({}, no_secret, base))


# --- what a server is given (K3, §8.14) ---------------------------------------------------------


async def test_the_values_of_a_servers_environment_are_real_ones(monkeypatch):
    """K3: `env` values are descriptions, real values from the environment. §8.14: they are secrets."""
    monkeypatch.setenv("NET_KEY", "the-real-key")
    monkeypatch.setenv("NET_OTHER", "not asked for")
    monkeypatch.delenv("NET_GONE", raising=False)
    learned: dict[str, str] = {}
    found = await server_of(
        {"command": "x", "env": {"NET_KEY": "your API key", "NET_GONE": "a proxy"}}, learned
    )
    assert found.env == {"NET_KEY": "the-real-key"}
    assert learned == {"NET_KEY": "the-real-key"}


async def test_variables_in_headers_are_filled_in(monkeypatch):
    monkeypatch.setenv("NET_KEY", "the-real-key")
    monkeypatch.setenv("NET_ORG", "acme")
    learned: dict[str, str] = {}
    headers = {"Authorization": "Bearer ${NET_KEY}", "X-Org": "${NET_ORG}/${NET_ORG}", "Plain": "$NET_KEY"}
    found = await server_of({"url": "https://x/mcp", "headers": headers}, learned)
    assert found.headers == {
        "Authorization": "Bearer the-real-key",
        "X-Org": "acme/acme",
        "Plain": "$NET_KEY",
    }
    assert learned["NET_KEY"] == "the-real-key"


@pytest.mark.parametrize(("written", "seconds"), [({}, 30), ({"timeout": "5s"}, 5), ({"timeout": "2m"}, 120)])
async def test_a_servers_time_limit(written, seconds):
    assert (await server_of({"command": "x", **written}, {})).timeout_s == seconds


async def test_an_empty_variable_is_not_set(tmp_path, monkeypatch):
    """K2: a required value that is missing makes the skill unavailable, an empty one does too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NET_KEY", "")
    skill = Skill("s", name="S", config={"NET_KEY": {"description": "k", "required": True}})
    skills = Skills(learn=lambda name, value: None)
    assert await skills.missing_config(skill, Values({}, no_secret, None)) == ["NET_KEY"]
    (tmp_path / ".env").write_text("NET_KEY=from the file\n")
    assert await skills.config(skill, Values({}, no_secret, None)) == {"NET_KEY": "from the file"}


# --- SKILL.md (K5, K3) --------------------------------------------------------------------------


def test_folders_are_looked_through_in_order(tmp_path):
    """K5 and §8.18: ours, then the four of the specification, the first that has the skill wins."""
    assert FOLDERS == (
        ".treadle/skills",
        ".sweny/skills",
        ".claude/skills",
        ".agents/skills",
        ".gemini/skills",
    )
    for folder in reversed(FOLDERS):
        written(tmp_path, "net", f"from {folder}", folder)
        found = discover("net", str(tmp_path))
        assert found is not None
        assert found.instruction == f"from {folder}"


def test_a_folder_beside_the_workflow_comes_before_the_current_one(tmp_path, monkeypatch):
    here, there = tmp_path / "flow", tmp_path / "cwd"
    there.mkdir()
    monkeypatch.chdir(there)
    written(there, "net", "here", ".treadle/skills")
    written(here, "net", "beside", ".gemini/skills")
    found = [discover("net", str(here)), discover("net", None)]
    assert [skill and skill.instruction for skill in found] == ["beside", "here"]


FRONT = """---
name: Network
description: Looks around
category: observability
config:
  NET_KEY: {description: your key, required: true, env: NET_VARIABLE}
mcp:
  url: https://example.org/mcp
  headers: {Authorization: "Bearer ${NET_KEY}"}
---
Look twice.
"""


def test_front_matter_has_config_and_mcp(play, flow, tmp_path, monkeypatch):
    monkeypatch.delenv("NET_VARIABLE", raising=False)
    written(tmp_path, "net", FRONT)
    found = discover("net", str(tmp_path))
    assert found is not None
    assert (found.name, found.description, found.category) == ("Network", "Looks around", "observability")
    assert found.config["NET_KEY"]["env"] == "NET_VARIABLE"
    assert found.mcp == {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${NET_KEY}"}}
    run = play(flow({"a": {"skills": ["net"]}}), {"run": {"a": [{"data": {}}]}}, base=str(tmp_path))
    (warning,) = run.of("node:warning")
    assert "not configured (NET_KEY)" in warning["message"], "its required configuration is looked for"


def test_a_users_own_server_wins_over_the_one_that_came_with_the_skill(tmp_path):
    """K3: on the same key. K5: a custom skill with a built-in's id replaces instruction and mcp."""
    built_in = Skill("net", name="Net", instruction="old", mcp={"command": "theirs"})
    built_in.tool("ping")(lambda input, ctx: 1)
    skills = Skills(learn=lambda name, value: None, built_in=lambda: [built_in])
    written(tmp_path, "net", "---\nmcp: {command: mine}\n---\n")
    found = skills.find("net", {"net": {"mcp": {"command": "inline"}}}, str(tmp_path))
    assert found is not None
    assert (found.mcp, found.instruction, list(found.tools)) == ({"command": "mine"}, "old", ["ping"])
    without = skills.find("net", {}, str(tmp_path / "elsewhere"))
    assert without is not None
    assert without.mcp == {"command": "theirs"}


# --- how long a server lives (S7, §8.14) --------------------------------------------------------


class Recorded:
    """MCP sessions that note what becomes of them; their tools answer with their own names."""

    def __init__(self, *tools: McpTool) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.notes: list[str] = []
        self.fails = False

    async def open(self, key: Any, servers: Any, taken: Any) -> Recorded:
        if self.fails:
            raise ProviderError("it does not start", code="MCP_START_FAILED")
        self.notes.append(f"open {key.session}")
        return self

    async def release(self, key: Any) -> None:
        self.notes.append(f"release {key.session}")

    async def call(self, tool: McpTool, input: Any) -> Any:
        self.notes.append(f"call {tool.name}")
        if "fail" in input:
            raise ToolError("no")
        return tool.name


def remote(name: str, *, idempotent: bool = False) -> McpTool:
    return McpTool(name, "net", name, "", {"type": "object"}, idempotent)


def served(flow: Any, **node: Any) -> dict[str, Any]:
    return flow({"a": {"skills": ["net"], **node}, "b": {}}, "a b", skills={"net": {"mcp": {"command": "x"}}})


def test_a_session_is_over_with_the_answer_that_calls_nothing(play, flow):
    """S7: for this node's session only."""
    entry = {"tool_calls": [{"tool": "t"}, {"tool": "t"}], "data": {}}
    mcp = Recorded(remote("t"))
    play(served(flow), {"run": {"a": [entry], "b": [{"data": {}}]}}, mcp=mcp)
    kinds = [note.partition(" ")[0] for note in mcp.notes]
    assert kinds == ["open", "open", "call", "open", "call", "open", "release"]
    assert len({note.split()[1] for note in mcp.notes if not note.startswith("call")}) == 1


def test_a_session_is_over_with_the_last_call_a_node_may_make(play, flow):
    entry = {"tool_calls": [{"tool": "t"}, {"tool": "t"}], "data": {}}
    mcp = Recorded(remote("t"))
    run = play(served(flow, max_turns=1), {"run": {"a": [entry], "b": [{"data": {}}]}}, mcp=mcp)
    assert [note.partition(" ")[0] for note in mcp.notes] == [
        "open",
        "open",
        "call",
        "open",
        "call",
        "release",
    ]
    assert run.results["a"]["data"]["error"].startswith("max_turns")


def test_a_server_that_does_not_start_fails_its_node_and_nothing_else(play, flow):
    """§4: fails the node, not the engine."""
    mcp = Recorded()
    mcp.fails = True
    run = play(served(flow), {"run": {"b": [{"data": {}}]}}, mcp=mcp)
    assert run.results["a"] == {"status": "failed", "data": {"error": "it does not start"}, "toolCalls": []}
    assert run.results["b"]["status"] == "success"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while alive(pid):  # noqa: ASYNC110, there is nothing to await but its end
            await asyncio.sleep(0.01)


async def pid_told(run: Any) -> int:
    async for event in run.events():
        if event["type"] == "tool:result":
            return int(event["output"]["result"].rpartition(" ")[2])
    raise AssertionError("the run ended without a call")


def engine_of(folder: Path, wf: dict[str, Any], model: Any) -> Engine:
    (folder / "flow.json").write_text(json.dumps(wf))
    engine = Engine("memory:")
    engine.models["fake"] = model
    engine.deploy(str(folder / "flow.json"))
    return engine


@pytest.mark.house
async def test_a_server_is_gone_while_the_next_node_works(tmp_path, flow):
    """S7: never globally; §4: stopped with it."""
    go_on = asyncio.Event()

    class Waits(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            if request.node == "b":
                await go_on.wait()
            return await super().turn(request)

    entry = {"tool_calls": [{"tool": "whoami", "input": {}}], "data": {}}
    wf = flow({"a": {"skills": ["calc"]}, "b": {}}, "a b", skills={"calc": CALC})
    async with engine_of(tmp_path, wf, Waits({"run": {"a": [entry], "b": [{"data": {}}]}})) as engine:
        run = await engine.start("wf", model="fake")
        await gone(await pid_told(run))
        assert (await run.show())["status"] == "running"
        go_on.set()
        await run.result(timeout=30)


@pytest.mark.house
async def test_cancelling_stops_a_server_in_the_middle_of_a_call(tmp_path, flow):
    calls = [{"tool": "whoami", "input": {}}, {"tool": "hang", "input": {}}]
    wf = flow({"a": {"skills": ["calc"]}}, skills={"calc": CALC})
    model = ScriptedModel({"run": {"a": [{"tool_calls": calls, "data": {}}]}})
    async with engine_of(tmp_path, wf, model) as engine:
        run = await engine.start("wf", model="fake")
        pid = await pid_told(run)
        async with asyncio.timeout(30):
            while [w["name"] for w in (await run.show())["waiting_for"]] != ["a: hang"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert alive(pid)
        await engine.cancel(run.id)
        await gone(pid)


# --- calls in doubt (§8.13) ---------------------------------------------------------------------


async def test_hints_of_a_server_count():
    sessions = Sessions()
    server = McpServer(name="calc", command=sys.executable, args=(SERVER,))
    session = await sessions.open("v", {"calc": server}, [])
    await sessions.close()
    found = {name for name, tool in session.tools.items() if tool.idempotent}
    assert found == {"add", "put"}, "readOnlyHint and idempotentHint"


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_servers_call_in_doubt(prepared, flow, idempotent):
    mcp = Recorded(remote("t", idempotent=idempotent))
    entry = {"tool_calls": [{"tool": "t"}], "data": {}}
    run = prepared(served(flow), {"run": {"a": [entry], "b": [{"data": {}}]}}, mcp=mcp).start().go(2)
    (call,) = run.driver.open("call")
    run.checkpoints[call.id] = {"started": True}
    run.go()
    assert mcp.notes.count("call t") == (1 if idempotent else 0)
    assert [task.params["name"] for task in run.driver.open("task")] == ([] if idempotent else ["in_doubt"])


def test_a_servers_call_that_may_not_be_repeated_is_marked_before_it_is_made(play, flow):
    entry = {"tool_calls": [{"tool": "t"}, {"tool": "u"}], "data": {}}
    mcp = Recorded(remote("t"), remote("u", idempotent=True))
    run = play(served(flow), {"run": {"a": [entry], "b": [{"data": {}}]}}, mcp=mcp)
    first, second = [intent.id for intent in run.performed if intent.kind == "call"]
    assert run.checkpoints == {first: {"started": True}}
    assert second not in run.checkpoints


# --- handlers (§7) ------------------------------------------------------------------------------


def test_a_plain_function_runs_in_a_thread_and_a_coroutine_does_not(play, flow):
    skill, seen = Skill("s", name="S"), []

    @skill.tool("plain", idempotent=True)
    def plain(input: Any, ctx: Any) -> None:
        seen.append(threading.current_thread() is threading.main_thread())

    @skill.tool("awaited", idempotent=True)
    async def awaited(input: Any, ctx: Any) -> None:
        seen.append(threading.current_thread() is threading.main_thread())

    calls = [{"tool": "plain"}, {"tool": "awaited"}]
    script = {"run": {"a": [{"tool_calls": calls, "data": {}}]}}
    play(flow({"a": {"skills": ["s"]}}), script, skills=(skill,))
    assert seen == [False, True]


# --- Sources (R2, §8.6) -------------------------------------------------------------------------


def test_a_fetch_has_ten_seconds():
    """R2. That the limit is for the whole of it is in test_skills.py."""
    assert TIMEOUT_S == 10
    assert inspect.signature(fetcher).parameters["timeout_s"].default == 10


def test_the_prompt_of_an_approval_may_be_a_file(prepared, flow, tmp_path):
    """§8.5: prompt is a Source; §8.6: payload.prompt is the text."""
    (tmp_path / "ask.md").write_text("May it be sent?")
    node = {"approve": {"roles": ["lead"], "prompt": "./ask.md"}}
    run = prepared(flow({"a": node}), {"run": {"a": [{"data": {}}]}}, base=str(tmp_path)).start().go()
    (task,) = run.driver.open("task")
    assert task.params["payload"]["prompt"] == "May it be sent?"
    assert run.trace["sources"]["nodes.a.approve.prompt"]["kind"] == "file"
