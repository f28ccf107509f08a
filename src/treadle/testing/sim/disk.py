"""A disk with a memory of what was synced, and connections that fail as SQLite's do.

The database is one real SQLite in memory, so the store's own SQL runs. After every acknowledged
commit its serialized image is what a power loss leaves. A commit that dies is torn the only two ways
a journaled database can be: the image before it, or the image after it, with nobody told.

The file can be replaced by a copy of itself while processes have it open: they go on with what they opened, which nobody
will ever read again. Large payloads are files beside it, in some worlds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import BlobMissing, StoreFull
from treadle.store.sqlite import Identity, SqliteDialect

from .faults import Faults

if TYPE_CHECKING:
    from treadle.store.commits import Transaction


class Died(BaseException):
    """A simulated process ends here; nothing may catch it but the world."""


class Broken(BaseException):
    """A promise is broken, in the middle of what an engine does; nothing of it may take that for a failed commit."""


def _failure(name: str, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    return error


class Disk:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.faults = Faults()
        self.full = False
        # The disk's own clock, for leases.
        self.clock: Callable[[], int] = lambda: 0
        # The file that has the store's name, which number it is of those that had it, and those that had it before.
        self.live = self._open(b"")
        self.number = 0
        self._gone: list[sqlite3.Connection] = []
        self.payloads: dict[str, bytes] = {}
        self.image = b""
        self.commits = 0
        # Whether its power may be lost at all; where it is not, nobody asks for the image.
        self.loses_power = True
        # A lying disk acknowledges without syncing: the canary for skipped fsync.
        self.lies = False
        self.on_commit: Callable[[Mapping[int, int]], None] = lambda claims: None

    def _open(self, image: bytes) -> sqlite3.Connection:
        live = sqlite3.connect(":memory:", isolation_level=None)
        live.create_function("disk_now", 0, lambda: self.clock())
        if image:
            live.deserialize(image)
        return live

    def close(self) -> None:
        for file in (*self._gone, self.live):
            file.close()

    def replace(self) -> None:
        """A copy takes the file's place."""
        self._gone.append(self.live)
        self.live = self._open(self.live.serialize())
        self.number += 1

    def lose_power(self) -> None:
        self.live.close()
        self.live = self._open(self.image)

    def drop_transaction(self) -> None:
        if self.live.in_transaction:
            self.live.execute("ROLLBACK")

    def commit(self, file: sqlite3.Connection, claims: Mapping[int, int]) -> None:
        """`claims` are the shards for which it is made, at the epochs at which they are held."""
        file.execute("COMMIT")
        if file is not self.live:
            return
        self.commits += 1
        if self.loses_power and not (self.lies and self._rng.random() < 0.5):
            self.image = self.live.serialize()
        self.on_commit(claims)

    def epochs(self) -> dict[int, int]:
        """At which epoch each shard is held, whoever believes what."""
        return dict(self.live.execute("SELECT shard, epoch FROM shards").fetchall())

    def slowness(self) -> int:
        """For how many events of the next commit a commit may take."""
        return self._rng.choice((0, 1, 2, 1_000))

    def check_sync(self, file: sqlite3.Connection) -> None:
        if self._rng.random() < self.faults.commit_fails:
            file.execute("ROLLBACK")
            raise _failure("SQLITE_IOERR_FSYNC", "disk I/O error (simulated)")

    def check_read(self) -> None:
        if self._rng.random() < self.faults.read_fails:
            raise _failure("SQLITE_IOERR_READ", "disk I/O error (simulated)")

    def check_begin(self) -> None:
        if self._rng.random() < self.faults.busy:
            raise _failure("SQLITE_BUSY", "database is locked (simulated)")

    def check_append(self, sql: str) -> None:
        if sql.startswith("INSERT INTO journal") and self._rng.random() < self.faults.conflict:
            raise _failure("SQLITE_CONSTRAINT_UNIQUE", "UNIQUE constraint failed: journal (simulated)")

    def check_write(self) -> None:
        if self.full and self._rng.random() < 0.5:
            raise _failure("SQLITE_FULL", "database or disk is full (simulated)")


