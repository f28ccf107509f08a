"""Database files as they are found in the wild: foreign, damaged, newer, read-only, full.

Each gives the error that says what to do, and a file that is refused keeps its bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.kernel.errors import (
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    TreadleError,
)
from treadle.store.open import open_sqlite, read_sqlite, schema_version
from treadle.store.owner import OwnerLock
from treadle.store.rows import Batch
from treadle.store.sql import migrations
from treadle.store.sqlite import APPLICATION_ID, SqliteDialect
from treadle.testing.rows import contents, full_batch, record, run_row


def bytes_of(path: Path) -> dict[str, str]:
    """Everything in the file's folder, by digest."""
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(path.parent.iterdir())}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "treadle.db"


@pytest.fixture
def store_file(path: Path) -> Path:
    store = open_sqlite(path)
    store.own()
    store.commit(full_batch())
    store.close()
    return path


def assert_refused(path: Path, error: type[TreadleError]) -> TreadleError:
    before = bytes_of(path)
    with pytest.raises(error) as caught:
        open_sqlite(path)
    assert bytes_of(path) == before, "a refused file was touched"
    return caught.value


# --- not ours ----------------------------------------------------------------------------------------


def test_a_text_file_is_refused_untouched(path: Path) -> None:
    path.write_text("this is not a database, but it is somebody's work\n" * 100)
    assert str(path) in str(assert_refused(path, StoreCorrupt))


