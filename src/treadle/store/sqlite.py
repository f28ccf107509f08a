"""SQLite: everything in which it differs from other SQL engines, and nothing else.

WAL with `synchronous=FULL`: a commit is on disk when it returns, readers never wait for the
writer. Every write transaction begins IMMEDIATE, so a busy store is noticed at the start and
waited for (SQLite's busy handler), never in the middle. Errors become ours, with a remedy.

A store is made in its place, and its maker may be killed at any instant: what it leaves (an empty file,
one without tables, a journal to roll back) is no store yet to readers, and made whole by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import (
    AppendConflict,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreGone,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    TreadleError,
    ValueRefused,
)
from treadle.kernel.limits import STORE_BUSY_MS_MAX

from .commits import SERIALIZED, Committer, SqliteTransaction
from .dialect import UNFIT, Position, unfit
from .files import make_private

if TYPE_CHECKING:
    from .commits import Transaction


APPLICATION_ID: Final = 0x54524541  # "TREA", so that a foreign database is never touched
_WAL_BYTES_MAX: Final = 64 * 1024 * 1024
# SQLite needs about this much to begin with: its notes beside the file, a page of the log.
_ROOM_BYTES_MIN: Final = 64 * 1024
_CACHE_KB: Final = 24 * 1024
# There are several readers, and each has a cache of its own.
_READ_CACHE_KB: Final = 8 * 1024
# Pages that are given back by one commit; and from how many on a file of an earlier version is written anew.
_PAGES_PER_STEP: Final = 1_000
_REWRITE_PAGES_MIN: Final = 256
_IN_STEPS: Final = 2
_BUSY_PAUSE_S: Final = 0.01
_SLOW_S: Final = 0.001
_PRIMARY: Final = {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"}


# Device and file.
Identity = tuple[int, int]


class WholeTransaction:
    """A `with` whose statements are durable after it, or leave nothing behind. It begins with the write lock, so that a
    busy store is noticed before anything is done. Every commit is one, so it is no generator."""

    __slots__ = ("_connection", "_dialect")

    def __init__(self, dialect: SqliteDialect, connection: sqlite3.Connection) -> None:
        self._dialect = dialect
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._dialect.translate(error) from error
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, tb: TracebackType | None
    ) -> None:
        if raised is not None:
            self._undo(raised)
            return
        try:
            began = time.perf_counter()
            self._connection.execute("COMMIT")
            self._dialect.synced(time.perf_counter() - began)
        except BaseException as error:
            self._undo(error)
            raise

    def _undo(self, error: BaseException) -> None:
        """Leaves nothing behind; an error of SQLite's becomes ours."""
        with contextlib.suppress(Exception):
            self._connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise self._dialect.translate(error) from error
        if isinstance(error, UNFIT):
            raise unfit(error) from error


