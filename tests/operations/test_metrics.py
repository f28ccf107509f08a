"""GET /metrics: scraped, parsed by Prometheus's own parser, compared with what happened. From SERVER.md 34."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from treadle import Engine
from treadle.kernel.model import OpenIntent
from treadle.runtime.meter import NAMES_MAX, OTHER, CoreMeter
from treadle.runtime.staging import Closed, RunTurn, Staged
from treadle.server.app import create_app
from treadle.testing import VirtualClock
from treadle.testing.replaying import assert_replays

ROOT = Path(__file__).resolve().parents[2]
START = 1_767_225_600 * 10**9  # 2026-01-01T00:00:00Z
FLOWS = {
    "good": 'dialect: process\nname: good\nversion: "1"\nsteps:\n  - wait: 10m\n  - set: {state.done: true}\n',
    "bad": 'dialect: process\nname: bad\nversion: "1"\nsteps:\n  - fail: no reason\n',
    "asks": (
        'dialect: process\nname: asks\nversion: "1"\ntasks:\n  review: {roles: [boss]}\nsteps:\n  - task: review\n'
    ),
    "work": (
        'metadata: {name: work, version: "1"}\nworkflow:\n'
        "  - step: one\n    tool: {kind: python, code: \"result = {'value': 1}\"}\n    next: {arcs: [{step: two}]}\n"
        "  - step: two\n    spec: {pool: far}\n    tool: {kind: noop}\n"
    ),
}
# Those of SERVER.md 34, as its text has them.
PROMISED = {
    "treadle_runs_total": ("workflow", "status"),
    "treadle_runs": ("status",),
    "treadle_steps_total": ("kind", "status"),
    "treadle_step_seconds": ("kind",),
    "treadle_commit_seconds": (),
    "treadle_queue": ("pool",),
    "treadle_workers": ("pool",),
    "treadle_shards": (),
    "treadle_http_requests_total": ("route", "method", "status"),
    "treadle_http_seconds": ("route",),
    "treadle_stale_receipts_total": (),
    "treadle_schedule_lag_seconds": (),
}
MEANT = {"le", "workflow", "status", "kind", "pool", "route", "method", "code"}


class Scraped:
    def __init__(self, text: str) -> None:
        self.text = text
        self.families: list[Metric] = [*text_string_to_metric_families(text)]
        self.samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        found = [s.value for s in self.samples if s.name == name and s.labels == labels]
        assert len(found) <= 1, f"{name} {labels} is there twice"
        return found[0] if found else 0.0

    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    for name, text in FLOWS.items():
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    async with Engine("memory:", pools=["default"]) as engine:
        engine.deploy(str(tmp_path))
        yield engine


def client(engine: Engine) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client(engine) as found:
        yield found


async def waiting_far(engine: Engine) -> None:
    """Until the second step waits in its pool, which nobody serves here."""
    async with asyncio.timeout(60):
        with engine.watch("") as watch:
            while engine.bus.waiting().get("far") != 1:
                await watch.changed(0.02)


async def scrape(http: httpx.AsyncClient) -> Scraped:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scraped(answer.text)


async def test_what_happened_is_what_is_scraped(engine: Engine, http: httpx.AsyncClient) -> None:
    for id, workflow in (("an-id-1", "good"), ("an-id-2", "bad"), ("an-id-3", "asks")):
        answer = await http.post("/api/v1/runs", json={"workflow": workflow, "id": id})
        assert answer.status_code == 201
    await engine.start("work", id="an-id-4")
    await (await engine.run("an-id-2")).settled()
    await waiting_far(engine)
    await http.get("/api/v1/runs/nothing")
    await http.get("/nowhere/an-id-5")
    found = await scrape(http)
    assert found.value("treadle_runs_total", workflow="good", status="started") == 1
    assert found.value("treadle_runs_total", workflow="bad", status="failed") == 1
    assert found.value("treadle_runs_total", workflow="work", status="completed") == 0
    assert found.value("treadle_runs", status="failed") == 1
    assert found.value("treadle_steps_total", kind="step", status="ok") == 1
    assert found.value("treadle_step_seconds_count", kind="step") == 1
    assert found.value("treadle_queue", pool="far") == 1
    assert found.value("treadle_workers", pool="default") == 1
    assert found.value("treadle_tasks_open") == 1
    assert found.value("treadle_timers") == 1
    assert found.value("treadle_timers_due") == 0
    assert found.value("treadle_shards") == found.value("treadle_store_shards") == 1
    assert found.value("treadle_members") == 1
    assert found.value("treadle_hot_runs") >= 3
    assert found.value("treadle_store_bytes") > 4096
    records = found.value("treadle_records_total")
    assert records == sum([len(await (await engine.run(f"an-id-{n}")).journal()) for n in range(1, 5)])
    assert found.value("treadle_commit_records_sum") == records
    assert found.value("treadle_commit_seconds_count") == found.value("treadle_commit_records_count") > 0
    routed = {"route": "/runs", "method": "POST", "status": "201"}
    assert found.value("treadle_http_requests_total", **routed) == 3
    missing = {"route": "/runs/{id}", "method": "GET", "status": "404"}
    assert found.value("treadle_http_requests_total", **missing) == 1
    assert found.value("treadle_http_seconds_count", route="/runs/{id}") == 1
    assert "an-id" not in found.text, "no id is a label"
    assert await assert_replays(engine) == 4


async def test_how_late_time_came_is_counted_when_it_did(tmp_path: Path) -> None:
    clock = VirtualClock(START)
    for name in ("good", "bad"):
        (tmp_path / f"{name}.yaml").write_text(FLOWS[name], "utf-8")
    async with Engine(f"sqlite:///{tmp_path}/s.db", clock=clock) as before:
        before.deploy(str(tmp_path))
        await before.schedule_add("hourly", "bad", every="1h")
        run = await before.start("good", id="waits")
        assert (await run.settled(until_wait=True))["status"] == "waiting"
        assert before.meter.timer_lag.sum == 0
    # Nobody was there: the timer fell due after ten minutes, the schedule after an hour.
    await clock.advance(3610)
    async with clock.engine(f"sqlite:///{tmp_path}/s.db") as engine:
        await clock.settle()
        async with client(engine) as http:
            found = await scrape(http)
        assert await assert_replays(engine) == 2
    assert found.value("treadle_timer_lag_seconds_count") == 1
    assert found.value("treadle_timer_lag_seconds_sum") == 3010
    assert found.value("treadle_schedule_lag_seconds_count") == 1
    assert found.value("treadle_schedule_lag_seconds_sum") == 10
    assert found.value("treadle_timers_due") == 0
    assert found.value("treadle_runs_total", workflow="good", status="completed") == 1
    assert found.value("treadle_runs_total", workflow="good", status="started") == 0, "it began elsewhere"


async def test_every_promised_metric_is_there_with_its_labels_and_no_others(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    await engine.start("work")
    await waiting_far(engine)
    await http.get("/healthz")
    found = await scrape(http)
    kinds = {family.name: family.type for family in found.families}
    for name, labels in PROMISED.items():
        samples = [
            s for s in found.samples if s.name in (name, f"{name}_bucket", f"{name}_count", f"{name}_sum")
        ]
        assert samples or name.removesuffix("_total") in kinds, f"{name} is not exposed"
        for sample in samples:
            assert set(sample.labels) - {"le"} == set(labels), sample
    assert {label for sample in found.samples for label in sample.labels} <= MEANT
    for family in found.families:
        assert family.documentation.strip(), f"{family.name} says nothing about itself"
        assert family.name.startswith("treadle_")


def test_a_thousand_workflows_are_not_a_thousand_series() -> None:
    meter = CoreMeter()
    staged = Staged(1)
    for number in range(1_000):
        staged.turns.append(RunTurn(f"r{number}", f"w{number}", 1, "completed"))
        intent = OpenIntent(id=f"{number}", kind=f"k{number}", params={})
        staged.closed.append(Closed(intent, "ok", 1))
    meter.committed(staged, 0.001)
    assert len({workflow for workflow, _ in meter.runs}) == NAMES_MAX + 1
    assert meter.runs[OTHER, "started"] == meter.runs[OTHER, "completed"] == 1_000 - NAMES_MAX
    assert len(meter.step_seconds) == NAMES_MAX + 1
    assert sum(meter.steps.values()) == 1_000


async def test_every_expression_of_the_dashboard_asks_for_what_is_there(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    await engine.start("work")
    await waiting_far(engine)
    found = await scrape(http)
    there = {name for family in found.families for name in _spellings(family)}
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "treadle.json").read_text("utf-8"))
    expressions = [*_expressions(dashboard)]
    assert len(expressions) >= 15
    asked = {name for text in expressions for name in re.findall(r"\btreadle_\w+", text)}
    assert asked <= there, sorted(asked - there)
    for text in expressions:
        assert asked.intersection(re.findall(r"\btreadle_\w+", text)), f"{text} asks for nothing of ours"
        by = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in re.split(r",\s*", group)}
        assert by <= MEANT | {"instance"}, text
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["title"] and panel["targets"] for panel in panels)


def _spellings(family: Metric) -> set[str]:
    """All names under which a family can be asked for, whether it has a sample yet or not."""
    if family.type == "histogram":
        return {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
    return {f"{family.name}_total"} if family.type == "counter" else {family.name}


def _expressions(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for item in value for text in _expressions(item)]
    if not isinstance(value, dict):
        return []
    own = [value["expr"]] if isinstance(value.get("expr"), str) else []
    own += [value["query"]] if isinstance(value.get("query"), str) and "treadle_" in value["query"] else []
    return own + [text for item in value.values() for text in _expressions(item)]
