"""A backup is taken while runs of every dialect are decided; what is restored of it replays equal and goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, cli, folder, write

from treadle import Engine
from treadle.kernel.errors import TreadleError
from treadle.store import backups, copying
from treadle.store.connection import BACKUP, UNFINISHED
from treadle.store.open import open_store, read_store
from treadle.store.sql import SqlStore, migrations
from treadle.store.sqlite import SqliteDialect
from treadle.testing import assert_replays

__all__ = ["cli", "folder", "write"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 60.0
LARGE = "x" * 300_000
PLAYBOOK = """
metadata: {name: kept, version: "1"}
workload: {id: "", large: ""}
workflow:
  - step: first
    tool: {kind: counted, id: "{{ workload.id }}", step: first}
    next: {arcs: [{step: second}]}
  - step: second
    tool: {kind: counted, id: "{{ workload.id }}", step: second}
"""
PROCESS = """
dialect: process
name: priced
version: "1"
steps:
  - call: {transport: counted, payload: {id: {$: start.id}, step: first}, into: one}
  - call: {transport: counted, payload: {id: {$: start.id}, step: second}, into: two}
  - complete: {$: result.two}
"""


class House:
    """An engine with work that is counted, and that waits at the second step where it is told to."""

    def __init__(self, url: str, folder: Path) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self.gate = asyncio.Event()
        self.engine = Engine(url)

        @self.engine.tool("counted")
        async def tool(id: str, step: str) -> dict[str, str]:
            return await self._work({"id": id, "step": step})

        @self.engine.transport("counted")
        async def transport(payload: dict[str, Any]) -> dict[str, str]:
            return await self._work(payload)

        (folder / "kept.yaml").write_text(PLAYBOOK)
        (folder / "priced.yaml").write_text(PROCESS)
        for name in ("kept.yaml", "priced.yaml"):
            self.engine.deploy(str(folder / name))
        self.engine.deploy(str(EXAMPLES / "functions" / "order.py:order"))
        self.engine.deploy(str(EXAMPLES / "reactive" / "order.py:app"))

    async def _work(self, asked: dict[str, str]) -> dict[str, str]:
        if asked["step"] == "second" and asked["id"].endswith("-held"):
            await self.gate.wait()
        self.done[asked["id"], asked["step"]] += 1
        return {"id": asked["id"]}

    async def start(self, id: str) -> None:
        engine = self.engine
        await engine.start("kept", {"id": f"k{id}", "large": LARGE + id}, id=f"k{id}")
        await engine.start("priced", {"id": f"p{id}"}, id=f"p{id}")
        await engine.start("order", {"id": id, "cents": 5}, id=f"o{id}")
        value = {"order_id": id, "amount_cents": 5}
        await engine.publish("com.acme/OrderCreated@1", value, submission_id=id)

    async def finish(self) -> None:
        """Every run to its end; cells to rest."""
        self.gate.set()
        for row in await self.engine.list(limit=10_000):
            if row["workflow"] == "order" and row["status"] not in ("completed", "failed"):
                await self.engine.signal(row["id"], "approved", {})
        for row in await self.engine.list(limit=10_000):
            run = await self.engine.run(row["id"])
            if row["id"] == "orders":
                continue  # the application itself
            if row["dialect"] == "reactive":
                await wait_for(lambda run=run: _is_done(run))
            else:
                await run.result(PATIENCE_S)


async def _is_done(run: Any) -> bool:
    return bool((await run.show())["state"]["pc"] == "done")


async def wait_for(asked: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asked():  # noqa: ASYNC110 (what is waited for is in a store)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(url: str, folder: Path) -> AsyncIterator[House]:
    house = House(url, folder)
    async with house.engine:
        yield house


@pytest.fixture(params=["file", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A store to back up, and the other kind of place to restore it to."""
    postgres = request.getfixturevalue("pg_store")
    file = f"sqlite:///{tmp_path}/there.db"
    return (file, postgres) if request.param == "file" else (postgres, file)


