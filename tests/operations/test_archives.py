"""Archives: ended runs in files before they are removed; whole, readable, once, whoever is killed when."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from tests import nursery
from tests.cli.conftest import Cli, cli, folder, write

from treadle import Engine
from treadle.kernel.errors import RunFailed, TreadleError
from treadle.runtime import collecting
from treadle.store import archives
from treadle.store.open import read_store
from treadle.store.reads import SqlReads
from treadle.testing import VirtualClock, assert_replays

__all__ = ["cli", "folder", "write"]

LARGE = "x" * 300_000
FAR_NS = 2**62
TEXTS = {
    "etl": """
metadata: {name: etl, version: "1"}
workload: {large: "", fails: false}
workflow:
  - step: only
    tool: {kind: echo, value: "{{ workload.large }}", fails: "{{ workload.fails }}"}
""",
    "approval": """
dialect: process
name: approval
version: "1"
tasks:
  approve: {roles: [boss]}
steps:
  - task: approve
  - child: {workflow: below, into: got}
""",
    "below": "dialect: process\nname: below\nversion: '1'\nsteps:\n  - complete: {ok: true}\n",
}


class Crash(BaseException):
    """The process is gone."""


class Echo:
    def __init__(self) -> None:
        self.fails = True

    def call(self, value: str, fails: bool) -> dict[str, Any]:
        if fails and self.fails:
            raise ValueError("not today")
        return {"value": value}


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    found = tmp_path / "archive"
    found.mkdir()
    return found


@pytest.fixture
async def engine(tmp_path: Path, echo: Echo) -> AsyncIterator[Engine]:
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    engine = VirtualClock().engine(f"sqlite:///{tmp_path}/a.db")
    engine.tool("echo")(echo.call)
    async with engine:
        engine.deploy(str(tmp_path))
        await ended(engine, "etl", "small")
        await ended(engine, "etl", "large", large=LARGE)
        await ended(engine, "etl", "bad", fails=True)
        run = await engine.start("approval", id="asked")
        (task,) = await engine.tasks()
        await engine.task_complete(task["id"], {"yes": True}, user="ann", roles=["admin"])
        await run.result(timeout=60)
        yield engine
        await assert_replays(engine)


async def ended(engine: Engine, workflow: str, id: str, **input: Any) -> None:
    run = await engine.start(workflow, input, id=id)
    with contextlib.suppress(RunFailed):
        await run.result(timeout=60)


async def put(engine: Engine, archive: archives.Archive, numbers: list[int]) -> list[int]:
    return await engine.read(lambda reads: archive.put(cast("SqlReads", reads), numbers))


async def shown(engine: Engine) -> dict[str, dict[str, Any]]:
    rows = await engine.list()
    return {row["id"]: await (await engine.run(row["id"])).show() for row in rows}


def on(shelf: Path) -> list[str]:
    return sorted(row.id for _, row in archives.listed(shelf))


async def looked_into(shelf: Path) -> dict[str, dict[str, Any]]:
    """Every run of an archive as a reader sees it, after each has been decided again."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(shelf.glob("*.db")):
        async with Engine(f"sqlite:///{path}", readonly=True) as engine:
            await assert_replays(engine)
            found |= await shown(engine)
    return found


async def test_what_is_collected_is_in_the_archive_whole_and_replays(engine: Engine, shelf: Path) -> None:
    before = await shown(engine)
    assert (await engine.gc(now_ns=FAR_NS, archive=shelf))["archived"] == 5
    assert await engine.list() == []
    assert await looked_into(shelf) == before
    assert archives.check(shelf) == {
        "archive": str(shelf), "ok": True, "files": 1, "runs": 5, "damaged": []
    }  # fmt: skip
    assert not [path for path in shelf.iterdir() if path.suffix != ".db"], "each file stands alone"


