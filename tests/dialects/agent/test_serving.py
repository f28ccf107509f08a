"""Treadle as an MCP server, and the examples as people run them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from tests import nursery

from treadle import Engine
from treadle.cli.mcp_http import address, security
from treadle.cli.mcp_server import make_server
from treadle.cli.output import Usage
from treadle.testing.scripted import ScriptedModel

EXAMPLES = Path(__file__).parents[3] / "examples" / "agent"


async def ask(client: Client, tool: str, **input: Any) -> Any:
    answer = await client.call_tool(tool, input)
    if answer.is_error:
        raise LookupError(answer.content[0].text)
    found = answer.structured_content
    return found["result"] if isinstance(found, dict) and set(found) == {"result"} else found


@pytest.mark.house
async def test_a_client_starts_watches_and_answers(tmp_path, flow):
    wf = flow({"a": {"approve": {"roles": ["lead"], "prompt": "Go?"}}})
    wf |= {"description": "Asks first", "inputs": {"k": {"type": "number"}}}
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = ScriptedModel({"run": {"a": [{"data": {"ok": True}}]}})
    engine.deploy(str(tmp_path / "flow.json"))
    async with engine:
        async with Client(make_server(engine, user="ann", roles=("lead",))) as client:
            (row,) = await ask(client, "list_workflows")
            assert (row["name"], row["description"]) == ("wf", "Asks first")
            assert row["inputs"] == {"k": {"type": "number"}}
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


@pytest.fixture
def server(tmp_path):
    """Starts `treadle mcp`; whatever becomes of the test, it ends with it."""
    started: list[nursery.Process] = []

    def start(*arguments: str, **variables: str) -> nursery.Process:
        command = ["-m", "treadle.cli", "mcp", "--store", "sqlite:///t.db", *arguments]
        pipe = nursery.PIPE
        process = nursery.Process(
            command, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | variables
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def port_of(process: nursery.Process) -> int:
    serving = re.match(r"serving MCP at http://\S+:(\d+)/mcp for ", process.stderr.readline())
    assert serving is not None
    return int(serving[1])


SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


@pytest.mark.parametrize(("sign", "code"), SIGNALS)
def test_a_signal_stops_the_http_server_without_a_word_too_many(server, sign, code):
    process = server("--http", "127.0.0.1:0")
    address = ("127.0.0.1", port_of(process))
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 404"  # it is up, and this connection stays open
        process.send_signal(sign)
        _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in said
    assert "ERROR" not in said
    assert said.endswith("stopped.\n")


@pytest.mark.parametrize(("sign", "code"), SIGNALS)
def test_a_signal_stops_the_stdio_server_though_its_input_stays_open(server, sign, code):
    process = server()
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    process.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}) + "\n"
    )
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == 1
    process.send_signal(sign)
    assert process.wait(timeout=30) == code
    assert process.stderr.read().strip() == "stopped."


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [((), {"TREADLE_TOKEN": "open-sesame"}), (("--token", "open-sesame"), {"TREADLE_TOKEN": "other"})],
)
async def test_a_server_for_others_wants_its_token(server, arguments, variables):
    port = port_of(server("--http", "0.0.0.0:0", *arguments, **variables))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for sent, status in (
            (None, 401),
            ("Bearer wrong", 401),
            ("open-sesame", 401),
            ("Basic open-sesame", 401),
            ("Bearer open-sesame", 400),
            ("bearer open-sesame", 400),
        ):
            headers = {"authorization": sent} if sent else {}
            assert (await client.get("/mcp", headers=headers)).status_code == status
            assert (await client.post("/other", headers=headers)).status_code in (status, 404)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "127.1", "LOCALHOST"])
async def test_loopback_by_any_name_answers_only_pages_of_this_machine(server, host):
    """Finding 23: a page whose name leads here (DNS rebinding) sends its own name."""
    port = port_of(server("--http", f"{host}:0"))
    url, own = f"http://{host}:{port}/mcp", f"{host}:{port}"
    sent = {"accept": "application/json, text/event-stream"}
    client = {
        "protocolVersion": "2025-03-26",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    async with httpx.AsyncClient(timeout=30) as http:
        for headers, status in (
            ({"host": own}, 200),
            ({"host": f"localhost:{port}"}, 200),
            ({"host": f"evil.example:{port}"}, 421),
            ({"host": own, "origin": "http://evil.example"}, 403),
            ({"host": own, "origin": "null"}, 403),
            ({"host": own, "origin": f"http://{own}"}, 200),
        ):
            answer = await http.post(url, json=body, headers={**sent, **headers})
            assert (headers, answer.status_code) == (headers, status)


@pytest.mark.parametrize("host", ["127.9.9.9", "::1", "::ffff:127.0.0.1", "::ffff:127.0.0.9", "localhost"])
def test_every_address_of_loopback_is_checked_alike(host):
    settings = security(host)
    assert settings is not None
    assert settings.enable_dns_rebinding_protection
    assert (f"[{host}]:*" if ":" in host else f"{host}:*") in settings.allowed_hosts


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"])
def test_an_address_that_others_reach_wants_a_token(host):
    assert security(host) is None
    with pytest.raises(Usage, match="TREADLE_TOKEN"):
        address(f"[{host}]:0" if ":" in host else f"{host}:0")


def test_a_server_without_a_token_says_that_it_is_open(server):
    process = server("--http", "127.0.0.1:0")
    port_of(process)
    assert re.match("warning: it is open: .* TREADLE_TOKEN", process.stderr.readline())


def test_an_address_that_cannot_be_had_is_an_error_with_a_reason(server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = {
            "0.0.0.0:0": (2, "set TREADLE_TOKEN"),
            "192.0.2.1:0": (2, "set TREADLE_TOKEN"),
            "[::]:0": (2, "set TREADLE_TOKEN"),
            "nonsense": (2, "HOST:PORT"),
            "127.0.0.1:abc": (2, "HOST:PORT"),
            "127.0.0.1:99999": (2, "HOST:PORT"),
            f"127.0.0.1:{taken.getsockname()[1]}": (1, "ADDRESS_UNAVAILABLE"),
        }
        started = {address: server("--http", address) for address in wrong}
        for address, (code, reason) in wrong.items():
            _, said = started[address].communicate(timeout=60)
            assert started[address].returncode == code
            assert reason in said


@pytest.mark.house
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