class SimConnection:
    """One process's connection: the same calls as sqlite3's, each a point where it may die."""

    def __init__(self, disk: Disk, point: Callable[[], None] | None, *, follows: bool) -> None:
        self._disk = disk
        self._opened = None if follows else disk.live
        self._point = point or _steady
        self._faulty = point is not None
        self.own_commits = 0
        # For which shards its next commit is made, as whoever makes it believes to hold them.
        self.claims: Mapping[int, int] = {}

    @property
    def file(self) -> sqlite3.Connection:
        return self._opened or self._disk.live

    @property
    def in_transaction(self) -> bool:
        return self.file.in_transaction

    def drop_transaction(self) -> None:
        if self.in_transaction:
            self.file.execute("ROLLBACK")

    def executescript(self, script: str) -> None:
        """A store is made by one; whoever makes it may die between any two statements."""
        for sql in script.split(";"):
            self.execute(sql)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        if sql == "ROLLBACK":
            return self.file.execute(sql)
        if sql.startswith("INSERT") and not self.in_transaction:
            return self._alone(sql, parameters)
        self._point()
        if not self._faulty:
            return self._commit() if sql == "COMMIT" else self.file.execute(sql, parameters)
        if sql == "COMMIT":
            self._disk.check_write()
            self._disk.check_sync(self.file)
            self._commit()
            # It is on disk, and this process may still die before it knows.
            self._point()
            return None
        if sql.startswith("BEGIN"):
            self._disk.check_begin()
        elif sql.startswith(("SELECT", "WITH")):
            self._disk.check_read()
        elif not sql.startswith("PRAGMA"):
            self._disk.check_write()
            self._disk.check_append(sql)
        return self.file.execute(sql, parameters)

    def _alone(self, sql: str, parameters: Sequence[Any]) -> Any:
        """A statement that is a transaction of its own."""
        self.execute("BEGIN IMMEDIATE")
        try:
            done = self.execute(sql, parameters)
            self.execute("COMMIT")
        except Exception:
            self.drop_transaction()
            raise
        return done

    def _commit(self) -> None:
        self._disk.commit(self.file, self.claims)
        self.own_commits += 1

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> Any:
        self._point()
        if self._faulty:
            self._disk.check_write()
            self._disk.check_append(sql)
        return self.file.executemany(sql, rows)

    def close(self) -> None:
        """The disk outlives every process."""


class SimTransaction:
    """The disk takes its time: a commit is made durable when somebody looks whether it is, or waits for it."""

    def __init__(self, disk: Disk, connection: SimConnection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        self.tx = connection
        self._disk = disk
        self._looks = 0
        # Whether it was tried to make it durable.
        self.over = False
        self._error: Exception | None = None

    def send(self) -> None:
        self._looks = self._disk.slowness()

    def is_done(self) -> bool:
        self._looks -= 1
        if self._looks < 0:
            self._commit()
        return self.over

    def wait(self) -> None:
        self._commit()
        if self._error is not None:
            self.undo()
            raise self._error

    def _commit(self) -> None:
        if not self.over:
            self.over = True
            try:
                self.tx.execute("COMMIT")
            except Exception as error:
                self._error = error

    def undo(self) -> None:
        self.tx.drop_transaction()


def _steady() -> None:
    """For those who watch: nothing ever happens to them."""


class SimDialect(SqliteDialect):
    """SQLite's dialect on a simulated disk; without a `point` to die at, it never fails. Who `follows` has whatever file is
    there; others the one that they opened."""

    now_ns = "disk_now()"
    overlaps = True

    def __init__(self, disk: Disk, point: Callable[[], None] | None = None, *, follows: bool = True) -> None:
        super().__init__(None if follows else Path("simulated.db"))
        self._disk = disk
        self._point = point
        self._follows = follows

    @property
    def shared(self) -> bool:
        return True

    def identity(self, file: str) -> Identity | None:  # type: ignore[override]  # it is asked of the disk
        return 0, self._disk.number

    def connect(self, *, readonly: bool = False) -> Any:
        return SimConnection(self._disk, self._point, follows=self._follows)

    def begin(self, connection: Any) -> Transaction:
        return SimTransaction(self._disk, connection)

    def data_version(self, connection: Any) -> int:
        return self._disk.commits - int(connection.own_commits)


class SimPayloads:
    """Large payloads as files (`BlobPlace`): what is written is there when `write` returns; its writer may die before
    that and after it."""

    removed_at_once = 2

    def __init__(self, disk: Disk, point: Callable[[], None] | None = None) -> None:
        self._disk = disk
        self._point = point or _steady

    def write(self, digest: str, body: bytes) -> None:
        self._point()
        if self._disk.full:
            raise StoreFull(f"cannot write {digest}: no room (simulated)")
        self._disk.payloads[digest] = body
        self._point()

    def read(self, digest: str, size: int) -> bytes:
        self.check(digest, size)
        return self._disk.payloads[digest]

    def check(self, digest: str, size: int) -> None:
        if digest not in self._disk.payloads:
            raise BlobMissing(f"{digest}: its file is gone (simulated)")

    def remove(self, digest: str) -> None:
        self._point()
        self._disk.payloads.pop(digest, None)

    def digests(self, before_ns: int | None = None) -> Iterator[str]:
        """Nothing here is as old as a file that nobody can be writing any more."""
        if before_ns is None:
            yield from list(self._disk.payloads)