async def test_a_crash_between_archive_and_removal_loses_nothing_and_doubles_nothing(
    engine: Engine, shelf: Path
) -> None:
    before = await shown(engine)

    async def operate(name: str, body: dict[str, Any], *, home: str = "") -> Any:
        if body["step"] == "runs":
            raise Crash
        return await engine.operate(name, body, home=home)

    async def read(question: Any) -> Any:
        return await engine.read(lambda reads: question(reads, engine.library.registry(reads)))

    async def keep(runs: Any) -> list[int]:
        archive = archives.Archive(shelf)
        try:
            return await put(engine, archive, [run.no for run in runs])
        finally:
            archive.close()

    with pytest.raises(Crash):
        collection = collecting.Collection(operate, read, [""], clock=engine.clock.now_ns, now_ns=FAR_NS)
        await collection.collect(archive=keep)
    assert await shown(engine) == before, "nothing is removed"
    assert len(on(shelf)) == 5
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    assert await engine.list() == []
    assert len(on(shelf)) == 5
    assert await looked_into(shelf) == before


async def test_runs_that_cannot_be_archived_keep_no_others_from_it(engine: Engine, shelf: Path) -> None:
    asked: list[list[int]] = []

    async def operate(name: str, body: dict[str, Any], *, home: str = "") -> Any:
        return await engine.operate(name, body, home=home)

    async def read(question: Any) -> Any:
        return await engine.read(lambda reads: question(reads, engine.library.registry(reads)))

    async def keep(runs: Any) -> list[int]:
        """All but the oldest three."""
        asked.append([run.no for run in runs])
        archive = archives.Archive(shelf)
        try:
            return await put(engine, archive, [no for no in asked[-1] if no not in oldest])
        finally:
            archive.close()

    rows = await engine.read(lambda reads: reads.runs(limit=10))
    oldest = sorted(row.no for row in rows)[:3]
    collection = collecting.Collection(
        operate, read, [""], clock=engine.clock.now_ns, now_ns=FAR_NS, per_commit=2
    )
    done = await collection.collect(archive=keep)
    assert done["runs"] == len(rows) - len(oldest) > 0
    left = await engine.read(lambda reads: reads.runs(limit=10))
    assert sorted(row.no for row in left) == oldest
    assert all(len(set(some)) <= 2 for some in asked), "no more at once than fit into a commit"


async def test_a_run_that_was_sent_on_meanwhile_stays_and_replaces_what_it_was(
    engine: Engine, shelf: Path, echo: Echo
) -> None:
    row = await engine.read(lambda reads: reads.run("bad"))
    assert row is not None
    archive = archives.Archive(shelf)
    assert await put(engine, archive, [row.no]) == [row.no]
    echo.fails = False
    await engine.retry("bad")
    await (await engine.run("bad")).result(timeout=60)
    asked = {"step": "runs", "now_ns": FAR_NS, "ruled": False, "runs": [[row.no, "bad", row.seq, []]]}
    assert await engine.operate("collect", asked) == 0, "it is not what was archived"
    archive.close()
    before = await shown(engine)
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    found = await looked_into(shelf)
    assert found == before
    assert found["bad"]["status"] == "completed"


async def test_an_id_that_is_used_again_is_another_run_in_the_archive(engine: Engine, shelf: Path) -> None:
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    await ended(engine, "etl", "small", large="another")
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    assert on(shelf).count("small") == 2
    assert len(list(shelf.glob("*.db"))) == 2


async def test_what_is_damaged_stays_and_the_others_go(engine: Engine, shelf: Path, tmp_path: Path) -> None:
    row = await engine.read(lambda reads: reads.run("small"))
    assert row is not None
    with closing(sqlite3.connect(tmp_path / "a.db")) as store:
        digest = store.execute("SELECT digest FROM journal WHERE run = ? AND seq = 1", (row.no,)).fetchone()[
            0
        ]
        store.execute("UPDATE journal SET digest = zeroblob(32) WHERE run = ? AND seq = 1", (row.no,))
        store.commit()
        assert (await engine.gc(now_ns=FAR_NS, archive=shelf))["archived"] == 4
        assert [row["id"] for row in await engine.list()] == ["small"]
        store.execute("UPDATE journal SET digest = ? WHERE run = ? AND seq = 1", (digest, row.no))
        store.commit()


async def test_a_damaged_archive_is_told(engine: Engine, shelf: Path) -> None:
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    (path,) = shelf.glob("*.db")
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE tasks SET assignee = 'mallory'")
        file.commit()
    found = archives.check(shelf)
    assert (found["ok"], [wrong["id"] for wrong in found["damaged"]]) == (False, ["asked"])