async def test_what_is_restored_of_a_backup_under_load_replays_equal_and_goes_on(
    places: tuple[str, str], tmp_path: Path
) -> None:
    source, target = places
    file = tmp_path / "backup.db"
    async with working(source, tmp_path) as house:
        for n in range(6):
            await house.start(f"{n}-held" if n % 2 else f"{n}")
        await (await house.engine.run("k0")).result(PATIENCE_S)
        copying_it = asyncio.create_task(asyncio.to_thread(backups.backup, source, file))
        n = 6
        while not copying_it.done() and n < 400:
            await house.start(f"{n}-held" if n % 2 else f"{n}")
            n += 1
        said = await copying_it
        assert said["verified"]
        await house.finish()
        there = {row["id"] for row in await house.engine.list(limit=10_000)}
    with closing(read_store(f"sqlite:///{file}")) as taken:
        settled = {row.id: row.status for row in taken.runs(limit=10_000)}
    assert settled.keys() <= there
    assert set(settled.values()) >= {"completed", "running"}, "it was taken in the middle"

    done = backups.restore(file, target, user="ann")
    assert (done["verified"], done["runs"]) == (True, len(settled))
    async with working(target, tmp_path) as again:
        await again.finish()
        rows = await again.engine.list(limit=10_000)
        assert {row["id"] for row in rows} == settled.keys()
        finished = {id for id, status in settled.items() if status == "completed"}
        assert not {id for id, _ in again.done} & finished, "what was done is not done again"
        shown = await (await again.engine.run("k0")).show()
        body = await again.engine.read(lambda reads: reads.blob(shown["input"]["checksum"]))
        assert f"{LARGE}0".encode() in body
        assert await assert_replays(again.engine) == len(settled)
        (row,) = await again.engine.read(lambda reads: reads.audit(action="store.restore"))
        assert row.user == "ann"


@pytest.fixture
def small(cli: Cli, write: Callable[[str, str], Path]) -> Cli:
    """A store with a run, and the command line on it."""
    write("wait.yaml", "dialect: process\nname: wait\nsteps: [{await: go}]\n")
    cli("run", "wait.yaml", "--id", "w", "--input", f'{{"text": "{"y" * 100_000}"}}', code=3)
    return cli


def test_a_backup_overwrites_nothing(small: Cli, folder: Path) -> None:
    small("backup", "b.db", "--json", "--user", "ann", code=0)
    before = (folder / "b.db").read_bytes()
    assert small("backup", "b.db", "--json", code=2).error["code"] == "FILE_EXISTS"
    assert (folder / "b.db").read_bytes() == before
    assert small("restore", "b.db", "--json", code=2).error["code"] == "STORE_NOT_EMPTY"
    assert small("backup", "no/b.db", "--json", code=2).error["code"] == "NO_FOLDER"
    assert (
        small("backup", "c.db", "--store", "sqlite:///none.db", "--json").error["code"] == "STORE_UNAVAILABLE"
    )
    assert not (folder / "none.db").exists()
    rows = small("audit", "--json").json
    assert ("ann", "store.backup", "b.db") in {(row["user"], row["action"], row["target"]) for row in rows}
    assert sorted(path.name for path in folder.glob("b.db*")) == ["b.db"]


def test_a_backup_is_looked_into_and_not_worked_on(small: Cli) -> None:
    small("backup", "b.db", code=0)
    assert [row["id"] for row in small("list", "--store", "sqlite:///b.db", "--json", code=0).json] == ["w"]
    assert small("doctor", "--store", "sqlite:///b.db", "--deep", code=0)
    refused = small("signal", "w", "go", "--store", "sqlite:///b.db", "--json", code=2).error
    assert refused["code"] == "STORE_IS_BACKUP"


def test_a_damaged_backup_is_refused_and_leaves_nothing(small: Cli, folder: Path) -> None:
    small("backup", "b.db", code=0)
    for statement in (
        "UPDATE runs SET workflow = 'another'",
        "UPDATE journal SET body = x'00'",
        "UPDATE blobs SET body = zeroblob(size)",
        "DELETE FROM documents WHERE 0; DELETE FROM audit",
    ):
        shutil.copy("b.db", "bad.db")
        with sqlite3.connect("bad.db") as database:
            database.executescript(statement)
        refused = small("restore", "bad.db", "--store", "sqlite:///new.db", "--json", code=2)
        assert refused.error["code"] == "BACKUP_DAMAGED", statement
        assert not list(folder.glob("new.db*")), statement
    small("restore", "b.db", "--store", "sqlite:///new.db", "--dry-run", code=0)
    assert not list(folder.glob("new.db*"))
    with sqlite3.connect("plain.db") as database:
        database.execute("CREATE TABLE t (x)")
    assert small("restore", "plain.db", "--store", "sqlite:///new.db", code=2)
    assert (
        small("restore", "treadle.db", "--store", "sqlite:///new.db", "--json", code=2).error["code"]
        == "NOT_A_BACKUP"
    )


