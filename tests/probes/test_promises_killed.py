"""Promises of docs/guarantees.md, kept while processes are killed: as owner, and as guest."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests import nursery

from treadle import Engine
from treadle.lang.duration import parse_instant
from treadle.lang.recurrence import Every, instants
from treadle.lang.schedules import run_id
from treadle.testing import assert_replays

DEADLINE_S = 60.0
FLOW = "dialect: process\nname: P\nversion: '1'\nsteps: [{await: {signal: go}}, {complete: 1}]\n"
QUICK = "dialect: process\nname: Q\nversion: '1'\nsteps: [{complete: 1}]\n"
# Says what it is, starts a run for each line that it reads, and says what came of that.
OTHER = """
import asyncio, sys
from pathlib import Path
from treadle import Engine
from treadle.kernel.errors import TreadleError

async def main():
    async with Engine(sys.argv[1]) as engine:
        print("owner" if engine.owns else "guest", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                await engine.start(Path(sys.argv[2]), None, id=line.strip())
                print("ok", flush=True)
            except TreadleError as error:
                print(error.code, flush=True)

asyncio.run(main())
"""


@contextmanager
def other(store: str, flow: Path) -> Iterator[nursery.Process]:
    process = nursery.Process(["-c", OTHER, store, flow], stdin=nursery.PIPE, stdout=nursery.PIPE)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)


def said(process: nursery.Process) -> str:
    assert process.stdout is not None
    return str(process.stdout.readline()).strip()


def asked(process: nursery.Process, run: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{run}\n")
    process.stdin.flush()
    return said(process)


def replace(path: Path) -> None:
    """A copy takes the place of a store that is open, log and all."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as there, closing(sqlite3.connect(copy)) as made:
        there.backup(made)
    for log in ("-wal", "-shm"):
        Path(f"{path}{log}").unlink()
    shutil.move(copy, path)


@pytest.mark.parametrize("killed", ["owner", "guest"])
def test_nothing_is_acknowledged_for_a_store_that_is_gone_whoever_is_killed(
    tmp_path: Path, killed: str
) -> None:
    """Whoever is left has the old file open; a guest that takes over must not take the new one for it."""
    path, flow = tmp_path / "t.db", tmp_path / "p.yaml"
    flow.write_text(FLOW)
    store = f"sqlite:///{path}"
    asyncio.run(_deploy(store, flow))
    with other(store, flow) as owner, other(store, flow) as guest:
        if (said(owner), said(guest)) == ("guest", "owner"):
            owner, guest = guest, owner
        told = {run for run, who in (("a", owner), ("b", guest)) if asked(who, run) == "ok"}
        assert told == {"a", "b"}
        replace(path)
        gone, left = (owner, guest) if killed == "owner" else (guest, owner)
        gone.send_signal(signal.SIGKILL)
        time.sleep(0.5)  # a guest takes over meanwhile, or finds out
        answer = asked(left, "c")
        if answer == "ok":
            told.add("c")
        assert answer in ("STORE_GONE", "ENGINE_STOPPED"), answer
    assert asyncio.run(_runs(store)) == told


async def _deploy(store: str, *flows: Path) -> None:
    engine = Engine(store)
    for flow in flows:
        engine.deploy(flow)
    async with engine:
        assert engine.owns


async def _runs(store: str) -> set[str]:
    async with Engine(store) as engine:
        await assert_replays(engine)
        return {row["id"] for row in await engine.list(limit=1000)}


async def test_each_tick_is_one_run_whoever_is_killed_at_it(tmp_path: Path) -> None:
    """Three processes on one file: the owner is killed at one tick, a guest at the next, and others come in their place."""
    flow = tmp_path / "q.yaml"
    flow.write_text(QUICK)
    store = f"sqlite:///{tmp_path / 't.db'}"
    await _deploy(store, flow)
    async with Engine(store) as engine:
        added = await engine.schedule_add("s", "Q", every="1s", catch_up="all", overlap="allow")
    first = parse_instant(added["next"][0])
    for _ in range(2):
        with other(store, flow) as one, other(store, flow) as another:
            owner = one if [said(one), said(another)][0] == "owner" else another
            for process in (owner, another if owner is one else one):
                await asyncio.sleep(1 - time.time() % 1)
                process.send_signal(signal.SIGKILL)
    async with Engine(store) as engine:
        await engine.schedule_change("s", paused=True)
        (shown,) = await engine.schedules()
        last = parse_instant(shown["last"]["tick"])
        wanted = {run_id("s", tick) for tick in instants(Every(10**9), first - 1, last)}
        for id in wanted:
            await (await engine.run(id)).result(timeout=DEADLINE_S)
        assert {row["id"] for row in await engine.list(limit=1000)} == wanted
        assert len(wanted) >= 3
        await assert_replays(engine)