async def test_a_file_that_is_no_archive_is_not_written_to(
    engine: Engine, shelf: Path, tmp_path: Path
) -> None:
    (row,) = [row for row in await engine.list() if row["id"] == "small"]
    taken = shelf / f"{row['ended_at'][:7]}.db"
    async with Engine(f"sqlite:///{taken}") as other:
        other.deploy(str(tmp_path / "below.yaml"))
    with pytest.raises(TreadleError, match="not of an archive"):
        await engine.gc(now_ns=FAR_NS, archive=shelf)
    assert len(await engine.list()) == 5


async def test_on_postgresql_rules_count_and_what_is_collected_is_in_the_archive(
    pg_store: str, shelf: Path, tmp_path: Path
) -> None:
    (tmp_path / "etl.yaml").write_text(TEXTS["etl"])
    engine = Engine(pg_store)
    engine.tool("echo")(Echo().call)
    async with engine:
        engine.deploy(str(tmp_path / "etl.yaml"))
        await ended(engine, "etl", "large", large=LARGE)
        await ended(engine, "etl", "bad", fails=True)
        before = await shown(engine)
        await engine.retention_set("*", {"completed": "0s"})
        await engine.retention_set("other", "0s")
        assert (await engine.gc(dry_run=True))["workflows"] == {"etl": {"completed": 1}}
        assert (await engine.gc(ruled=True, archive=shelf))["archived"] == 1
        assert {row["id"] for row in await engine.list()} == {"bad"}
        await assert_replays(engine)
    found = await looked_into(shelf)
    assert found == {"large": {**before["large"], "retain_until": found["large"]["retain_until"]}}
    assert archives.check(shelf)["ok"]


KILLED = """
import asyncio, os, signal, sys
from treadle import Engine
from treadle.store import archives

at, store, shelf = sys.argv[1:]

def die(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

if at == "between":
    archives.Archive.close = die
else:
    archives._File._add_definitions = die

async def main():
    async with Engine(store, help_others=False) as engine:
        await engine.gc(now_ns=2**62, archive=shelf)

asyncio.run(main())
"""


@pytest.mark.parametrize("at", ["between", "within"])
async def test_kill_9_leaves_every_run_whole_in_one_place_or_both(
    at: str, tmp_path: Path, shelf: Path
) -> None:
    (tmp_path / "etl.yaml").write_text(TEXTS["below"])
    url = f"sqlite:///{tmp_path}/k.db"
    async with Engine(url) as engine:
        engine.deploy(str(tmp_path / "etl.yaml"))
        for n in range(5):
            await ended(engine, "below", f"r{n}")
        before = await shown(engine)
    died = await asyncio.to_thread(nursery.run, ["-c", KILLED, at, url, shelf])
    assert died.returncode == -signal.SIGKILL
    async with Engine(url) as engine:
        left = await shown(engine)
        assert {**left, **await looked_into(shelf)} == before, "nothing is lost"
        await engine.gc(now_ns=FAR_NS, archive=shelf)
        assert await engine.list() == []
    assert on(shelf) == sorted(before), "and nothing is there twice"
    assert await looked_into(shelf) == before
    assert archives.check(shelf)["ok"]


async def seen(engine: Engine) -> dict[str, Any]:
    """All that can be asked of the runs of a store; when they are collected is another matter."""
    found: dict[str, Any] = {"list": [row | {"retain_until": None} for row in await engine.list()]}
    for id, document in (await shown(engine)).items():
        run = await engine.run(id)
        found[id] = {
            "shown": document | {"retain_until": None},
            "events": [event async for event in run.events(follow=False)],
            "journal": await run.journal(),
            "diagnostics": await engine.diagnostics(id),
        }
    found["tasks"] = await engine.tasks(run="asked", status=["open", "completed"])
    return found


async def test_runs_come_back_from_an_archive_as_they_were(engine: Engine, shelf: Path) -> None:
    before = await seen(engine)
    await ended(engine, "etl", "later")
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    await ended(engine, "etl", "newest")
    (path,) = shelf.glob("*.db")
    assert (await engine.archive_restore(path, ["large", "asked"], by="ann"))["restored"] == [
        "large",
        "asked",
    ]
    assert [row["id"] for row in await engine.list()] == ["newest", "asked", "large"], "listed as before"
    with pytest.raises(TreadleError, match="'large' already, and 1 others") as refused:
        await engine.archive_restore(path)
    assert refused.value.code == "RUN_EXISTS"
    assert len(await engine.list()) == 3, "one that is there keeps all others away"
    rest = [id for id in on(shelf) if id not in ("large", "asked", "later")]
    await engine.archive_restore(path, rest)
    await engine.delete("newest")
    assert await seen(engine) == before
    assert [row["target"] for row in await engine.audit(action="run.restore")] == ["asked", "large"]
    await assert_replays(engine)


