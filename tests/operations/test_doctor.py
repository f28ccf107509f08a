"""The doctor: clocks, bus, schema, runs that nothing can move, rows whose run is gone; each finding says what to do."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.backdoor import change
from tests.cli.conftest import Cli, cli, folder

from treadle import Engine
from treadle.host.checkup import examine
from treadle.server.app import create_app
from treadle.server.carrying import examine_bus
from treadle.server.workers import Workers
from treadle.store.open import open_store
from treadle.store.reads import SqlReads
from treadle.testing import assert_replays

__all__ = ["cli", "folder"]

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "0.1.0.db"
WAITS = """
dialect: process
name: waits
version: "1"
limits: {concurrency: 1}
tasks: {approve: {roles: [boss]}}
steps:
  - task: approve
  - wait: 1h
"""
TIMER = "dialect: process\nname: timer\nversion: '1'\nsteps:\n  - wait: 1h\n  - complete: {ok: true}\n"


def findings(found: dict[str, Any]) -> dict[str, str]:
    return {f"{one['what']} {one['id']}": one["remedy"] for one in found["findings"]}


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as store:
        for statement in statements:
            assert store.execute(statement).rowcount > 0, statement
        store.commit()


async def made(folder: Path) -> str:
    url = f"sqlite:///{folder}/d.db"
    (folder / "waits.yaml").write_text(WAITS)
    (folder / "timer.yaml").write_text(TIMER)
    async with Engine(url) as engine:
        engine.deploy(str(folder / "waits.yaml"))
        engine.deploy(str(folder / "timer.yaml"))
        await engine.start("waits", id="first")
        await engine.start("waits", id="second")
        await engine.start("timer", id="third")
    return url


async def test_a_run_that_waits_for_what_is_not_there_is_found_and_the_remedy_helps(tmp_path: Path) -> None:
    url = await made(tmp_path)
    assert examine(url)["ok"], "a task, a place in line and a timer are there"
    changed(
        tmp_path / "d.db",
        "DELETE FROM tasks WHERE run_id = 'first'",
        "DELETE FROM places WHERE run = 'second'",
        "DELETE FROM timers WHERE run = (SELECT no FROM runs WHERE id = 'third')",
    )
    found = examine(url)
    assert not found["ok"]
    assert found["damaged"] == []
    told = findings(found)
    assert {"run first", "run second", "run third"} <= told.keys()
    assert told["run third"].startswith("treadle fork third")
    async with Engine(url) as engine:
        fork = await engine.fork("third", new_id="again")
        await engine.cancel("third")
        (wait,) = (await fork.show())["waiting_for"]
        assert wait["kind"] == "timer"
    assert not {"run third", "run again"} & findings(examine(url)).keys()


async def test_rows_whose_run_is_gone_are_found_and_collected(tmp_path: Path) -> None:
    url = await made(tmp_path)
    changed(
        tmp_path / "d.db",
        "INSERT INTO places SELECT 'gone', workflow, lane, held, priority, since_ns, quota FROM places LIMIT 1",
        "INSERT INTO submissions (scope, id, at_ns, body) VALUES ('run:gone', 'k', 0, x'f6')",
        "INSERT INTO timers (run, intent, due_ns, fires) VALUES (999, 'i', 1, 1)",
        "INSERT INTO journal SELECT 999, seq, event_no, opens, closes, digest, body FROM journal LIMIT 1",
        "INSERT INTO blob_refs VALUES (999, 'sha256:00'), (0, 'sha256:kept')",
    )
    told = findings(examine(url))
    assert set(told) == {
        f"table {name}" for name in ("places", "submissions", "timers", "journal", "blob_refs")
    }
    assert set(told.values()) == {"treadle gc removes them"}
    async with Engine(url) as engine:
        await engine.gc()
        assert await engine.read(lambda reads: reads.orphans()) == {}
        await assert_replays(engine)
    assert examine(url)["ok"]


async def test_what_is_told_of_a_run_goes_with_it(tmp_path: Path) -> None:
    url = await made(tmp_path)
    async with Engine(url) as engine:
        await engine.cancel("third")
        await change(engine, lambda desk: desk.diagnose("third", "stale", {"why": "late"}))
        assert await engine.diagnostics("third")
        await engine.delete("third")
        assert await engine.diagnostics("third") == []


async def test_clocks_that_differ_are_told_and_far_ones_make_a_server_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await made(tmp_path)
    right = SqlReads.now_ns
    async with Engine(url) as engine:
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert "clock" not in (await http.get("/readyz")).json()
            for seconds, status in ((5, 200), (60, 503)):
                monkeypatch.setattr(SqlReads, "now_ns", lambda reads, s=seconds: right(reads) - s * 10**9)
                ready = await http.get("/readyz")
                assert (ready.status_code, ready.json()["clock"][0]) == (status, "+")
                found = (await http.get("/api/v1/doctor")).json()
                (clock,) = [one for one in found["findings"] if one["what"] == "clock"]
                assert "ahead of the store's clock" in clock["message"]
                assert "NTP" in clock["remedy"]
                assert found["ok"] is False


async def test_a_bus_that_does_not_answer_is_told(tmp_path: Path) -> None:
    url = await made(tmp_path)
    async with Engine(url) as engine:
        workers = Workers(engine, bus="nats://127.0.0.1:1")
        carrying = asyncio.ensure_future(workers.carrying.run())
        transport = httpx.ASGITransport(app=create_app(engine, workers=workers), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
            found = (await http.get("/api/v1/doctor")).json()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        await workers.carrying.close()
    assert not found["ok"]
    assert "bus nats://127.0.0.1:1" in findings(found)


def test_the_doctor_of_a_store_looks_at_the_bus_too(
    cli: Cli, folder: Path, pg_store: str, nats_bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server: an operator looks from beside, over the same bus as servers and workers."""
    monkeypatch.delenv("TREADLE_BUS", raising=False)
    url, away = asyncio.run(made(folder)), "nats://127.0.0.1:1"

    def doctor(*more: str, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = cli("doctor", "--json", *more, code=code).json
        return found

    assert doctor("--store", url, "--bus", nats_bus)["bus"] == nats_bus
    alone = asyncio.run(examine_bus(url, away, examine(url), answer_s=0.1))  # nobody is there to answer
    assert f"bus {away}" in findings(alone)
    assert not alone["ok"]
    assert "smoke-signals" in doctor("--store", url, "--bus", "smoke-signals", code=2)["error"]["message"]
    assert "bus" not in doctor("--store", url), "a file has none unless somebody says so"
    monkeypatch.setenv("TREADLE_BUS", nats_bus)
    assert doctor("--store", url)["bus"] == nats_bus
    monkeypatch.delenv("TREADLE_BUS")
    assert cli("migrate", "--store", pg_store).code == 0
    assert doctor("--store", pg_store)["bus"] == "postgres"


def test_a_store_of_an_earlier_version_is_looked_at_as_it_is(tmp_path: Path) -> None:
    shutil.copy(GOLDEN, tmp_path / "old.db")
    found = examine(f"sqlite:///{tmp_path}/old.db")
    assert any("treadle migrate" in remark for remark in found["remarks"])
    assert found["damaged"] == []


async def test_rows_whose_run_is_gone_are_found_on_a_server_of_sql(pg_store: str) -> None:
    async with Engine(pg_store) as engine:
        assert await engine.read(lambda reads: reads.orphans()) == {}
        with closing(open_store(pg_store)) as store:
            rows = [("gone", "w", "", 1, 0, 1, b"\xa0")]
            store.insert_rows("places", "run, workflow, lane, held, priority, since_ns, quota", rows)
            store.insert_rows("blob_refs", "run, digest", [(10**6, "sha256:00")])
        found = await engine.doctor()
        assert {"table places", "table blob_refs"} == findings(found).keys()
        await engine.gc()
        assert (await engine.doctor())["ok"]


async def test_a_playbook_that_waits_at_a_gate_is_not_called_stuck(tmp_path: Path) -> None:
    """The example asks nobody for anything until somebody patches it."""
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(str(Path(__file__).parents[2] / "examples" / "playbook" / "approval.yaml"))
        run = await engine.start("approval", id="trip")
        await run.settled(timeout=10)
        assert (await run.show())["status"] == "waiting"
    assert findings(examine(f"sqlite:///{tmp_path}/t.db")) == {}
