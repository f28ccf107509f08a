"""A disk that is full, fails or tears: refused or survived, with nothing lost.

Full is made in every way this machine allows: a page limit inside SQLite, a limit on file size by the
kernel, and a small tmpfs where it may be mounted (where not, the test says so in its output, and the
other two stand for it).
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.kernel.errors import StoreCorrupt, StoreFull, TreadleError
from treadle.runtime.document import replayed
from treadle.runtime.registry import Registry, machines_of
from treadle.store.open import open_sqlite
from treadle.store.sqlite import SqliteDialect
from treadle.testing import toy
from treadle.testing.sim.checks import Journals
from treadle.work.job import Done, Job

LARGE = "x" * 40_000
DEADLINE_S = 30.0


class Gate:
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.held = asyncio.Event()

    async def perform(self, job: Job) -> Done:
        self.held.set()
        await self.opened.wait()
        return Done(value="done")


def make_engine(path: Path, gate: Gate) -> Engine:
    engine = Engine(f"sqlite:///{path}")
    engine.dialects["toy"] = toy.ToyDialect()
    engine.worker.register("work", gate.perform)
    engine.deploy(toy.TOY)
    return engine


async def insist(what: Callable[[], Any]) -> Any:
    """Asks again while the store says it has no room; the deadline is generous."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await what()
            except TreadleError as error:
                if not error.code.startswith("STORE_"):
                    raise
                await asyncio.sleep(0.01)


async def fill_and_go_on(
    path: Path, make_full: Callable[[Engine], Any], make_room: Callable[[Engine], Any]
) -> dict[str, Any]:
    """The one scenario, whatever makes the disk full."""
    gate = Gate()
    async with make_engine(path, gate) as engine:
        early = await engine.start("toy", {"do": ["signal:go"]}, id="early")
        working = await engine.start("toy", {"do": ["work"]}, id="working")
        await gate.held.wait()
        await make_full(engine)

        accepted, refused = [], []
        for number in range(100):
            try:
                await engine.start("toy", {"do": ["signal:go"], "pad": LARGE}, id=f"run-{number}")
                accepted.append(f"run-{number}")
            except StoreFull:
                refused.append(f"run-{number}")
            if len(refused) == 3:
                break
        assert refused, "the disk was not full"
        # What happens outside while there is no room is not lost either.
        gate.opened.set()
        listed = {row["id"] for row in await engine.list(limit=1000)}
        assert listed == {"early", "working", *accepted}, "accepted runs are there, refused ones are not"

        await make_room(engine)
        for id in refused:
            await insist(lambda id=id: engine.start("toy", {"do": ["signal:go"], "pad": LARGE}, id=id))
        assert await working.result(timeout=DEADLINE_S) == ["done"]
        for id in ["early", *accepted, *refused]:
            await insist(lambda id=id: engine.signal(id, "go", id, key="go"))
            assert await (await engine.run(id)).result(timeout=DEADLINE_S) == [id]
        assert (await early.show())["status"] == "completed"
        for row in await engine.list(limit=1000):
            assert (await engine.replay(row["id"]))["equal"], row["id"]
        health = await engine.doctor()
        assert health["problems"] == []
    return {"accepted": len(accepted), "refused": len(refused)}


# --- three ways to be full -----------------------------------------------------------------------------


async def test_no_pages_left(tmp_path: Path) -> None:
    def limit(more: int) -> Callable[[Engine], Any]:
        def bound(desk: Any) -> None:
            connection = desk.store._connection
            count = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={count + more}")

        from tests.backdoor import change  # what is run as a program of its own finds no tests

        return lambda engine: change(engine, bound)

    said = await fill_and_go_on(tmp_path / "t.db", limit(5), limit(1_000_000))
    assert said["refused"] > 0


