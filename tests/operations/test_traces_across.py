"""One run across a server and two workers, each its own process, told to a collector; the server is killed meanwhile."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests import nursery

from .collector import Collector, collecting
from .test_traces import CALLER, by_name, elsewhere

FLOW = """
dialect: process
name: across
version: "1"
steps:
  - call: {transport: http, method: GET, url: "%s", pool: left, retry: {attempts: 2, delay: 1ms}, into: one}
  - await: go
  - call: {transport: http, method: GET, url: "%s", pool: right, into: two}
"""


@contextmanager
def process(folder: Path, *words: str) -> Iterator[nursery.Process]:
    command = ["-m", "treadle.cli", *words, "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    started = nursery.Process(
        command, cwd=folder, env=environment, stdout=nursery.DEVNULL, stderr=nursery.DEVNULL
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait(30)


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
    return found


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_across(folder: Path, collector: Collector) -> tuple[str, list[str]]:
    """The id of a run whose server was killed in its middle, and the contexts that its calls passed on."""
    url = f"http://127.0.0.1:{free_port()}"
    told = ("--otlp", collector.url)
    serve = ("serve", "--port", url.rpartition(":")[2], "--no-worker", "--deploy", "across.yaml", *told)
    with elsewhere() as service, ExitStack() as stack:
        service.failures = 1
        api = stack.enter_context(httpx.Client(base_url=f"{url}/api/v1", timeout=60))
        (folder / "across.yaml").write_text(FLOW % (service.url, service.url))
        server = stack.enter_context(ExitStack())
        server.enter_context(process(folder, *serve))
        for pool in ("left", "right"):
            stack.enter_context(
                process(folder, "worker", "--server", url, "--name", pool, "--pool", pool, *told)
            )
        until(lambda: is_ready(url))
        started = api.post("/runs", json={"workflow": "across"}, headers={"traceparent": CALLER})
        run = str(started.raise_for_status().json()["id"])
        until(lambda: any(w["kind"] == "signal" for w in api.get(f"/runs/{run}").json()["waiting_for"]))
        # At once: some of it may be told, and how far is not saved.
        server.close()
        server.enter_context(process(folder, *serve))
        until(lambda: is_ready(url))
        api.post(f"/runs/{run}/signal", json={"name": "go"}).raise_for_status()
        collector.until(lambda: {"run across", "tool http"} <= {span.name for span in collector.of(run)})
        collector.until(lambda: len([s for s in collector.of(run) if s.name.startswith("perform ")]) == 3)
        assert api.post(f"/runs/{run}/replay").json()["equal"] is True
        return run, [headers["traceparent"] for headers in service.headers]


def test_a_run_across_a_server_and_two_workers_is_one_trace_also_through_a_kill(tmp_path: Path) -> None:
    with collecting() as collector:
        run, passed_on = run_across(tmp_path, collector)
        spans = collector.once(run)
    named = by_name(spans)
    assert {name: len(found) for name, found in named.items()} == {
        "run across": 1,
        "call one": 1,
        "attempt one": 2,
        "timer retry one": 1,
        "signal go": 1,
        "call two": 1,
        "attempt two": 1,
        "perform one": 2,
        "perform two": 1,
        "tool http": 3,
    }
    assert {span.trace for span in spans.values()} == {"ab" * 16}
    (top,), (one,), (two,) = named["run across"], named["call one"], named["call two"]
    assert top.parent == "cd" * 8
    assert {span.parent for name in ("call one", "call two", "signal go") for span in named[name]} == {top.id}
    assert [span.error for span in named["attempt one"]] == ["HTTP_503", None]
    assert [span.parent for span in named["attempt one"]] == [one.id] * 2
    assert [span.parent for span in named["attempt two"]] == [two.id]
    for step in ("one", "two"):
        performed, attempts = named[f"perform {step}"], named[f"attempt {step}"]
        assert [span.parent for span in performed] == [span.id for span in attempts]
    done = [*named["perform one"], *named["perform two"]]
    assert [span.attributes["treadle.worker"] for span in done] == ["left", "left", "right"]
    assert {span.service for span in done} == {"treadle-worker"}
    assert {span.service for span in (top, one, two)} == {"treadle"}
    assert [span.parent for span in named["tool http"]] == [span.id for span in done]
    assert passed_on == [f"00-{span.trace}-{span.id}-01" for span in named["tool http"]]