async def test_what_came_back_is_collected_no_more_and_can_be_sent_on_or_deleted(
    engine: Engine, shelf: Path, echo: Echo
) -> None:
    await engine.retention_set("*", "0s")
    await engine.gc(archive=shelf)
    (path,) = shelf.glob("*.db")
    await engine.archive_restore(path, ["bad", "large"])
    assert (await engine.gc(archive=shelf))["runs"] == 0
    assert (await engine.gc(now_ns=FAR_NS, ruled=True))["runs"] == 0
    echo.fails = False
    await engine.retry("bad")
    assert (await (await engine.run("bad")).result(timeout=60)) is not None
    await engine.delete("large")
    assert [row["id"] for row in await engine.list()] == ["bad"]
    await engine.archive_restore(path, ["large"])
    await engine.delete("large")
    await ended(engine, "etl", "large")
    assert (await engine.gc())["runs"] == 1, "another run of that name is like any other"


async def test_nothing_comes_back_of_what_is_not_as_it_was_archived(
    engine: Engine, shelf: Path, tmp_path: Path
) -> None:
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    (path,) = shelf.glob("*.db")
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE tasks SET assignee = 'mallory'")
        file.commit()
    with pytest.raises(TreadleError, match="asked is not what was archived"):
        await engine.archive_restore(path)
    with pytest.raises(TreadleError, match="has no run 'nobody'"):
        await engine.archive_restore(path, ["small", "nobody"])
    with pytest.raises(TreadleError, match="there is no file"):
        await engine.archive_restore(shelf / "none.db")
    with pytest.raises(TreadleError, match="not a backup"):
        await engine.archive_restore(tmp_path / "a.db")
    assert await engine.list() == []
    await engine.archive_restore(path, ["small"])


async def test_runs_of_a_file_come_back_to_postgresql_with_two_members(
    engine: Engine, shelf: Path, pg_store: str
) -> None:
    before = await seen(engine)
    await engine.gc(now_ns=FAR_NS, archive=shelf)
    (path,) = shelf.glob("*.db")
    async with Engine(pg_store, work=False) as one, Engine(pg_store, work=False) as two:
        assert len((await two.archive_restore(path))["restored"]) == 5
        found = await seen(one)
        await assert_replays(one)
    assert found == before


def test_an_archive_on_the_command_line(cli: Cli, folder: Path, write: Callable[[str, str], Path]) -> None:
    write("below.yaml", TEXTS["below"])
    shelf = folder / "shelf"
    assert cli("gc", "--archive", "shelf").code == 2, "a folder that is not there"
    shelf.mkdir()
    assert cli("run", "below.yaml", "--id", "r1").code == 0
    assert cli("retention", "set", "--all", "--keep", "0s").code == 0
    assert cli("gc", "--archive", "shelf", "--dry-run", "--json").json["runs"] == 1
    assert on(shelf) == []
    assert cli("gc", "--archive", "shelf", "--json").json["archived"] == 1
    (row,) = cli("archive", "list", "shelf", "--json").json
    assert (row["id"], row["status"]) == ("r1", "completed")
    assert cli("show", "r1", "--store", row["store"], "--json").json["result"] == {"ok": True}
    assert cli("replay", "--all", "--store", row["store"]).code == 0
    assert cli("archive", "check", "shelf").code == 0
    assert cli("retry", "r1", "--store", row["store"]).code == 2, "it is looked into, not worked on"
    file = row["store"].removeprefix("sqlite:///")
    assert cli("archive", "restore", file, "nobody").code == 2
    assert cli("archive", "restore", file, "--json").json["restored"] == ["r1"]
    assert cli("show", "r1", "--json").json["result"] == {"ok": True}
    assert cli("archive", "restore", file).code == 2, "it is there already"
    assert cli("replay", "--all").code == 0
    with closing(read_store(row["store"])) as reads:
        assert reads.last_run_no() == 1
