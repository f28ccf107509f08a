"""The life of an engine in its process: opened again, on another loop, in a forked child, without threads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

import treadle
import treadle.testing
from treadle import sync
from treadle.engine import Engine
from treadle.kernel.errors import StoreGone, TreadleError, Unsupported
from treadle.store.open import open_sqlite
from treadle.store.owner import OwnerLock
from treadle.testing import assert_replays

FLOW = 'metadata: {name: f, version: "1"}\nworkflow: [{step: a, tool: {kind: noop, result: 1}}]\n'
DEADLINE_S = 30.0


def flow(folder: Path) -> Path:
    file = folder / "f.yaml"
    file.write_text(FLOW)
    return file


async def test_an_engine_that_is_opened_again_works_again(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.deploy(flow(tmp_path))
    for _ in range(3):
        async with engine:
            run = await engine.start("f")
            assert await run.result(DEADLINE_S) == 1
            await assert_replays(engine)


async def test_an_engine_says_at_once_that_it_belongs_to_another_event_loop(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.deploy(flow(tmp_path))
    found: list[str] = []

    async def elsewhere() -> None:
        run = treadle.Run(engine, "r")
        for work in (engine.start("f"), engine.list(), run.result(), run.settled()):
            with pytest.raises(Unsupported) as refused:
                await work
            found.append(refused.value.code)

    async with engine:
        await engine.start("f", id="r")
        await asyncio.to_thread(asyncio.run, elsewhere())
    assert found == ["ENGINE_ELSEWHERE"] * 4


FORKED = """
import asyncio, os, sys
from treadle import Engine, sync
async def main():
    async with Engine(sys.argv[1]) as engine:
        child = os.fork()
        if child == 0:
            try:
                await engine.list()
            except Exception as error:
                os._exit(7 if error.code == "ENGINE_FORKED" else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert await engine.list() == []
asyncio.run(main())
with sync.Engine(sys.argv[1]) as engine:
    child = os.fork()
    if child == 0:
        try:
            engine.list()
        except Exception as error:
            os._exit(7 if error.code == "ENGINE_FORKED" else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert engine.list() == []
"""


def test_a_forked_child_is_told_at_once_that_the_engine_is_its_parents(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    done = subprocess.run([sys.executable, "-c", FORKED, url], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_an_engine_that_gets_no_threads_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.raises(Unsupported, match="ulimit -v") as refused:
        async with engine:
            raise AssertionError("it is open")
    assert refused.value.code == "NO_THREADS"
    monkeypatch.undo()
    async with engine:
        assert await engine.list() == []


def test_the_names_of_the_package_are_listed() -> None:
    assert {"Engine", "Run", "TreadleError", "__version__"} <= set(dir(treadle))
    assert set(treadle.testing.__all__) <= set(dir(treadle.testing))


# --- waiting for an end ---------------------------------------------------------------------------------


async def test_a_result_comes_when_the_run_ends_and_not_at_the_next_look(tmp_path: Path) -> None:
    """Most of these runs end while their caller begins to wait: not one may wait for the poll of 0.5 s."""
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.deploy(flow(tmp_path))
    late = 0
    async with engine:
        for _ in range(60):
            began = time.monotonic()
            await (await engine.start("f")).result(DEADLINE_S)
            late += time.monotonic() - began > 0.45
    # A machine under load may be slow once; the race was lost by two runs in three.
    assert late <= 6


# --- readers --------------------------------------------------------------------------------------------


async def test_a_long_read_holds_up_no_short_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    go_on = threading.Event()
    async with Engine(url) as engine:
        began = threading.Semaphore(0)

        def long(reads: object) -> bool:
            began.release()
            return go_on.wait(DEADLINE_S)

        reading = [asyncio.create_task(engine.read(long, long=True)) for _ in range(2)]
        for _ in reading:
            assert await asyncio.to_thread(began.acquire, timeout=DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S / 2):
            assert await engine.list() == []
        go_on.set()
        assert await asyncio.gather(*reading) == [True, True]


async def test_a_long_journal_and_its_events_are_read_in_pages_and_whole(tmp_path: Path) -> None:
    (tmp_path / "n.yaml").write_text(
        "dialect: process\nname: n\nsteps: [{await: {signal: go, into: g}}, {complete: 1}]\n"
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(tmp_path / "n.yaml")
        run = await engine.start("n", id="r")
        await asyncio.gather(*(engine.signal("r", f"s{n}") for n in range(1_200 - 1)))
        records = await run.journal()
        assert [record["seq"] for record in records] == list(range(1, 1_201))
        events = await engine.events_after("r", 0)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert len(events) >= 1_200


# --- the store under an engine ----------------------------------------------------------------------------


def go(path: Path, how: str) -> None:
    """The file of a store goes while it is open."""
    match how:
        case "deleted":
            path.unlink()
        case "moved":
            path.rename(path.with_name("moved.db"))
        case _:
            other = path.with_name("other.db")
            other.write_bytes(path.read_bytes())
            other.replace(path)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
async def test_nothing_is_acknowledged_for_a_store_that_is_gone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "t.db"
    engine = Engine(f"sqlite:///{path}")
    engine.deploy(flow(tmp_path))
    async with engine:
        await (await engine.start("f")).result(DEADLINE_S)
        go(path, how)
        with pytest.raises(StoreGone):
            await engine.start("f")
        with pytest.raises(TreadleError):
            await engine.start("f")


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
async def test_a_guest_that_waits_on_a_store_that_is_gone_is_told_so(tmp_path: Path, how: str) -> None:
    """Nobody will ever answer it there, also where somebody else has the lock."""
    path = tmp_path / "t.db"
    engine = Engine(f"sqlite:///{path}")
    engine.deploy(flow(tmp_path))
    async with engine:
        await engine.start("f")
    lock = OwnerLock(path)
    assert lock.acquire()
    async with engine:
        asked = asyncio.ensure_future(engine.start("f", id="asked"))
        await asyncio.to_thread(_wait_for_message, path)
        go(path, how)
        with pytest.raises(StoreGone):
            await asyncio.wait_for(asked, DEADLINE_S)
        lock.release()
        with pytest.raises(TreadleError):
            await engine.start("f")


def _wait_for_message(path: Path) -> None:
    until = time.monotonic() + DEADLINE_S
    with closing(open_sqlite(path)) as store:
        while store.inbox(1) == []:
            assert time.monotonic() < until, "nothing was asked"
            time.sleep(0.005)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_nobody_comes_to_own_a_store_that_is_gone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "t.db"
    with closing(open_sqlite(path)) as store:
        go(path, how)
        for _ in range(2):
            with pytest.raises(StoreGone):
                store.own()
        with pytest.raises(StoreGone):
            store.changed()


@pytest.mark.parametrize("file", ["t.db", "t.db-wal"])
async def test_an_idle_engine_notices_that_its_store_or_its_log_is_gone(tmp_path: Path, file: str) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        with engine.watch("nobody") as watch, pytest.raises(StoreGone):
            (tmp_path / file).unlink()
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    await watch.changed()


async def test_a_store_that_took_the_place_of_another_keeps_its_log(tmp_path: Path) -> None:
    """The engine whose store is gone closes nothing by name: that name is another store's now."""
    path = tmp_path / "t.db"
    async with Engine(f"sqlite:///{path}") as old:
        for file in tmp_path.glob("t.db*"):
            file.unlink()
        new = Engine(f"sqlite:///{path}")
        new.deploy(flow(tmp_path))
        async with new:
            await new.start("f", id="kept")
            await old.__aexit__()
            assert Path(f"{path}-wal").exists()
            assert [row["id"] for row in await new.list()] == ["kept"]


async def test_an_onlooker_sees_the_store_that_took_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with Engine(f"sqlite:///{path}", readonly=True) as onlooker:
        for id in ("one", "two"):
            engine = Engine(f"sqlite:///{path}")
            engine.deploy(flow(tmp_path))
            async with engine:
                await engine.start("f", id=id)
            assert [row["id"] for row in await onlooker.list()] == [id]
            for file in tmp_path.glob("t.db*"):
                file.unlink()


def test_a_new_store_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("dialect: process\nname: p\nsteps: [{complete: 1}]\n")
    before = os.umask(0)
    try:
        with sync.Engine(f"sqlite:///{tmp_path}/t.db") as engine:
            engine.deploy(tmp_path / "f.yaml")
            engine.start("p", {"big": os.urandom(200_000).hex()}).result(DEADLINE_S)
            modes = {
                path.name: path.stat().st_mode & 0o777
                for path in tmp_path.rglob("*")
                if path.is_relative_to(tmp_path / "t.db-blobs") or path.name.startswith("t.db")
            }
    finally:
        os.umask(before)
    assert {"t.db", "t.db-wal", "t.db-owner", "t.db-blobs"} <= modes.keys()
    assert {mode & 0o077 for mode in modes.values()} == {0}


async def test_what_is_made_beside_a_shared_store_is_shared_alike(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("dialect: process\nname: p\nsteps: [{complete: 1}]\n")
    async with Engine(f"sqlite:///{tmp_path}/t.db"):
        pass
    (tmp_path / "t.db").chmod(0o660)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(tmp_path / "f.yaml")
        await (await engine.start("p", {"big": os.urandom(200_000).hex()})).result(DEADLINE_S)
    folder = tmp_path / "t.db-blobs"
    assert folder.stat().st_mode & 0o777 == 0o770
    assert {f.stat().st_mode & 0o777 for f in folder.rglob("*") if f.is_file()} == {0o660}
