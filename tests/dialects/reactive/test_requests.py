"""`sys/http.request@1` and `rx.tool("http")` against a real server (REACTIVE.md §8.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import reactive_air as air

from treadle import Engine
from treadle import reactive as rx
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.testing import assert_replays


class Answers(BaseHTTPRequestHandler):
    """`/409/…` answers 409; a POST's body comes back, after as many x as the path says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        _, status, more = self.path.split("/")[:3]
        body = b"x" * int(more or 0) + self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(int(status))
        self.send_header("content-length", str(len(body)))
        self.send_header("content-type", "text/plain")
        self.send_header("x-key", self.headers.get("idempotency-key") or "none")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Not into the test's output."""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@rx.schema("h/Go@1")
@dataclass(frozen=True)
class Go:
    id: str
    url: str
    body: bytes = b""


@rx.schema("h/Seen@1")
@dataclass(frozen=True)
class Seen:
    line: str
    body: bytes = b""
    ended: bool = False


def builtin() -> rx.Workflow:
    """Puts a body, posts it by reference, gets the body of the answer by its reference."""

    @rx.workflow(
        "h/post@1",
        state=Seen,
        events=[Go],
        key="id",
        effects=[rx.blob_put, rx.blob_get, "sys/http.request@1"],
        terminal=lambda s: s.ended,
    )
    def post(state, event, ctx):
        match event:
            case Go(_, url, body):
                return rx.Output(Seen(url), effects=[rx.blob_put(body)])
            case rx.Receipt(effect="sys/blob.put@1", value=stored):
                return rx.Output(
                    state,
                    effects=[
                        rx.http_request(rx.HttpRequest("POST", state.line, {"a": "b"}, stored.blob_ref))
                    ],
                )
            case rx.Receipt(effect="sys/http.request@1", status="ok", value=answer):
                assert answer.timings.end_ns >= answer.timings.start_ns > 0
                assert answer.headers["x-key"] == event.intent_id
                get = [rx.blob_get(rx.BlobStored(answer.body_ref))] if answer.body_ref else []
                return rx.Output(Seen(f"ok {answer.status}", ended=not get), effects=get)
            case rx.Receipt(effect="sys/http.request@1"):
                return rx.Output(Seen(f"{event.status} {event.error['class']}", ended=True))
            case rx.Receipt(value=body):
                return rx.Output(Seen(state.line, body, True))

    return post


async def settled(engine: Engine, workflow: str, key: str) -> Seen:
    async with asyncio.timeout(20):
        while True:
            run = await engine.cell(workflow, key)
            shown = await run.show() if run is not None else {}
            if shown.get("status") == "completed":
                return shown["state"]
            await asyncio.sleep(0.01)


@pytest.mark.house
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_an_answer_is_an_answer_whatever_its_status(tmp_path, base, status):
    flow = builtin()
    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:
        engine.deploy(rx.App("h", [flow]))
        await engine.publish(Go("a", f"{base}/{status}/0", b"hello"))
        state = await settled(engine, "h/post@1", "a")
        assert (state["line"], state["body"]) == (f"ok {status}", b"hello")
        await assert_replays(engine)


async def test_an_empty_body_has_no_reference(tmp_path, base):
    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:
        engine.deploy(rx.App("h", [builtin()]))
        await engine.publish(Go("a", f"{base}/200/0"))
        assert (await settled(engine, "h/post@1", "a"))["line"] == "ok 200"


@pytest.mark.house
async def test_only_no_answer_is_an_error(tmp_path):
    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:
        engine.deploy(rx.App("h", [builtin()]))
        await engine.publish(Go("a", "http://127.0.0.1:9/200/0", b"x"))
        assert (await settled(engine, "h/post@1", "a"))["line"] == "error transport"
        await assert_replays(engine)


@pytest.mark.house
@pytest.mark.parametrize(("more", "inline"), [(5, True), (PAYLOAD_INLINE_BYTES_MAX + 1, False)])
async def test_an_error_of_the_http_tool_says_what_came_back(tmp_path, base, more, inline):
    http = rx.tool("http")

    @rx.workflow("h/tool@1", state=Seen, events=[Go], key="id", effects=[http], terminal=lambda s: s.ended)
    def tool(state, event, ctx):
        match event:
            case Go(_, url):
                return rx.Output(Seen(url), effects=[http({"method": "GET", "url": url})])
            case rx.Receipt(status="error", error={"details": details}):
                told = [
                    details["status"],
                    details["headers"]["content-type"],
                    "body" in details,
                    "body_ref" in details,
                ]
                return rx.Output(Seen(str(told), details.get("body", "").encode(), True))

    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:
        engine.deploy(rx.App("h", [tool]))
        await engine.publish(Go("a", f"{base}/409/{more}"))
        state = await settled(engine, "h/tool@1", "a")
        assert state["line"] == str([409, "text/plain", inline, not inline])
        assert state["body"] == (b"x" * more if inline else b"")
        await assert_replays(engine)


@pytest.mark.house
async def test_the_saga_of_the_manifest_runs_on_an_engine(tmp_path, base):
    """Its own paths: charging answers 200, reserving 409, so that the money goes back."""

    class Shop(Answers):
        def do_POST(self) -> None:
            self.path = {"/charging": "/200/0", "/reserving": "/409/0", "/refunding": "/200/0"}[self.path]
            super().do_POST()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:
            engine.deploy(rx.App("saga", [air.saga], manifest=air.SAGA))
            await engine.publish(
                "demo/SagaEvent@1",
                {"Start": {"order_id": "o", "base": f"http://127.0.0.1:{server.server_port}"}},
            )
            state = await settled(engine, "demo/Saga@1", "o")
            assert (state["pc"], state["statuses"]) == ("refunded", [200, 409, 200])
            await assert_replays(engine)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.house
async def test_an_engine_applies_over_cells_that_have_no_end_and_nothing_open(tmp_path):
    """REACTIVE.md §8.4, on a store."""
    counter = rx.App("counter", [air.counter], manifest=air.COUNTER)
    again = rx.workflow(
        "demo/CounterSM@1", state=air.Counter, events=[air.CounterStart, air.CounterTick], effects=[]
    )(lambda state, event: rx.Output(air.Counter(air.Pc.Done, 7)))
    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:
        engine.deploy(counter)
        await engine.publish(air.CounterStart(2))
        assert (await (await engine.cell("demo/CounterSM@1", None)).show())["status"] == "running"
        await engine.apply(rx.App("counter", [again]))
        await engine.publish(air.CounterTick())
        assert (await (await engine.cell("demo/CounterSM@1", None)).show())["state"]["remaining"] == 7
        await assert_replays(engine)
