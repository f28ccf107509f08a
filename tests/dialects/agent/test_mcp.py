"""MCP with the official SDK, against real servers over stdio and streamable HTTP (S7, K3, §8.14)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import ProviderError, Skill, TurnReply, TurnRequest
from treadle.kernel.errors import ToolError
from treadle.performers.agent.api import McpServer
from treadle.performers.agent.mcp import Sessions, _tail
from treadle.performers.agent.visits import VisitSessions
from treadle.testing.scripted import ScriptedModel

SERVER = str(Path(__file__).with_name("mcp_server.py"))
PLAIN = str(Path(__file__).with_name("mcp_plain.py"))


def of_the_sdk(**more: Any) -> McpServer:
    return McpServer(name="calc", command=sys.executable, args=(SERVER,), **more)


def server(*mode: str, **more: Any) -> McpServer:
    return McpServer(name="calc", command=sys.executable, args=(PLAIN, *mode), **more)


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
    session = await sessions.open("v1", {"calc": of_the_sdk(env={"SERVER_TOKEN": "me"})}, [])
    assert sorted(session.tools) == ["add", "die", "fail", "flood", "hang", "put", "whoami"]
    assert session.tools["add"].idempotent, "readOnlyHint counts as idempotent"
    assert not session.tools["whoami"].idempotent
    assert await session.call(session.tools["add"], {"a": 2, "b": 3}) == {"result": 5}
    said = await session.call(session.tools["whoami"], {})
    name, pid = re.match(r"(\w+) in (\d+)", said["result"]).groups()
    assert name == "me"
    assert await sessions.open("v1", {"calc": of_the_sdk()}, []) is session
    await sessions.release("v1")
    await gone(int(pid))
    assert len(sessions) == 0


async def test_errors_of_a_server_reach_the_caller_and_nobody_else(sessions):
    session = await sessions.open("v1", {"calc": of_the_sdk()}, [])
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
    async with asyncio.timeout(20):
        with pytest.raises(ToolError, match=r"did not answer within 0\.3 s"):
            await session.call(session.tools["hang"], {})


async def test_a_server_whose_call_was_broken_off_is_gone_at_once(monkeypatch):
    """Also if whoever stops it does not stay to see it: the engine closes in the same moment."""
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 3600)
    sessions = Sessions()
    session = await sessions.open("v1", {"calc": server()}, [])
    said = await session.call(session.tools["whoami"], {})
    pid = int(said["result"].split()[-1])
    call = asyncio.ensure_future(session.call(session.tools["hang"], {}))
    async with asyncio.timeout(10):
        while not session._connections["calc"]._in_flight:  # noqa: ASYNC110, nothing tells
            await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    release = asyncio.ensure_future(sessions.release("v1"))
    await asyncio.sleep(0)
    release.cancel()
    async with asyncio.timeout(10):
        await sessions.close()
    assert not alive(pid)


async def test_a_server_that_does_not_start_says_why(sessions):
    with pytest.raises(ProviderError, match="cannot find my configuration"):
        await sessions.open("v1", {"calc": server("dead", timeout_s=20)}, [])
    async with asyncio.timeout(20):
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


async def test_time_to_start_is_not_idle_time():
    """A server that takes longer to start than it may be idle is there for its first call."""
    sessions = Sessions(idle_s=0.1)
    session = await sessions.open("v1", {"calc": of_the_sdk()}, [])
    assert await session.call(session.tools["add"], {"a": 1, "b": 1}) == {"result": 2}
    await sessions.close()


async def pid_of(session: Any, tool: str) -> int:
    said = await session.call(session.tools[tool], {})
    return int(said["result"].rpartition(" ")[2])


async def test_a_server_that_died_is_started_again_and_the_others_keep_their_state(sessions):
    session = await sessions.open("v1", {"calc": server(), "more": server()}, [])
    first, other = await pid_of(session, "whoami"), await pid_of(session, "more__whoami")
    with pytest.raises(ToolError):
        await session.call(session.tools["die"], {})
    assert await sessions.open("v1", {"calc": server(), "more": server()}, []) is session
    assert await pid_of(session, "whoami") != first
    assert await pid_of(session, "more__whoami") == other


async def test_a_server_that_cannot_be_started_again_fails_its_calls_only(sessions):
    session = await sessions.open("v1", {"calc": server(), "more": server()}, [])
    session._servers["calc"] = server("dead", timeout_s=20)
    with pytest.raises(ToolError):
        await session.call(session.tools["die"], {})
    again = await sessions.open("v1", {"calc": server(), "more": server()}, [])
    assert "add" in again.tools, "its tools were listed"
    with pytest.raises(ToolError, match="cannot find my configuration"):
        await again.call(again.tools["add"], {"a": 1, "b": 1})
    assert await again.call(again.tools["more__add"], {"a": 1, "b": 1}) == {"result": 2}


def test_only_the_end_of_what_a_server_said_is_read():
    with tempfile.TemporaryFile("w+") as errors:
        errors.truncate(1 << 34)
        errors.seek(0, os.SEEK_END)
        errors.write("this is why")
        errors.flush()
        assert _tail(errors).endswith("this is why")
        assert len(_tail(errors)) < 1000


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
    with suppress(ProcessLookupError):  # a test may have ended it
        child.kill()
    await child.wait()


async def test_streamable_http(sessions, http_server):
    session = await sessions.open("v1", {"web": McpServer(name="web", url=http_server)}, [])
    assert await session.call(session.tools["add"], {"a": 20, "b": 22}) == {"result": 42}
    with pytest.raises(ProviderError, match="did not start"):
        await sessions.open(
            "v2", {"web": McpServer(name="web", url=http_server.replace("/mcp", "/no"), timeout_s=10)}, []
        )


@pytest.mark.house
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


class Turns:
    """A provider that answers with what each of `turns` gives, and remembers what it was told."""

    default_model = small_model = None
    keeps_history = False

    def __init__(self, *turns: Any) -> None:
        self._turns = list(turns)
        self.asked: list[TurnRequest] = []

    async def turn(self, request: TurnRequest) -> TurnReply:
        self.asked.append(request)
        turn = self._turns.pop(0)
        if callable(turn):
            await turn()
        elif isinstance(turn, Exception):
            raise turn
        elif isinstance(turn, dict):
            return TurnReply(data=turn)
        calls = turn if isinstance(turn, list) else ["whoami"]
        return TurnReply(calls=[{"id": str(n), "tool": tool, "input": {}} for n, tool in enumerate(calls)])

    async def close(self) -> None:
        """Nothing is held open."""


def limited(after: float = 0.0) -> ProviderError:
    return ProviderError("slow down", retryable=True, retry_after_s=after)


CALC = {"calc": {"mcp": {"command": sys.executable, "args": [PLAIN]}}}


@pytest.fixture
async def play(flow, tmp_path):
    """Starts a run of one node with a server on the turns given."""
    engine = Engine("memory:")
    async with engine:

        async def start(*turns: Any, skills: Any = CALC, **node: Any) -> Any:
            engine.models["fake"] = Turns(*turns)
            wf = flow({"a": {"skills": list(skills), **node}}, skills=skills)
            (tmp_path / "flow.json").write_text(json.dumps(wf))
            engine.deploy(str(tmp_path / "flow.json"))
            return await engine.start("wf", model="fake"), engine

        yield start


async def pids(run: Any) -> list[int]:
    calls = (await run.show())["state"]["results"]["a"]["toolCalls"]
    return [int(call["output"]["result"].rpartition(" ")[2]) for call in calls]


async def first_pid(run: Any) -> int:
    async for event in run.events():
        if event["type"] == "tool:result":
            return int(event["output"]["result"].rpartition(" ")[2])
    raise AssertionError("the run ended without a call")


@pytest.mark.house
async def test_a_rate_limit_does_not_stop_the_servers(play):
    run, _ = await play(["whoami"], limited(), ["whoami"], {"done": True})
    await run.result(timeout=60)
    first, second = await pids(run)
    assert first == second
    await gone(first)


@pytest.mark.at_home("looks into the sessions of the engine's own worker")
async def test_a_long_turn_does_not_stop_the_servers(play):
    async def long() -> None:
        """As long as it takes until a session would have ended by itself, twice."""
        (visit,) = engine.agents._mcp._sessions._visits[run.id]
        sessions = VisitSessions(engine, Sessions(idle_s=1.0))
        session = await sessions.open(visit, {"calc": server()}, [])
        began = session._used = asyncio.get_running_loop().time()
        async with asyncio.timeout(30):
            while session._used < began + 2:
                assert not session.ended
                await asyncio.sleep(0.05)
        await sessions.close()

    run, engine = await play(["whoami"], long, {"done": True})
    await run.result(timeout=60)
    first, second = await pids(run)
    assert first == second


@pytest.mark.house
@pytest.mark.parametrize(
    "turn", [["whoami"] * 129, limited()], ids=["too many calls", "every attempt is refused"]
)
async def test_a_node_that_fails_stops_its_servers(play, turn):
    run, _ = await play(["whoami"], *[turn] * 4)
    shown = await run.settled(timeout=60)
    assert shown["status"] == "failed"
    await gone((await pids(run))[0])


@pytest.mark.house
async def test_a_run_that_is_cancelled_while_it_pauses_stops_its_servers(play):
    run, engine = await play(["whoami"], limited(3600))
    pid = await first_pid(run)
    async with asyncio.timeout(30):
        while (await run.show())["waiting_for"][0]["kind"] != "timer":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert alive(pid)
    await engine.cancel(run.id)
    await gone(pid)


@pytest.mark.house
async def test_the_model_is_told_of_a_server_that_is_gone(play, http_server):
    """Its tools were listed: later calls to it fail, and the model decides what to make of it."""
    skills = {"web": {"mcp": {"url": http_server}}}
    run, engine = await play(["die", "add"], ["whoami"], {"done": True}, skills=skills)
    result = await run.result(timeout=60)
    node = result["results"]["a"]
    assert (node["status"], node["data"]) == ("success", {"done": True})
    assert all("error" in call for call in node["toolCalls"])
    assert [call["tool"] for call in node["toolCalls"]] == ["die", "add", "whoami"]
    asked = engine.models["fake"].asked
    assert [len(request.results) for request in asked] == [0, 2, 1]
    assert all("add" in {tool.name for tool in request.tools} for request in asked)


def test_what_step_0_keeps_of_a_server():
    from treadle.performers.agent.skill_finding import recorded

    skill = Skill(
        "s",
        name="S",
        mcp={
            "url": "https://me:hunter2@x/mcp",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
            "env": {"A": "d"},
        },
    )
    assert recorded(skill, "s", None)["mcp"] == {
        "type": "http",
        "url": "https://x/mcp",
        "env": ["A"],
        "headers": ["Authorization"],
    }