class SqliteDialect:
    """How SqlStore talks to SQLite."""

    name = "sqlite"
    greatest = "max"
    like = "LIKE"
    now_ns = "CAST((julianday('now') - 2440587.5) * 86400000000000 AS INTEGER)"
    skip_locked = ""
    position = Position(mark="SELECT coalesce(max(rowid), 0) FROM {table}", column="rowid", found=">")
    append: str | None = """INSERT INTO journal (run, seq, event_no, opens, closes, digest, body)
                            SELECT ?, ?, ?, ?, ?, ?, ? FROM shards WHERE shard = 0 AND epoch = ?"""

    def __init__(self, path: Path | None, crowded: Callable[[], bool] = lambda: False) -> None:
        self.path = path
        self._crowded = crowded
        # The identity of the store's file as it was when it was opened; for its owner, also of its log, which is there for
        # as long as the owner is. Absolute: a process may change its folder.
        self._file: str | None = None
        self._was: Identity | None = None
        self._log_was: Identity | None = None
        self._committer: Committer | None = None
        # How long the disk takes for a commit, lately.
        self._sync_s = 0.0

    @property
    def overlaps(self) -> bool:
        """Another thread has to be asked to wait for the disk, which costs more than a quick one takes. Where there is a crowd
        no disk is slow: it is the interpreter that is waited for, and by two threads more often than by one."""
        slow = SERIALIZED and self._sync_s > _SLOW_S and self.path is not None and not self._crowded()
        return slow and self._has_committer()

    def _has_committer(self) -> bool:
        if self._committer is None:
            with contextlib.suppress(
                RuntimeError
            ):  # there is no thread to be had: commits are waited for here
                self._committer = Committer()
        return self._committer is not None

    @property
    def shared(self) -> bool:
        """Whether other connections can see the database."""
        return self.path is not None

    def connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        with self.errors():
            if self.path is None:
                connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            else:
                if not self.path.parent.is_dir():
                    raise StoreUnavailable(
                        f"the folder {self.path.parent} does not exist; create it, or choose another --store",
                        cls="user",
                        code="NO_FOLDER",
                    )
                self.found()
                if not readonly:
                    make_private(self.path)
                uri = self._read_uri(self.path) if readonly else f"{self.path.absolute().as_uri()}?mode=rwc"
                connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                self._set_up(connection, readonly=readonly)
            except BaseException:
                connection.close()
                raise
            return connection

    @staticmethod
    def _set_up(connection: sqlite3.Connection, *, readonly: bool) -> None:
        connection.execute(f"PRAGMA busy_timeout={STORE_BUSY_MS_MAX}")
        if not readonly:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA journal_size_limit={_WAL_BYTES_MAX}")
            connection.execute("PRAGMA wal_autocheckpoint=1000")
        connection.execute("PRAGMA mmap_size=0")
        connection.execute(f"PRAGMA cache_size=-{_READ_CACHE_KB if readonly else _CACHE_KB}")

    @staticmethod
    def identity(file: str) -> Identity | None:
        """Which file has this name; None: none has."""
        try:
            found = os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def settle(self, *, log: bool = False) -> None:
        """Remembers where the store is, from now on; its owner also where its log is. The file stays the one that was opened:
        what has its name later is another."""
        if self.path is None:
            return
        if self._file is None or not log:
            self._file = str(self.path.absolute())
            self._was = self.identity(self._file)
        self._log_was = self.identity(self._file + "-wal") if log else None

    def stay(self, *, log: bool = False) -> None:
        """Refuses to go on with a store that was deleted, moved or replaced while it was open. Such a file goes on taking
        writes, and nobody will ever read them again. So its identity is compared after each commit, and a few times a
        second that of its log, too. A call of `stat` is little beside a commit that waits for the disk."""
        if self._file is None:
            return
        found = self.identity(self._file)
        if found is None or found != self._was or (log and not self._has_log()):
            raise StoreGone(
                f"the store {self.path} was deleted, moved or replaced while it was open; what was done since then "
                "is not in it. Put it back or restore it, then start again"
            )

    def _has_log(self) -> bool:
        return self._log_was is None or self.identity(f"{self._file}-wal") == self._log_was

    def close(self, connection: sqlite3.Connection) -> None:
        if self._committer is not None:
            self._committer.stop()
            self._committer = None
        try:
            self.stay(log=True)
        except StoreGone:
            _leave_open(connection)
        else:
            connection.close()

    def _read_uri(self, path: Path) -> str:
        """A store at rest (a backup, another user's) is read even where SQLite may not put its notes
        beside it. While somebody works on it there is a log, and with the log come the notes."""
        worked_on = any(Path(f"{path}{log}").exists() for log in ("-wal", "-journal"))
        at_rest = not worked_on and not os.access(path.absolute().parent, os.W_OK)
        return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if at_rest else ''}"

    def found(self) -> int:
        """The schema of the store that is there; 0 if none is yet: no file, or one whose maker did not
        come to the end. Looks before it writes: a file that is not ours stays as it is."""
        if self.path is None or not self.path.exists() or self.path.stat().st_size == 0:
            return 0
        with self.errors():
            try:
                application, schema, tables = self._probe(self.path)
            except sqlite3.OperationalError as error:
                if not str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_READONLY"):
                    raise
                # Its maker was killed with a journal open, which only a writer can roll back.
                self._roll_back(self.path)
                application, schema, tables = self._probe(self.path)
        if application == APPLICATION_ID:
            return schema
        if tables:
            raise StoreCorrupt(f"{self.path} is a database of another program; choose another --store")
        return 0

    def _probe(self, path: Path) -> tuple[int, int, int]:
        """Whose file it is, its schema, how many tables it has: as they were at one moment."""
        probe = sqlite3.connect(
            self._read_uri(path), uri=True, isolation_level=None, timeout=STORE_BUSY_MS_MAX / 1000
        )
        with contextlib.closing(probe):
            probe.execute("BEGIN")
            tables = probe.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            application = probe.execute("PRAGMA application_id").fetchone()[0]
            return application, self.schema_version(probe), tables

    @staticmethod
    def _roll_back(path: Path) -> None:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with (
            contextlib.suppress(sqlite3.Error),  # who asked finds out the same, and says it better
            contextlib.closing(sqlite3.connect(uri, uri=True, timeout=STORE_BUSY_MS_MAX / 1000)) as writer,
        ):
            writer.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def schema_version(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])

    def migrate(self, connection: sqlite3.Connection, migrations: list[tuple[int, str]]) -> None:
        """Runs what is missing, under the write lock, each step whole or not at all."""
        with self.errors():
            newest = migrations[-1][0]
            if (found := self.schema_version(connection)) > newest:
                raise StoreTooNew.of(found, newest)
            if found == 0:
                _give_room_back_in_steps(connection)
            # It is in the file's header: written only once we know that the file is ours.
            self._log_ahead(connection)
            if found == newest or (found == 0 and self._make(connection, migrations)):
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                found = self.schema_version(connection)
                for number, script in migrations:
                    if number > found:
                        for statement in _statements(script):
                            connection.execute(statement)
                        connection.execute(f"PRAGMA user_version={number}")
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @staticmethod
    def _make(connection: sqlite3.Connection, migrations: list[tuple[int, str]]) -> bool:
        """Makes a new store by one script, whole or not at all. Its statements are not kept prepared, as those that are
        executed one by one are: that is 260 KB of memory for what is done once. False: another process has made it."""
        steps = [statement for _, script in migrations for statement in _statements(script)]
        marks = [f"PRAGMA user_version={migrations[-1][0]}", f"PRAGMA application_id={APPLICATION_ID}"]
        try:
            connection.executescript(";".join(["BEGIN IMMEDIATE", *steps, *marks, "COMMIT"]))
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":
                return False  # its first table is there already
            raise
        return True

    @staticmethod
    def _log_ahead(connection: sqlite3.Connection) -> None:
        """The one statement for which SQLite does not wait while another process makes the same store."""
        until = time.monotonic() + STORE_BUSY_MS_MAX / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                busy = str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")
                if not busy or time.monotonic() > until:
                    raise
            time.sleep(_BUSY_PAUSE_S)

    def transaction(self, connection: sqlite3.Connection) -> WholeTransaction:
        return WholeTransaction(self, connection)

    def synced(self, seconds: float) -> None:
        """The disk has taken so long for a commit."""
        self._sync_s += (seconds - self._sync_s) / 8

    def begin(self, connection: sqlite3.Connection) -> Transaction:
        if self._committer is None:
            self._committer = Committer()
        return SqliteTransaction(connection, self._committer)

    def begin_reading(self, connection: sqlite3.Connection) -> None:
        """The moment is that of the first question. The owner goes on writing; its log grows meanwhile."""
        connection.execute("BEGIN")
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            # Or whoever reads or writes here later would do so in what was never a moment.
            connection.execute("ROLLBACK")
            raise

    def data_version(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def size(self, connection: sqlite3.Connection) -> int:
        with self.errors():
            (pages,), (bytes_,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
            )
        log = 0
        if self.path is not None:
            with contextlib.suppress(OSError):  # there is none while nobody has written
                log = os.stat(f"{self.path}-wal").st_size
        return int(pages) * int(bytes_) + log

    def keep_out(self, tx: sqlite3.Connection, table: str) -> None:
        """There is one writer at a time."""

    def was_alone(self, tx: sqlite3.Connection) -> bool:
        """Its owner removes files, and nobody else."""
        return True

    def shrink(self, connection: sqlite3.Connection, *, rewrite: bool) -> int:
        """In steps, where the file was made so. One of an earlier version is written anew once, which takes as long as
        copying it: only where it is asked for, and much of it is empty."""
        before, unused, in_steps = self._room(connection)
        if in_steps:
            connection.execute(f"PRAGMA incremental_vacuum({_PAGES_PER_STEP})").fetchall()
        elif rewrite and unused * 4 >= before and unused >= _REWRITE_PAGES_MIN:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.execute("VACUUM")
        else:
            return 0
        self.checkpoint(connection)
        page_bytes = int(connection.execute("PRAGMA page_size").fetchone()[0])
        return (before - self._room(connection)[0]) * page_bytes

    @staticmethod
    def _room(connection: sqlite3.Connection) -> tuple[int, int, bool]:
        """Pages in all, those that are not used, whether those can be given back in steps."""
        pages, unused, mode = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "auto_vacuum")
        )
        return pages, unused, mode == _IN_STEPS

    def integrity(self, connection: sqlite3.Connection) -> list[str]:
        rows = connection.execute("PRAGMA quick_check").fetchall()
        return [str(row[0]) for row in rows if row[0] != "ok"]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.translate(error) from error
        except UNFIT as error:
            raise unfit(error) from error

    def translate(self, error: sqlite3.Error) -> TreadleError:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError) and "binding" in str(error):
            return ValueRefused(f"the store cannot hold a value: {error}")
        name = str(getattr(error, "sqlite_errorname", ""))
        place = str(self.path) if self.path else "memory:"
        table: list[tuple[str, Any]] = [
            ("SQLITE_MISMATCH", ValueRefused("a number was expected")),
            ("SQLITE_BUSY", StoreBusy()),
            ("SQLITE_LOCKED", StoreBusy()),
            ("SQLITE_FULL", StoreFull(f"no room left for {place}; nothing was lost, make room and go on")),
            (
                "SQLITE_IOERR_WRITE",
                StoreFull(f"{place} cannot grow (disk full, quota or size limit); nothing was lost"),
            ),
            (
                "SQLITE_READONLY",
                StoreReadOnly(f"{place} or its folder cannot be written; check its permissions"),
            ),
            (
                "SQLITE_CANTOPEN",
                StoreUnavailable(f"cannot open {place}; check that its folder exists and is writable"),
            ),
            ("SQLITE_NOTADB", StoreCorrupt(f"{place} is not a database; choose another --store")),
            (
                "SQLITE_CORRUPT",
                StoreCorrupt(f"{place} is damaged; restore it from a backup, see `treadle doctor`"),
            ),
        ]
        if name in _PRIMARY:
            return AppendConflict(str(error))
        if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) and self._is_full():
            name = "SQLITE_FULL"
        for prefix, translated in table:
            if name.startswith(prefix):
                found: TreadleError = translated
                return found
        return StoreUnavailable(f"{place}: {error} ({name or type(error).__name__})")

    def _is_full(self) -> bool:
        """What SQLite calls an I/O error when it can make none of the files it needs."""
        if self.path is None:
            return False
        with contextlib.suppress(OSError):
            disk = os.statvfs(self.path.absolute().parent)
            return disk.f_bavail * disk.f_frsize < _ROOM_BYTES_MIN
        return False


def _statements(script: str) -> list[str]:
    """A script's statements. Ours hold no semicolon inside one."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]


def _give_room_back_in_steps(connection: sqlite3.Connection) -> None:
    """How room is given back is settled with the first page. That is not written for this alone, which would be four
    syncs of the disk: what was said is kept where the page is not, and goes into it when the next one writes it."""
    connection.execute("BEGIN")
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("ROLLBACK")


def _leave_open(connection: Any) -> None:
    """For a connection to a file that is gone: closing it would remove, by its name, the log of
    whatever store has taken its place. The end of the process closes it without that."""
    import ctypes  # for a store that is lost, and nothing else

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
