"""Each tick is one run, whoever dies when."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import nursery

from treadle import Engine
from treadle.kernel.errors import TreadleError
from treadle.lang.duration import parse_instant
from treadle.lang.recurrence import Every, instants
from treadle.lang.schedules import run_id
from treadle.store.rows import Batch
from treadle.store.sql import SqlStore
from treadle.testing import VirtualClock, assert_replays

from .test_schedules import QUICK, START, ids

STORE_OPTIONS = ("--port", "0")


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("after_it", [False, True], ids=["before the commit", "after the commit"])
async def test_a_crash_at_any_commit_of_a_tick_leaves_each_tick_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_it: bool
) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    store = f"sqlite:///{tmp_path}/c.db"
    clock = VirtualClock(START)
    async with clock.engine(store) as engine:
        engine.deploy(str(tmp_path))
        await engine.schedule_add("s", "quick", every="1h", catch_up="all", overlap="queue")
    whole = SqlStore.commit
    crashes = 0
    for hour in range(1, 7):
        clock._now_ns = START + hour * 3600 * 10**9
        for at in range(1, 5):
            left = at

            def commit(self: SqlStore, batch: Batch) -> None:
                nonlocal left, crashes
                left -= 1
                if left == 0:
                    if after_it:
                        whole(self, batch)
                    crashes += 1
                    raise Crash
                whole(self, batch)

            monkeypatch.setattr(SqlStore, "commit", commit)
            with contextlib.suppress(Crash, TreadleError):
                async with Engine(store, clock=clock) as dying:
                    while left > 0 and await dying.look(lambda view: view.busy()):
                        pass
            monkeypatch.setattr(SqlStore, "commit", whole)
    assert crashes >= 6
    async with clock.engine(store) as engine:
        await clock.settle()
        wanted = [run_id("s", tick) for tick in instants(Every(3600 * 10**9), START, clock.now_ns())]
        assert await ids(engine) == wanted
        assert {row["status"] for row in await engine.list()} == {"completed"}
        await assert_replays(engine)


def serve(folder: Path, store: str) -> tuple[nursery.Process, str]:
    (made,) = serve_several(folder, store, 1)
    return made


def serve_several(folder: Path, store: str, count: int) -> list[tuple[nursery.Process, str]]:
    """Servers that begin at the same time, and their addresses."""
    command = ["-m", "treadle.cli", "serve", "--store", store, *STORE_OPTIONS]
    made = [
        nursery.Process(command, cwd=folder, stdout=nursery.PIPE, stderr=nursery.DEVNULL)
        for _ in range(count)
    ]
    return [(one, one.stdout.readline().strip()) for one in made if one.stdout is not None]


def gone(process: nursery.Process) -> None:
    """Killed with SIGKILL, and waited for."""
    process.kill()
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


def asked(urls: list[str], method: str, path: str, **more: Any) -> Any:
    """Any server that is there answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for url in urls:
            try:
                found = httpx.request(method, f"{url}/api/v1{path}", timeout=20, **more)
            except httpx.HTTPError:
                continue
            if found.status_code < 500:
                return found.json()
        time.sleep(0.1)
    raise AssertionError("no server answers")


def test_three_servers_that_are_killed_at_ticks_start_each_tick_once(pg_store: str, tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    servers = serve_several(tmp_path, pg_store, 3)
    try:
        urls = [url for _, url in servers]
        asked(urls, "POST", "/definitions", json={"files": [{"path": "quick.yaml", "text": QUICK}]})
        said = {"name": "s", "workflow": "quick", "every": "2s", "catch_up": "all", "overlap": "allow"}
        first = asked(urls, "POST", "/schedules", json=said)["next"][0]
        for owner in range(3):
            due = parse_instant(asked(urls, "GET", "/schedules/s")["next"][0]) / 1e9
            time.sleep(max(0, due - time.time()))
            # One after another goes at the very tick, whoever fires the schedule among them; another comes in its place.
            gone(servers[owner][0])
            servers[owner] = serve(tmp_path, pg_store)
            urls = [url for _, url in servers]
            before = asked(urls, "GET", "/schedules/s")["last"]
            until = time.monotonic() + 60
            while asked(urls, "GET", "/schedules/s")["last"] == before:
                assert time.monotonic() < until, "nobody took the schedule over"
                time.sleep(0.2)
        asked(urls, "PATCH", "/schedules/s", json={"paused": True})
        last = asked(urls, "GET", "/schedules/s")["last"]["tick"]
        wanted = [
            run_id("s", tick)
            for tick in instants(Every(2 * 10**9), parse_instant(first) - 1, parse_instant(last))
        ]
        # A start may still be on its way to the member that decides its run.
        until = time.monotonic() + 60
        found = asked(urls, "GET", "/runs", params={"limit": 1000})["items"]
        while len(found) < len(wanted) and time.monotonic() < until:
            time.sleep(0.1)
            found = asked(urls, "GET", "/runs", params={"limit": 1000})["items"]
        assert sorted(row["id"] for row in found) == wanted
        assert len(wanted) >= 4
        for row in found:
            assert asked(urls, "POST", f"/runs/{row['id'].replace(':', '%3A')}/replay")["equal"] is True
    finally:
        for process, _ in servers:
            gone(process)


def test_serve_fires_timers_deadlines_and_schedules_with_nobody_connected(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    (tmp_path / "late.yaml").write_text(
        """
dialect: process
name: late
version: "1"
tasks: {review: {roles: [boss], timeout: 1s, escalate_to: [director]}}
steps:
  - wait: 300ms
  - task: review
"""
    )
    store = f"sqlite:///{tmp_path}/alone.db"

    def cli(*arguments: str, codes: tuple[int, ...] = (0,)) -> None:
        command = ["-m", "treadle.cli", *arguments, "--store", store]
        assert nursery.run(command, cwd=tmp_path).returncode in codes

    cli("deploy", "quick.yaml", "late.yaml")
    cli("schedule", "add", "s", "quick", "--every", "1s", "--overlap", "allow")
    cli("run", "late", "--id", "p", "--until-wait", codes=(3,))
    process, _ = serve(tmp_path, store)
    try:
        until = time.monotonic() + 60
        while True:
            # Only a look at the file: nobody speaks to the server.
            with sqlite3.connect(f"file:{tmp_path}/alone.db?mode=ro", uri=True) as reads:
                ticks = reads.execute("SELECT count(*) FROM runs WHERE workflow = 'quick'").fetchone()[0]
                roles = reads.execute("SELECT roles FROM tasks").fetchall()
            if ticks >= 2 and any("director" in row[0] for row in roles):
                return
            assert time.monotonic() < until, (ticks, roles)
            time.sleep(0.1)
    finally:
        gone(process)
