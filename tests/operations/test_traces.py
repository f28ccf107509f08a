"""Traces: what a collector is told of runs, from the journal and from those who do the work."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed, TreadleError, flow
from treadle.cli.log_lines import written
from treadle.kernel.tracing import TraceIds, parse_traceparent
from treadle.telemetry.follower import Follower, nothing_measured
from treadle.telemetry.otlp import Otlp
from treadle.telemetry.settings import settings
from treadle.testing import ScriptedModel, assert_replays

from .collector import Collector, Told, collecting

CALLER = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
SECRET = "what-nobody-else-may-see"

PARENT = """
dialect: process
name: parent
version: "1"
steps:
  - set: {state.word: what-nobody-else-may-see}
  - call: {transport: flaky, payload: {$: state.word}, retry: {attempts: 3, delay: 1ms}, into: a}
  - child: {workflow: child, into: c}
  - await: go
"""
CHILD = 'dialect: process\nname: child\nversion: "1"\nsteps: [{set: {state.done: true}}]\n'
HTTP = """
metadata: {name: fetch, version: "1"}
workflow:
  - step: get
    tool:
      - name: a
        kind: http
        url: "{{ workload.url }}"
        headers: "{{ workload.headers }}"
        spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 2, delay: 0.01}}, {else: {then: {do: continue}}}]}}
