"""Fix and go on: a run that stopped goes on under the mended definition, from where it stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.kernel.errors import TreadleError
from treadle.server.app import create_app
from treadle.testing import assert_replays

BROKEN = """
metadata: {name: etl, version: "1"}
workload: {n: 2}
workflow:
  - step: fetch
    tool: {kind: count}
    next: {arcs: [{step: load}]}
  - step: load
    tool: {kind: python, code: "def main(n):\\n    return {'half': n / 0}", args: {n: "{{ workload.n }}"}}
"""
MENDED = BROKEN.replace("n / 0", "n / 2").replace('version: "1"', 'version: "2"')
PROCESS = """
dialect: process
name: etl
version: "1"
steps:
  - await: go
"""


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(f"sqlite:///{tmp_path}/m.db")
    engine.counted = 0  # type: ignore[attr-defined]

    @engine.tool("count")
    async def count() -> dict[str, int]:
        engine.counted += 1  # type: ignore[attr-defined]
        return {"times": engine.counted}  # type: ignore[attr-defined]

    (tmp_path / "broken.yaml").write_text(BROKEN)
    (tmp_path / "mended.yaml").write_text(MENDED)
    async with engine:
        yield engine


async def stopped(engine: Engine, tmp_path: Path) -> Any:
    run = await engine.start(engine.load(str(tmp_path / "broken.yaml"))[0], id="r")
    await run.settled(timeout=60)
    assert (await run.show())["status"] == "failed"
    return run


async def test_a_failed_run_goes_on_under_the_mended_definition_from_where_it_stopped(
    engine: Engine, tmp_path: Path
) -> None:
    run = await stopped(engine, tmp_path)
    before = await run.show()
    await engine.retry("r", definition=engine.load(str(tmp_path / "mended.yaml"))[0], by="ann")
    await run.settled(timeout=60)
    after = await run.show()
    assert (after["status"], after["version"]) == ("completed", "2")
    assert after["digest"] != before["digest"]
    # What was done is not done again.
    assert engine.counted == 1  # type: ignore[attr-defined]
    record = next(r for r in await run.journal() if r["kind"] == "retry")
    assert (record["event"]["definition"], record["event"]["was"]) == (after["digest"], before["digest"])
    assert "definition.changed" in [event["type"] for event in await engine.events_after("r", 0)]
    await assert_replays(engine)


async def test_it_is_the_same_after_a_restart(engine: Engine, tmp_path: Path) -> None:
    run = await stopped(engine, tmp_path)
    await engine.retry("r", definition=engine.load(str(tmp_path / "mended.yaml"))[0])
    await run.settled(timeout=60)
    shown = await run.show()
    async with Engine(engine.store_url, readonly=True) as again:
        assert await (await again.run("r")).show() == shown
        assert (await again.replay("r"))["equal"] is True


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (MENDED.replace("step: load", "step: store"), "INCOMPATIBLE_DEFINITION"),
        (MENDED.replace("name: etl", "name: other"), "INCOMPATIBLE_DEFINITION"),
        (PROCESS, "UNSUPPORTED"),
    ],
    ids=["without the step", "another workflow", "another dialect"],
)
async def test_a_definition_that_does_not_fit_is_refused_and_nothing_changes(
    engine: Engine, tmp_path: Path, other: str, code: str
) -> None:
    run = await stopped(engine, tmp_path)
    before = await run.show()
    (tmp_path / "other.yaml").write_text(other)
    with pytest.raises(TreadleError) as refused:
        await engine.retry("r", definition=engine.load(str(tmp_path / "other.yaml"))[0])
    assert refused.value.code == code
    assert await run.show() == before
    with pytest.raises(TreadleError) as nothing:
        await engine.retry("r", definition=engine.load(str(tmp_path / "mended.yaml"))[0], from_="nowhere")
    assert nothing.value.code == "STEP_UNKNOWN"
    assert await run.show() == before


async def test_over_http_a_run_goes_on_under_a_deployed_version(engine: Engine, tmp_path: Path) -> None:
    run = await stopped(engine, tmp_path)
    engine.deploy(str(tmp_path / "mended.yaml"))
    transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
        both = await http.post("/runs/r/retry", json={"definition": "etl@2", "from": "load"})
        assert both.status_code == 422
        sent = await http.post("/runs/r/retry", json={"definition": "etl@2"})
        assert (sent.status_code, sent.json()["version"]) == (200, "2")
        await run.settled(timeout=60)
        assert (await http.get("/runs/r")).json()["status"] == "completed"
        assert (await http.post("/runs/r/replay")).json()["equal"] is True