def test_no_larger_file_allowed(tmp_path: Path) -> None:
    """In a process of its own, because the limit is the process's."""
    found = subprocess.run(
        [sys.executable, __file__, "file-size", str(tmp_path / "t.db")], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["refused"] > 0


async def _limit_file_size(path: Path) -> dict[str, Any]:
    async def make_full(engine: Engine) -> None:
        largest = max(file.stat().st_size for file in path.parent.glob(path.name + "*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 8192, resource.RLIM_INFINITY))

    async def make_room(engine: Engine) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return await fill_and_go_on(path, make_full, make_room)


def _shell(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True)


def test_no_room_on_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mounted = _shell("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path))
    if mounted.returncode != 0:
        with capsys.disabled():
            print(
                f"\nNO TMPFS HERE ({mounted.stderr.strip()}): a full device is stood for by "
                "test_no_pages_left and test_no_larger_file_allowed\n"
            )
        return
    ballast = tmp_path / "ballast"

    async def make_full(engine: Engine) -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    continue
            except OSError:
                return

    async def make_room(engine: Engine) -> None:
        ballast.unlink()
        assert _shell("mount", "-o", "remount,size=64m", str(tmp_path)).returncode == 0

    try:
        said = asyncio.run(fill_and_go_on(tmp_path / "t.db", make_full, make_room))
        assert said["refused"] > 0
    finally:
        _shell("umount", "-l", str(tmp_path))


# --- commits that fail and tear ---------------------------------------------------------------------------


class Failing:
    """A connection whose next commits fail, as a disk that cannot sync makes them."""

    failures = 0

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any) -> Any:
        if sql == "COMMIT" and Failing.failures > 0:
            Failing.failures -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return self._connection.execute(sql, *parameters)


async def test_a_failed_commit_publishes_nothing_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = SqliteDialect.connect
    monkeypatch.setattr(SqliteDialect, "connect", lambda self, **more: Failing(connect(self, **more)))
    gate = Gate()
    async with make_engine(tmp_path / "t.db", gate) as engine:
        run = await engine.start("toy", {"do": ["work", "work"]}, id="run")
        await gate.held.wait()
        Failing.failures = 1
        with pytest.raises(TreadleError) as caught:
            await engine.start("toy", {"do": ["work"]}, id="refused")
        assert caught.value.code == "STORE_UNAVAILABLE"
        assert [row["id"] for row in await engine.list()] == ["run"]
        Failing.failures = 3
        gate.opened.set()
        assert await run.result(timeout=DEADLINE_S) == ["done", "done"]
        assert Failing.failures == 0
        assert (await engine.replay("run"))["equal"]


async def test_a_write_ahead_log_torn_anywhere_is_a_shorter_history(tmp_path: Path) -> None:
    """Every prefix of the log opens as a sound store whose journals are whole up to some commit."""
    gate = Gate()
    gate.opened.set()
    path = tmp_path / "t.db"
    async with make_engine(path, gate) as engine:
        for number in range(10):
            run = await engine.start("toy", {"do": [["work", 3], "signal:go"]}, id=f"run-{number}")
            await engine.signal(run.id, "go", number)
            await run.result(timeout=DEADLINE_S)
        whole = tmp_path / "whole"
        whole.mkdir()
        for file in (path, path.with_name("t.db-wal")):
            shutil.copy(file, whole / file.name)
    log = (whole / "t.db-wal").read_bytes()
    assert len(log) > 100_000, "the log holds the history"
    chance = random.Random(15)
    lengths = []
    for cut in [0, len(log), *(chance.randrange(len(log)) for _ in range(25))]:
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        shutil.copy(whole / "t.db", folder / "t.db")
        torn = log[:cut] + chance.randbytes(100 if cut < len(log) else 0)
        (folder / "t.db-wal").write_bytes(torn)
        lengths.append((cut, _records_of(folder / "t.db")))
    assert lengths[0][1] == 0 or lengths[0][1] < lengths[1][1]
    ordered = [count for _, count in sorted(lengths)]
    assert ordered == sorted(ordered), "a longer log is a longer history"
    assert lengths[1][1] == max(ordered) > 0


def _records_of(path: Path) -> int:
    try:
        store = open_sqlite(path)
    except StoreCorrupt:  # cut before the schema was whole: said, not guessed
        return 0
    assert store.check() == []
    journals = Journals(SimpleNamespace(live=store._connection))  # type: ignore[arg-type]
    journals.clock_max_ns = time.time_ns()
    journals.advance()
    registry = Registry(machines_of({"toy": toy.ToyMachine()}), store)
    for row in store.runs(limit=100):
        assert replayed(store, registry, row.id)["equal"]
    count = sum(life.seq for life in journals.lives.values())
    store.close()
    return count


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_limit_file_size(Path(sys.argv[2])))))