def test_another_programs_database_is_refused_untouched(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (a)")
    connection.commit()
    connection.close()
    assert "another program" in str(assert_refused(path, StoreCorrupt))


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    store = open_sqlite(path)
    store.own()
    store.commit(full_batch())
    assert store.run("run-1") is not None
    store.close()


def test_a_new_store_gives_room_back_in_steps(path: Path) -> None:
    open_sqlite(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        open_sqlite(tmp_path / "nowhere" / "treadle.db")


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(TreadleError) as caught:
        open_sqlite(tmp_path)
    assert caught.value.code.startswith("STORE_")


# --- broken off while it was made ------------------------------------------------------------------------


def copied(connection: sqlite3.Connection, source: Path, path: Path) -> None:
    """The files as a kill at this instant leaves them; locks die with their holder."""
    for file in source.parent.glob(source.name + "*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, path.with_name(path.name + file.name.removeprefix(source.name)))
    connection.rollback()
    connection.close()


def unfinished(path: Path, *, mode: str) -> None:
    """A schema half written when its maker was killed; what spilled is on disk, the commit is not."""
    source = path.with_name("made.db")
    connection = sqlite3.connect(source, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN IMMEDIATE")
    for number in range(40):
        connection.execute(f"CREATE TABLE half{number} (a TEXT DEFAULT '{'x' * 900}')")
    copied(connection, source, path)


def wal_only(path: Path) -> None:
    source = path.with_name("made.db")
    connection = sqlite3.connect(source, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    copied(connection, source, path)


def empty_with_journal(path: Path) -> None:
    path.touch()
    Path(f"{path}-journal").write_bytes(b"\0" * 512)


BROKEN_OFF: dict[str, Callable[[Path], None]] = {
    "an empty file": Path.touch,
    "an empty file and a journal": empty_with_journal,
    "a header and no table": wal_only,
    "a hot journal": lambda path: unfinished(path, mode="delete"),
    "a log without its commit": lambda path: unfinished(path, mode="wal"),
}


@pytest.fixture(params=BROKEN_OFF)
def broken_off(request: pytest.FixtureRequest, path: Path) -> Path:
    BROKEN_OFF[request.param](path)
    return path


def test_a_store_that_was_not_finished_is_none_yet(broken_off: Path) -> None:
    assert schema_version(broken_off) == 0


def test_a_store_that_was_not_finished_is_finished_by_the_next_writer(broken_off: Path) -> None:
    store = open_sqlite(broken_off)
    store.own()
    store.commit(full_batch())
    assert store.check() == []
    store.close()
    reads = read_sqlite(broken_off)
    assert reads.run("run-1") is not None
    reads.close()


async def test_an_onlooker_sees_an_empty_store_until_it_is_one(broken_off: Path) -> None:
    async with Engine(f"sqlite:///{broken_off}", readonly=True) as onlooker:
        assert await onlooker.list() == []
        store = open_sqlite(broken_off)
        store.own()
        store.commit(full_batch())
        store.close()
        assert [row["id"] for row in await onlooker.list()] == ["run-1"]


# --- made by several at once -----------------------------------------------------------------------------


def test_a_store_is_not_taken_for_a_foreign_one_while_it_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker commits the schema between two questions of another process that looks."""
    wal_only(path)
    maker = sqlite3.connect(path, isolation_level=None)
    looked: list[str] = []

    class Looking(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            found = super().execute(sql, *parameters)
            looked.append(sql)
            if sql != "BEGIN" and maker.in_transaction is False and len(looked) <= 2:
                SqliteDialect(path).migrate(maker, migrations("sqlite"))
            return found

    def connect(*where: Any, **how: Any) -> sqlite3.Connection:
        return sqlite3.Connection(*where, **how) if looked else Looking(*where, **how)

    monkeypatch.setattr(
        "treadle.store.sqlite.sqlite3", SimpleNamespace(**{**vars(sqlite3), "connect": connect})
    )
    assert schema_version(path) == 0
    assert schema_version(path) == migrations("sqlite")[-1][0]
    maker.close()


def test_whoever_makes_the_same_store_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself does not wait there."""
    maker = sqlite3.connect(path, isolation_level=None)
    maker.execute("CREATE TABLE t (a)")
    maker.execute("DROP TABLE t")
    maker.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if maker.in_transaction:
            maker.execute("COMMIT")

    monkeypatch.setattr("treadle.store.sqlite.time.sleep", pause)
    store = open_sqlite(path)
    assert pauses
    assert store.schema_version == migrations("sqlite")[-1][0]
    store.close()
    maker.close()


@pytest.mark.parametrize("there", [False, True], ids=["no file", "an empty file"])
def test_several_make_a_store_at_once(tmp_path: Path, there: bool) -> None:
    failures: list[BaseException] = []
    for number in range(10):
        path = tmp_path / f"{number}.db"
        if there:
            path.touch()
        ready = threading.Barrier(6)

        def make(path: Path = path, ready: threading.Barrier = ready) -> None:
            ready.wait()
            try:
                schema_version(path)
                open_sqlite(path).close()
                assert schema_version(path) > 0
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=make) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


# --- newer, damaged ----------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_newer_schema_is_refused_untouched(store_file: Path, journal: str) -> None:
    connection = sqlite3.connect(store_file)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("PRAGMA user_version=9999")
    connection.commit()
    connection.close()
    assert "9999" in str(assert_refused(store_file, StoreTooNew))


def test_a_truncated_store_is_refused_or_found_damaged(store_file: Path) -> None:
    body = store_file.read_bytes()
    store_file.write_bytes(body[: len(body) // 2])
    with pytest.raises(StoreCorrupt):
        store = open_sqlite(store_file)
        try:
            if problems := store.check():
                raise StoreCorrupt("; ".join(problems))
            contents(store)
        finally:
            store.close()


def test_damaged_pages_are_an_error_not_wrong_data(store_file: Path) -> None:
    body = bytearray(store_file.read_bytes())
    for page in range(1, len(body) // 4096):
        body[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    store_file.write_bytes(body)
    with pytest.raises(StoreCorrupt):
        store = open_sqlite(store_file)
        try:
            contents(store)
        finally:
            store.close()


# --- read-only -----------------------------------------------------------------------------------------


READ_ONLY = """
import os, sys
from pathlib import Path
from treadle.kernel.errors import TreadleError
from treadle.store.open import open_sqlite, read_sqlite
from treadle.testing.rows import full_batch
path = Path(sys.argv[1])
open_sqlite(None)   # everything it imports lazily, while we still may
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)   # root may write everything: be somebody else
try:
    store = open_sqlite(path)
    store.own()
    store.commit(full_batch(2))
    print("written")
except TreadleError as error:
    print(error.code)
"""


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_read_only_store_says_so_and_is_untouched(folder_too: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "treadle.db"
        store = open_sqlite(path)
        store.own()
        store.commit(full_batch())
        store.close()
        path.chmod(0o444)
        path.parent.chmod(0o555 if folder_too else 0o777)
        before = bytes_of(path)
        found = subprocess.run([sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True)
        path.parent.chmod(0o755)
        assert found.stdout.strip() == StoreReadOnly.code, found.stdout + found.stderr
        after = bytes_of(path)
        assert after[path.name] == before[path.name]
        assert set(after) - set(before) <= {f"{path.name}-wal", f"{path.name}-shm"}


# --- full ------------------------------------------------------------------------------------------------


def test_a_full_store_keeps_what_it_has_and_goes_on(store_file: Path) -> None:
    store = open_sqlite(store_file)
    store.own()
    before = contents(store)
    connection = store._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    # What is packed has to be large still.
    large = Batch(runs_new={2: run_row(2)}, records=[record(2, 1, body=os.urandom(100_000))])
    with pytest.raises(StoreFull) as caught:
        store.commit(large)
    assert caught.value.code == "STORE_FULL"
    assert contents(store) == before
    connection.execute("PRAGMA max_page_count=1073741823")
    store.commit(large)
    assert len(store.journal(2)) == 1
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("name", ["SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_FSYNC", "SQLITE_CANTOPEN"])
def test_an_error_of_the_disk_is_a_full_one_where_there_is_no_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=1, f_frsize=4096))
    assert SqliteDialect(path).translate(error).code == "STORE_FULL"
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=10**6, f_frsize=4096))
    assert SqliteDialect(path).translate(error).code == "STORE_UNAVAILABLE"


def test_a_lock_that_cannot_be_made_says_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreFull, match="-owner"):
        OwnerLock(path).acquire()


def test_a_lock_needs_no_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    lock = OwnerLock(path)
    assert lock.acquire()
    lock.release()


# --- migrations --------------------------------------------------------------------------------------------


def test_migrations_arrive_at_the_schema_from_every_earlier_version(tmp_path: Path) -> None:
    steps = migrations("sqlite")
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1)), "numbered without gaps"
    fresh = open_sqlite(tmp_path / "fresh.db")
    expected = schema(fresh._connection)
    fresh.close()
    for stop in range(len(steps) + 1):
        path = tmp_path / f"from-{stop}.db"
        connection = sqlite3.connect(path)
        for number, script in steps[:stop]:
            connection.executescript(script)
            connection.execute(f"PRAGMA user_version={number}")
        if stop:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.commit()
        connection.close()
        migrated = open_sqlite(path)
        assert schema(migrated._connection) == expected, f"from version {stop}"
        migrated.close()


def schema(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    return [(kind, name, " ".join((sql or "").split())) for kind, name, sql in rows] + [
        ("version", "", str(version))
    ]


def test_a_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sqlite(path).close()
    broken = [*migrations("sqlite"), (99, "CREATE TABLE half (a);\nCREATE TABLE meta (b);")]
    monkeypatch.setattr("treadle.store.sql.migrations", lambda name: broken)
    before = sqlite3.connect(path)
    tables = before.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    before.close()
    with pytest.raises(TreadleError):
        open_sqlite(path)
    after = sqlite3.connect(path)
    assert after.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall() == tables
    assert after.execute("PRAGMA user_version").fetchone()[0] == broken[-2][0]
    after.close()


def test_a_moment_that_cannot_be_read_leaves_no_transaction_open(tmp_path: Path) -> None:
    """Whoever asks next sees the store as it is then, and can write."""
    store = open_sqlite(tmp_path / "t.db")
    connection = store._connection

    def refuse(action: int, *about: str | None) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_SELECT else sqlite3.SQLITE_OK

    connection.set_authorizer(refuse)
    with pytest.raises(TreadleError), store.at_one_moment():
        raise AssertionError("there is no such moment")
    connection.set_authorizer(None)
    assert not connection.in_transaction
    store.own()
    store.close()