async def test_leases_of_the_original_do_not_hold_in_what_is_restored(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    async with Engine(source):
        pass
    backups.backup(source, tmp_path / "backup.db")
    backups.restore(tmp_path / "backup.db", target, user="ann")
    with closing(open_store(source)) as old, closing(open_store(target)) as new:
        assert old.work_key() != new.work_key()
        assert new.own() > old.own()


async def test_where_the_original_is_at_work_it_is_not_restored(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    async with Engine(source):
        await asyncio.to_thread(backups.backup, source, tmp_path / "backup.db")
        with pytest.raises(TreadleError) as refused:
            await asyncio.to_thread(backups.restore, tmp_path / "backup.db", target, user="ann")
        assert refused.value.code == "ORIGINAL_AT_WORK"
        backups.restore(tmp_path / "backup.db", target, user="ann", beside=True)
    async with Engine(target):
        pass


def test_a_copy_that_was_broken_off_is_not_worked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    open_store(source).close()
    backups.backup(source, tmp_path / "backup.db")
    with closing(open_store(target)) as half:
        half.note_of_store(UNFINISHED, {})
    with pytest.raises(TreadleError) as refused:
        open_store(target)
    assert refused.value.code == "STORE_UNFINISHED"
    with pytest.raises(TreadleError) as again:
        backups.restore(tmp_path / "backup.db", target, user="ann")
    assert again.value.code == "STORE_NOT_EMPTY"


def test_what_is_collected_while_it_is_copied_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload goes with its run between the moment of the copy and the copying of the payload."""
    source = f"sqlite:///{tmp_path}/a.db"
    digest = "sha256:" + "ab" * 32
    open_store(source).close()
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("INSERT INTO blobs VALUES (?, 3, 0, NULL)", (digest,))
        database.execute("INSERT INTO documents (kind, id, at_ns, body) VALUES ('k', 'i', 0, x'f6')")

    def collected(*_: Any) -> None:
        with sqlite3.connect(tmp_path / "a.db") as database:
            database.execute("DELETE FROM blobs")

    said = backups.backup(source, tmp_path / "backup.db", lambda table, rows: collected())
    assert said["blobs"] == 0


def test_a_backup_of_an_earlier_schema_is_restored(tmp_path: Path) -> None:
    """One that was made before the last step of the schema."""
    *earlier, _ = migrations("sqlite")
    dialect = SqliteDialect(tmp_path / "backup.db")
    about = {"from": f"sqlite:///{tmp_path}/a.db", "at": "2026-11-16T00:00:00Z", "store": "", "epoch": 7}
    with closing(dialect.connect()) as connection:
        dialect.migrate(connection, earlier)
        note = json.dumps({**about, "tables": []})
        connection.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (BACKUP, note))
    target = f"sqlite:///{tmp_path}/b.db"
    assert backups.restore(tmp_path / "backup.db", target, user="ann")["restored"]
    with closing(open_store(target)) as store:
        assert store.own() > 7
    with pytest.raises(TreadleError) as refused:
        shutil.copy(Path(__file__).parents[1] / "golden" / "0.1.0.db", tmp_path / "old.db")
        backups.backup(f"sqlite:///{tmp_path}/old.db", tmp_path / "old-backup.db")
    assert refused.value.code == "STORE_TOO_OLD"


# What is not of the store's content: notes of itself, who holds it, payloads (which are copied one by one).
# Work that is on its way to workers is offered again by whoever owns the store.
BUS = {"work_answers", "work_letters", "work_members", "work_tickets"}
APART = {"meta", "shards", "members", "holders", "blobs", *BUS}


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_every_table_and_column_is_copied(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A new table that is forgotten here would be lost by `migrate --to`, by backups and by restoring."""
    url = f"sqlite:///{tmp_path}/a.db" if kind == "file" else request.getfixturevalue("pg_store")
    copied = {table.name: set(table.columns.replace('"', "").split(", ")) for table in copying.TABLES}
    with closing(open_store(url)) as store:
        found = columns_of(store, kind)
    assert found.keys() - APART == copied.keys()
    for table in copying.TABLES:
        # What a place gives its rows itself: their shards, their transactions, some of their numbers.
        given = {"shard", "tx"} | ({"no"} if table.numbered else set())
        assert found[table.name] - given == copied[table.name] - given, table.name


def columns_of(store: SqlStore, kind: str) -> dict[str, set[str]]:
    if kind == "file":
        tables = store.rows_after("sqlite_master", "type, name", "name", None, 1000)
        return {
            name: {
                row[0] for row in store.rows_after(f"pragma_table_info('{name}')", "name", "name", None, 1000)
            }
            for type, name in tables
            if type == "table"
        }
    here = "(SELECT * FROM information_schema.columns WHERE table_schema = current_schema()) AS c"
    found: dict[str, set[str]] = {}
    for table, column in store.rows_after(here, "table_name, column_name", "table_name", None, 10_000):
        found.setdefault(table, set()).add(column)
    return found


def test_a_backup_says_of_itself_what_it_is(tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/a.db"
    open_store(source).close()
    backups.backup(source, tmp_path / "backup.db")
    with closing(read_store(f"sqlite:///{tmp_path}/backup.db")) as reads:
        about = reads.noted(BACKUP)
    assert about is not None
    assert about["from"] == source
    assert {row[0] for row in about["tables"]} == {table.name for table in copying.TABLES}