"""


class Elsewhere:
    """A service that keeps the headers it was sent; the first answers may be failures."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.failures = 0
        self.url = ""

    def answer(self, headers: dict[str, str]) -> int:
        self.headers.append(headers)
        self.failures -= 1
        return 503 if self.failures >= 0 else 200


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    service = Elsewhere()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = service.answer({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def traced(collector: Collector, folder: Path, **more: Any) -> Engine:
    engine = Engine(f"sqlite:///{folder}/t.db", telemetry=collector.url, **more)
    failures = 2

    @engine.transport("flaky")
    def flaky(payload: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ValueError(f"not yet: {payload}")
        return payload

    for name, text in {"child": CHILD, "parent": PARENT, "fetch": HTTP}.items():
        (folder / f"{name}.yaml").write_text(text)
        engine.deploy(str(folder / f"{name}.yaml"))
    return engine


def by_name(spans: dict[str, Told]) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = {}
    for span in sorted(spans.values(), key=lambda span: span.start_ns):
        found.setdefault(span.name, []).append(span)
    return found


async def test_a_run_is_one_trace_of_runs_steps_and_attempts(collector: Collector, tmp_path: Path) -> None:
    async with traced(collector, tmp_path) as engine:
        run = await engine.start("parent", id="p", traceparent=CALLER)
        await engine.signal("p", "go")
        await run.result(timeout=60)
        (child,) = (await run.show())["children"]
        await assert_replays(engine)
    spans = {**collector.ended("p"), **collector.ended(child)}
    named = by_name(spans)
    assert {span.trace for span in spans.values()} == {"ab" * 16}
    (top,), (call,) = named["run parent"], named["call a"]
    assert (top.parent, top.error, top.attributes["treadle.status"]) == ("cd" * 8, None, "completed")
    assert (call.parent, call.error, call.attributes["treadle.attempts"]) == (top.id, None, 3)
    tries = named["attempt a"]
    assert [span.parent for span in tries] == [call.id] * 3
    assert [span.error for span in tries] == ["PYTHON_ERROR", "PYTHON_ERROR", None]
    assert [span.attributes["treadle.attempt"] for span in tries] == [1, 2, 3]
    assert call.start_ns == tries[0].start_ns
    assert call.end_ns == tries[-1].end_ns
    assert [span.parent for span in named["perform a"]] == [span.id for span in tries]
    assert {span.parent for span in named["timer retry a"]} == {top.id}
    (wait,), (below,), (signal,) = named["child child"], named["run child"], named["signal go"]
    assert (wait.parent, wait.attributes["treadle.child"]) == (top.id, child)
    assert below.parent == wait.id
    assert signal.parent == top.id


async def test_spans_tell_no_values(collector: Collector, tmp_path: Path) -> None:
    async with traced(collector, tmp_path) as engine:
        run = await engine.start("parent", id="p")
        await engine.signal("p", "go", {"note": SECRET})
        assert SECRET in json.dumps((await run.show())["state"])
        await run.result(timeout=60)
    assert collector.ended("p")
    assert not [span for span in collector.spans if SECRET in repr(span)]


async def test_steps_of_functions_are_tried_again_under_one_span(
    collector: Collector, tmp_path: Path
) -> None:
    @flow.step(retry={"attempts": 3, "delay": "1ms"})
    def work() -> int:
        if flow.current().attempt < 3:
            raise ValueError("no")
        return 3

    @flow.step
    def never() -> None:
        raise ValueError("never")

    @flow.workflow
    async def function(ctx: flow.Context) -> int:
        found = await work()
        await never()
        return found

    async with Engine(f"sqlite:///{tmp_path}/t.db", telemetry=collector.url) as engine:
        run = await engine.start(function, id="f")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        await assert_replays(engine)
    named = by_name(collector.ended("f"))
    (step,), (failed,), (top,) = named["step work"], named["step never"], named["run function"]
    assert [span.parent for span in named["attempt work"]] == [step.id] * 3
    assert (step.error, step.attributes["treadle.attempts"]) == (None, 3)
    assert failed.error is not None
    assert top.error is not None


async def test_the_http_tool_passes_its_context_on(collector: Collector, tmp_path: Path) -> None:
    """Each attempt under a span of its own; what an author says in a header is left as it is."""
    with elsewhere() as service:
        service.failures = 1
        async with traced(collector, tmp_path) as engine:
            run = await engine.start("fetch", {"url": service.url, "headers": {}}, id="a")
            await run.result(timeout=60)
            own = {"Traceparent": "of my own"}
            await (await engine.start("fetch", {"url": service.url, "headers": own}, id="b")).result(
                timeout=60
            )
            await assert_replays(engine)
        spans = by_name(collector.ended("a"))
        calls = spans["tool http"]
        sent = [headers["traceparent"] for headers in service.headers]
        assert sent[:2] == [f"00-{span.trace}-{span.id}-01" for span in calls]
        assert sent[2:] == ["of my own"]
        assert [span.error for span in calls] == ["HTTP_503", None]
        (performed,) = spans["perform get"]
        assert {span.parent for span in calls} == {performed.id}
        assert (await_retries := spans["attempt get"][0]).attributes["treadle.retries"] == 1, await_retries


async def test_calls_of_models_say_model_and_tokens_and_no_text(collector: Collector, tmp_path: Path) -> None:
    asks = {
        "id": "asks",
        "name": "Asks",
        "model": "small-1",
        "inputs": {"host": {"type": "string"}},
        "entry": "a",
        "nodes": {"a": {"name": "a", "instruction": "Look."}},
        "edges": [],
    }
    (tmp_path / "asks.json").write_text(json.dumps(asks))
    engine = Engine(f"sqlite:///{tmp_path}/t.db", telemetry=collector.url)
    usage = {"input_tokens": 17, "output_tokens": 4}
    engine.models["fake"] = ScriptedModel({"run": {"a": [{"data": {"said": SECRET}, "usage": usage}]}})
    async with engine:
        engine.deploy(str(tmp_path / "asks.json"))
        await (await engine.start("asks", {"host": SECRET}, id="m", model="fake")).result(timeout=60)
        await assert_replays(engine)
    named = by_name(collector.ended("m"))
    (attempt,), (performed,) = named["attempt a"], named["perform a"]
    counted = {
        "gen_ai.usage.input_tokens": 17,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.provider.name": "fake",
    }
    assert counted.items() <= attempt.attributes.items()
    assert {**counted, "gen_ai.request.model": "small-1"}.items() <= performed.attributes.items()
    assert SECRET not in repr(collector.spans)


async def test_a_line_of_the_log_says_of_which_trace_it_is(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "loud.yaml").write_text(
        'metadata: {name: loud, version: "1"}\nworkflow: [{step: s, tool: {kind: loud}}]\n'
    )
    stream = io.StringIO()
    with written("json", stream):
        async with Engine(f"sqlite:///{tmp_path}/t.db", telemetry=collector.url) as engine:

            @engine.tool("loud")
            def loud() -> None:
                logging.getLogger("elsewhere").warning("here")

            engine.deploy(str(tmp_path / "loud.yaml"))
            await (await engine.start("loud", id="l")).result(timeout=60)
    (performed,) = by_name(collector.ended("l"))["perform s"]
    (line,) = [json.loads(text) for text in stream.getvalue().splitlines() if '"elsewhere"' in text]
    assert (line["run"], line["trace"], line["span"]) == ("l", performed.trace, performed.id)


async def test_a_caller_s_trace_is_passed_on_where_nobody_is_told(tmp_path: Path) -> None:
    (tmp_path / "fetch.yaml").write_text(HTTP)
    with elsewhere() as service:
        async with Engine("memory:") as engine:
            engine.deploy(str(tmp_path / "fetch.yaml"))
            for more in ({"traceparent": CALLER}, {}):
                run = await engine.start("fetch", {"url": service.url, "headers": {}}, **more)
                await run.result(timeout=60)
            await assert_replays(engine)
            with pytest.raises(TreadleError, match="traceparent"):
                await engine.start("fetch", {"url": service.url}, traceparent="nonsense")
        assert [headers.get("traceparent") for headers in service.headers] == [CALLER, None]


async def test_a_trace_that_its_caller_does_not_sample_is_not_told(
    collector: Collector, tmp_path: Path
) -> None:
    async with traced(collector, tmp_path) as engine:
        await (await engine.start("child", id="no", traceparent=CALLER[:-2] + "00")).result(timeout=60)
        await (await engine.start("child", id="yes")).result(timeout=60)
    assert collector.ended("yes")
    assert collector.of("no") == []


async def test_a_collector_that_is_down_holds_nobody_up_and_gets_everything_later(
    collector: Collector, tmp_path: Path
) -> None:
    collector.status = 503
    async with traced(collector, tmp_path) as engine:
        for id in ("a", "b"):
            await (await engine.start("child", id=id)).result(timeout=60)
        collector.until(lambda: collector.asked)
        collector.status = 200
        assert collector.ended("a")
        assert collector.ended("b")


async def test_what_a_collector_refuses_for_good_does_not_keep_the_rest_back(
    collector: Collector, tmp_path: Path
) -> None:
    collector.refuses = lambda span: span.attributes["treadle.run"] == "bad"
    async with traced(collector, tmp_path) as engine:
        for id in ("bad", "good"):
            await (await engine.start("child", id=id)).result(timeout=60)
        assert collector.ended("good")
    assert collector.of("bad") == []


async def test_a_run_that_goes_on_after_its_end_has_a_second_span(
    collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "again.yaml").write_text(
        'metadata: {name: again, version: "1"}\nworkflow: [{step: s, tool: {kind: here}}]\n'
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db", telemetry=collector.url) as engine:
        failing = True

        @engine.tool("here")
        def here() -> int:
            if failing:
                raise ValueError("no")
            return 1

        engine.deploy(str(tmp_path / "again.yaml"))
        run = await engine.start("again", id="r")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        failing = False
        await engine.retry("r")
        await run.result(timeout=60)
        collector.until(lambda: len([s for s in collector.of("r") if s.name == "run again"]) == 2)
        await assert_replays(engine)
    first, second = by_name(collector.once("r"))["run again"]
    assert (first.error is None, second.error) == (False, None)
    assert first.id != second.id
    assert [span.parent for span in by_name(collector.once("r"))["step s"]] == [first.id, second.id]


def told(collector: Collector) -> Otlp:
    found = settings(collector.url, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"})
    assert found is not None
    return Otlp(found, "treadle")


class Kept:
    """A store as a follower sees it, of an engine that is open; it starts at the beginning."""

    def __init__(self, engine: Engine) -> None:
        self._read = engine._bridge.reading.read_blocking
        self.body: Any = {"marks": [[0, 0, 0]]}

    def is_ours(self) -> bool:
        return True

    def read(self, question: Any) -> Any:
        return self._read(question)

    def saved(self) -> Any:
        return self.body

    def save(self, body: Any) -> None:
        self.body = body


async def test_whoever_follows_tells_the_same_spans(tmp_path: Path) -> None:
    """A second exporter, one that keeps hardly any run in memory, one that reads from snapshots."""
    with collecting() as first, collecting() as second, collecting() as third:
        async with traced(first, tmp_path) as engine:
            for id in ("a", "b", "c"):
                await engine.start("parent", id=id)
                await engine.signal(id, "go")
            for id in ("a", "b", "c"):
                await (await engine.run(id)).result(timeout=60)
            for id in ("a", "b", "c"):
                first.ended(id)
            ids = TraceIds(engine.work_key)
            for where, limits in ((second, {"runs_max": 1}), (third, {"records_max": 1})):
                kept = Kept(engine)
                other = Follower(
                    kept,
                    told(where),
                    lambda: ids,
                    lambda _: nothing_measured,
                    **limits,
                )
                other.start()
                where.until(
                    lambda where=where: all([s for s in where.of(id) if s.name[:4] == "run "] for id in "abc")
                )
                other.stop()
                assert kept.body["marks"][0] != [0, 0, 0]
        for id in ("a", "b", "c"):
            own = {span for span in first.once(id).values() if not span.name.startswith("perform ")}
            assert own == set(second.once(id).values()) == set(third.once(id).values())


async def test_records_that_take_the_place_of_deleted_ones_are_told(
    collector: Collector, tmp_path: Path
) -> None:
    """SQLite gives the places of the newest rows again once these are gone."""
    async with traced(collector, tmp_path) as engine:
        for id in ("a", "b", "c"):
            await (await engine.start("child", id=id)).result(timeout=60)
        collector.ended("c")
        for id in ("b", "c"):
            await engine.delete(id)
        for id in ("d", "e", "f"):
            await (await engine.start("child", id=id)).result(timeout=60)
        for id in ("d", "e", "f"):
            assert collector.ended(id)
        await assert_replays(engine)


async def test_what_is_told_goes_on_where_it_stopped(collector: Collector, tmp_path: Path) -> None:
    async with traced(collector, tmp_path) as engine:
        await (await engine.start("child", id="a")).result(timeout=60)
    collector.ended("a")
    told = len(collector.spans)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as silent:
        await (await silent.start("child", id="b")).result(timeout=60)
    async with traced(collector, tmp_path) as engine:
        await (await engine.start("child", id="c")).result(timeout=60)
    assert collector.ended("b")
    assert collector.ended("c")
    assert len(collector.of("a")) == told, "a store that was closed in good order has told nothing twice"


def test_ids_are_of_one_store_and_of_one_thing() -> None:
    one, other = TraceIds(b"one"), TraceIds(b"other")
    assert one.origin("r", {}) == TraceIds(b"one").origin("r.0123456789ab", {})
    assert one.origin("r", {}).trace != other.origin("r", {}).trace
    assert one.step("i") != one.attempt("i") != other.attempt("i")
    assert one.run("r") != one.run("r", 7)
    assert not TraceIds(b"one", ratio=0).origin("r", {}).sampled
    sampled = sum(TraceIds(b"one", ratio=0.5).origin(f"r{n}", {}).sampled for n in range(1000))
    assert 400 < sampled < 600
    assert str(parse_traceparent(CALLER)) == CALLER
    for text in (
        None,
        "",
        CALLER[:-1],
        CALLER.upper(),
        "ff" + CALLER[2:],
        CALLER + "-more",
        "00-" + "0" * 32 + CALLER[35:],
    ):
        assert parse_traceparent(text) is None, text
    assert parse_traceparent("01" + CALLER[2:] + "-more") is not None


def test_nothing_is_told_unless_somebody_asks() -> None:
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert settings(None, {}) is None
    assert settings(None, {**named, "OTEL_SDK_DISABLED": "true"}) is None
    assert settings(None, {**named, "OTEL_TRACES_EXPORTER": "none"}) is None
    assert settings(False, named) is None
    for given in ("http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"):
        assert settings(given, {}) == settings(None, named)
    for odd in ("c:4318", "http://", "http://[", "http://c:port"):
        with pytest.raises(TreadleError, match="http:// or https:// and a host"):
            settings(odd, {})
    with pytest.raises(TreadleError, match="4318"):
        settings(True, {**named, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_the_variables_of_the_standard_are_heeded() -> None:
    found = settings(
        True,
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:4318",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:9/as/it/is",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,b=2",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.name=not%20this",
            "OTEL_SERVICE_NAME": "orders",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
        },
    )
    assert found is not None
    assert found.url == "http://traces:9/as/it/is"
    assert found.headers == {"authorization": "Bearer x", "b": "2"}
    assert (found.timeout_s, found.gzip, found.ratio) == (2.5, True, 0.25)
    assert found.resource == {"deployment.environment": "test", "service.name": "orders"}


def test_nothing_of_it_is_imported_where_nobody_is_told(tmp_path: Path) -> None:
    import subprocess

    code = "import asyncio, sys, treadle\nasync def main():\n  async with treadle.Engine('memory:'): pass\nasyncio.run(main())\n"
    code += "print([name for name in sys.modules if name.startswith('treadle.telemetry')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
