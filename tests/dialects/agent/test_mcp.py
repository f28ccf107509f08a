"""MCP with the official SDK, against real servers over stdio and streamable HTTP (S7, K3, §8.14)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import ProviderError, Skill
from treadle.kernel.errors import ToolError
from treadle.testing.scripted import ScriptedModel
from treadle.tools.mcp import Sessions
from treadle.work.agent_api import McpServer

SERVER = str(Path(__file__).with_name("mcp_server.py"))


def server(*mode: str, **more: Any) -> McpServer:
    return McpServer(name="calc", command=sys.executable, args=(SERVER, *mode), **more)


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    found = Sessions()
    yield found
    await found.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while alive(pid):  # noqa: ASYNC110, there is nothing to await but its end
            await asyncio.sleep(0.01)


async def test_a_stdio_server_lives_for_one_visit(sessions):
    session = await sessions.open("v1", {"calc": server(env={"SERVER_TOKEN": "me"})}, [])
    assert sorted(session.tools) == ["add", "die", "fail", "flood", "hang", "whoami"]
    assert session.tools["add"].idempotent, "readOnlyHint counts as idempotent"
    assert not session.tools["whoami"].idempotent
    assert await session.call(session.tools["add"], {"a": 2, "b": 3}) == {"result": 5}
    said = await session.call(session.tools["whoami"], {})
    name, pid = re.match(r"(\w+) in (\d+)", said["result"]).groups()
    assert name == "me"
    assert await sessions.open("v1", {"calc": server()}, []) is session
    await sessions.release("v1")
    await gone(int(pid))
    assert len(sessions) == 0


async def test_errors_of_a_server_reach_the_caller_and_nobody_else(sessions):
    session = await sessions.open("v1", {"calc": server()}, [])
    with pytest.raises(ToolError, match="Error executing tool fail"):
        await session.call(session.tools["fail"], {})
    with pytest.raises(ToolError, match="larger than"):
        await session.call(session.tools["flood"], {})
    assert await session.call(session.tools["add"], {"a": 1, "b": 1}) == {"result": 2}
    with pytest.raises(ToolError):
        await session.call(session.tools["die"], {})


async def test_a_server_that_hangs_is_given_up(sessions):
    session = await sessions.open("v1", {"calc": server()}, [])
    session._servers["calc"] = server(timeout_s=0.3)
    with pytest.raises(ToolError, match=r"did not answer within 0\.3 s"):
        await session.call(session.tools["hang"], {})


async def test_a_server_that_does_not_start_says_why(sessions):
    with pytest.raises(ProviderError, match="cannot find my configuration"):
        await sessions.open("v1", {"calc": server("dead", timeout_s=20)}, [])
    with pytest.raises(ProviderError, match="did not start in time"):
        await sessions.open("v2", {"calc": server("mute", timeout_s=0.5)}, [])
    with pytest.raises(ProviderError, match="did not start"):
        await sessions.open("v3", {"calc": McpServer(name="calc", command="/no/such/program")}, [])
    assert len(sessions) == 0


async def test_names_that_clash_get_their_servers_name(sessions):
    session = await sessions.open("v1", {"calc": server(), "more": server()}, ["whoami"])
    assert {"add", "calc__whoami", "more__add", "more__whoami"} <= set(session.tools)
    assert await session.call(session.tools["more__add"], {"a": 1, "b": 2}) == {"result": 3}


async def test_an_idle_session_ends_by_itself():
    sessions = Sessions(idle_s=0.2)
    session = await sessions.open("v1", {"calc": server()}, [])
    await asyncio.wait([session._task], timeout=20)
    assert session.ended
    again = await sessions.open("v1", {"calc": server()}, [])
    assert again is not session
    await sessions.close()


@pytest.fixture
async def http_server() -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        SERVER,
        "http",
        str(port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.02)
    yield f"http://127.0.0.1:{port}/mcp"
    child.kill()
    await child.wait()


async def test_streamable_http(sessions, http_server):
    session = await sessions.open("v1", {"web": McpServer(name="web", url=http_server)}, [])
    assert await session.call(session.tools["add"], {"a": 20, "b": 22}) == {"result": 42}
    with pytest.raises(ProviderError, match="did not start"):
        await sessions.open(
            "v2", {"web": McpServer(name="web", url=http_server.replace("/mcp", "/no"), timeout_s=10)}, []
        )


async def test_servers_are_wired_for_the_node_that_lists_them_only(tmp_path, flow, monkeypatch):
    monkeypatch.setenv("SERVER_TOKEN", "a-very-secret-token")
    inline = {"mcp": {"command": sys.executable, "args": [SERVER], "env": {"SERVER_TOKEN": "how to log in"}}}
    nodes = {"a": {"skills": ["calc"], "tools": {"deny": ["die"]}}, "b": {}, "c": {"skills": ["broken"]}}
    broken = {"mcp": {"command": "/no/such/program"}}
    wf = flow(nodes, "a b", "b c", skills={"calc": inline, "broken": broken})
    calls = [
        {"tool": "add", "input": {"a": 1, "b": 2}},
        {"tool": "whoami", "input": {}},
        {"tool": "add", "input": {"a": "x"}},
        {"tool": "die", "input": {}},
    ]
    model = ScriptedModel({"run": {"a": [{"tool_calls": calls, "data": {}}], "b": [{"data": {}}], "c": []}})
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = model
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(wf))
    async with engine:
        engine.deploy(str(file))
        run = await engine.start("wf", model="fake")
        shown = await run.settled(timeout=60)
    results = shown["state"]["results"]
    first, second, third, fourth = results["a"]["toolCalls"]
    assert first["output"] == {"result": 3}
    assert second["output"]["result"].startswith("[redacted:SERVER_TOKEN]")
    assert third["error"].startswith("invalid input")
    assert "no tool 'die'" in fourth["error"]
    asked = {call["node"]: call for call in model.calls}
    assert asked["a"]["mcp_servers"] == ["calc"]
    assert "die" not in asked["a"]["tools"]
    assert asked["b"]["mcp_servers"] == asked["b"]["tools"] == []
    assert results["c"]["status"] == "failed", (
        "a server that does not start fails its node, not the run before it"
    )
    assert (
        "/no/such/program" in results["c"]["data"]["error"]
        or "did not start" in results["c"]["data"]["error"]
    )
    assert results["b"]["status"] == "success"


def test_what_step_0_keeps_of_a_server():
    from treadle.work.agent_skills import recorded

    skill = Skill(
        "s",
        name="S",
        mcp={"url": "https://x/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "env": {"A": "d"}},
    )
    assert recorded(skill, "s", None)["mcp"] == {
        "type": "http",
        "url": "https://x/mcp",
        "env": ["A"],
        "headers": ["Authorization"],
    }
