"""One connection to a store: what concerns the store as a whole (where it is, its schema, its tables as rows; who holds its
shards, and what others leave in it), and what is asked of it most, which is about one run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import JournalCorrupt, OwnershipLost, StoreBusy
from treadle.kernel.history import Stored
from treadle.kernel.model import shard_of as kernel_shard_of

from .commits import UnderWay
from .loose import Orphans
from .orphans import orphans
from .row_reading import RUN_COLUMNS, STORED_COLUMNS, is_whole, run_of, stored_of
from .rows import Message
from .run_rows import RunRow

if TYPE_CHECKING:
    from .blobs import BlobPlace
    from .dialect import SqlDialect


# What is noted of a store nobody may work on: it is a backup, or it was being written when its writer ended.
BACKUP: Final = "backup"
UNFINISHED: Final = "unfinished"
_PART: Final = 256
_EPOCH: Final = "SELECT epoch FROM shards WHERE shard = 0"


class SqlConnection:
    """Not for two threads at once."""

    # The commit that is being made durable on it.
    _under_way: UnderWay | None = None

    def __init__(self, dialect: SqlDialect, connection: Any, files: BlobPlace | None) -> None:
        self._dialect = dialect
        self._connection = connection
        self._files = files
        dialect.settle()

    def _all(self, query: str, *parameters: Any) -> list[Any]:
        if self._under_way is not None:
            self._see(self._under_way)
        try:
            found: list[Any] = self._connection.execute(query, parameters).fetchall()
        except Exception:
            with self._dialect.errors():  # which makes it ours
                raise
        return found

    def _in_parts(self, query: str) -> Iterator[list[Any]]:
        """The same of many rows that need not be in memory together."""
        if self._under_way is not None:
            self._see(self._under_way)
        try:
            cursor = self._connection.execute(query)
            while found := cursor.fetchmany(_PART):
                yield found
        except Exception:
            with self._dialect.errors():  # which makes it ours
                raise

    def _one(self, query: str, *parameters: Any) -> Any:
        if self._under_way is not None:
            self._see(self._under_way)
        try:
            return self._connection.execute(query, parameters).fetchone()
        except Exception:
            with self._dialect.errors():  # which makes it ours
                raise

    def _transaction(self) -> contextlib.AbstractContextManager[Any]:
        return self._dialect.transaction(self._connection)

    @staticmethod
    def _see(commit: UnderWay) -> None:
        """Waits for what is asked about."""
        if not commit.settle():
            raise StoreBusy("the commit before this was not made durable")

    def close(self) -> None:
        self._dialect.close(self._connection)

    def stay(self) -> None:
        """Refuses to go on with a store that was deleted, moved or replaced while it was open."""
        self._dialect.stay()

    @property
    def schema_version(self) -> int:
        return self._dialect.schema_version(self._connection)

    def check(self) -> list[str]:
        with self._dialect.errors():
            return self._dialect.integrity(self._connection)

    def now_ns(self) -> int:
        return int(self._one(f"SELECT {self._dialect.now_ns}")[0])

    def orphans(self) -> Orphans:
        return orphans(self._all)

    def work_key(self) -> bytes:
        return bytes.fromhex(self._one("SELECT value FROM meta WHERE key = 'work_key'")[0])

    def has_key(self) -> bool:
        """Stores of the first version have none until they are brought up to date."""
        return self._one("SELECT 1 FROM meta WHERE key = 'work_key'") is not None

    def noted(self, key: str) -> dict[str, Any] | None:
        """What is noted of the store itself, if anything is."""
        row = self._one("SELECT value FROM meta WHERE key = ?", key)
        found: dict[str, Any] | None = None if row is None else json.loads(row[0])
        return found

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """What is read in here is the store as it was at one moment, whatever others write meanwhile."""
        with self._dialect.errors():
            self._dialect.begin_reading(self._connection)
        try:
            yield
        finally:
            with self._dialect.errors():
                self._connection.execute("ROLLBACK")

    def rows_where(
        self, table: str, columns: str, where: str, *values: Any, order: str | None = None, limit: int = 2**31
    ) -> list[Any]:
        """Rows of a table that meet a condition."""
        ordered = "" if order is None else f"ORDER BY {order}"
        return self._all(f"SELECT {columns} FROM {table} WHERE {where} {ordered} LIMIT ?", *values, limit)

    def rows_after(
        self, table: str, columns: str, key: str, last: Sequence[Any] | None, limit: int
    ) -> list[Any]:
        """The next rows of a table, in the order of a key of it."""
        names = key.split(", ")
        after = f"WHERE ({key}) > ({', '.join('?' * len(names))})" if last is not None else ""
        query = f"SELECT {columns} FROM {table} {after} ORDER BY {key} LIMIT ?"
        return self._all(query, *(last or ()), limit)


class OwnedConnection(SqlConnection):
    """Whose the store is, and what others leave in it."""

    # The shards that this store has claimed, and the epoch of each; how many there are.
    _held: dict[int, int]
    _shards: int

    def own(self) -> int:
        """Takes every shard, whoever holds it; the highest new epoch."""
        with self._transaction() as tx:
            taken = tx.execute("UPDATE shards SET epoch = epoch + 1 RETURNING shard, epoch").fetchall()
        # Who was a guest here may have waited for a file that is gone, and another one is in its place by now.
        self.stay()
        self._held = {int(shard): int(epoch) for shard, epoch in taken}
        self._dialect.settle(log=True)
        return max(self._held.values())

    def hold(self, shards: Mapping[int, int]) -> None:
        self._held.update(shards)

    def let_go(self, shards: Iterable[int]) -> None:
        for shard in shards:
            self._held.pop(shard, None)

    def lost(self) -> list[int]:
        epochs = dict(self._all("SELECT shard, epoch FROM shards"))
        lost = [shard for shard, epoch in self._held.items() if epochs[shard] != epoch]
        for shard in lost:
            del self._held[shard]
        return lost

    def shard_of(self, run: str) -> int:
        """Where a run's rows are found; what belongs to no run is on the first shard."""
        return 0 if self._shards == 1 or not run else kernel_shard_of(run, self._shards)

    def _check_epoch(self, tx: Any, shards: Iterable[int]) -> None:
        """Refuses the transaction unless every shard is still this store's."""
        if self._shards == 1 and {*shards} <= {0}:
            wanted, found = self._held or {0: -1}, {0: tx.execute(_EPOCH).fetchone()[0]}
        else:
            wanted = {shard: self._held.get(shard, -1) for shard in shards}
            marked = ", ".join("?" * len(wanted))
            query = f"SELECT shard, epoch FROM shards WHERE shard IN ({marked})"
            found = dict(tx.execute(query, tuple(wanted)).fetchall())
        if found != wanted:
            raise OwnershipLost(f"this engine held epochs {wanted}; the store is at {found}")

    def _addressed(self, messages: Iterable[Message | tuple[str, bytes]]) -> list[tuple[str, bytes, int]]:
        whole = (Message(*message) for message in messages)
        return [(key, body, self.shard_of(home)) for key, body, home in whole]

    def post(self, messages: Iterable[Message | tuple[str, bytes]]) -> None:
        with self._transaction() as tx:
            self._post(tx, self._addressed(messages))
        self.stay()

    def _post(self, tx: Any, rows: list[tuple[str, bytes, int]]) -> None:
        query = "INSERT INTO inbox (key, body, shard) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
        tx.executemany(query, rows)

    def forget_replies(self, keys: Sequence[str]) -> None:
        with self._transaction() as tx:
            tx.executemany("DELETE FROM replies WHERE key = ?", [(key,) for key in keys])


class RunReads(SqlConnection):
    """One run, its records and its snapshots."""

    def run(self, id: str) -> RunRow | None:
        row = self._one(f"SELECT {RUN_COLUMNS} FROM runs WHERE id = ?", id)
        return None if row is None else run_of(row)

    def outlined(self, id: str) -> tuple[RunRow, bool, bool] | None:
        query = f"""SELECT {RUN_COLUMNS}, EXISTS (SELECT 1 FROM snapshots s WHERE s.run = r.no),
                    EXISTS (SELECT 1 FROM runs c WHERE c.parent = r.id) FROM runs r WHERE r.id = ?"""
        row = self._one(query, id)
        return None if row is None else (run_of(row), bool(row[-2]), bool(row[-1]))

    def run_by_no(self, no: int) -> RunRow | None:
        row = self._one(f"SELECT {RUN_COLUMNS} FROM runs WHERE no = ?", no)
        return None if row is None else run_of(row)

    def journal(self, run: int, *, after_seq: int = 0, until_seq: int | None = None) -> list[Stored]:
        query = f"SELECT {STORED_COLUMNS} FROM journal WHERE run = ? AND seq > ? AND seq <= ? ORDER BY seq"
        until = 2**62 if until_seq is None else until_seq
        return [stored_of(row) for row in self._all(query, run, after_seq, until)]

    def journal_page(self, run: int, *, after_seq: int, limit: int) -> list[tuple[Stored, int]]:
        """Records with the number of the run's last event after each."""
        query = (
            f"SELECT {STORED_COLUMNS}, event_no FROM journal WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?"
        )
        return [(stored_of(row), row[-1]) for row in self._all(query, run, after_seq, limit)]

    def open_ids(self, run: int, *, after_seq: int) -> list[tuple[int, bytes | None, bytes | None]]:
        return self._all(
            "SELECT seq, opens, closes FROM journal WHERE run = ? AND seq > ? ORDER BY seq", run, after_seq
        )

    def record(self, run: int, seq: int) -> Stored | None:
        row = self._one(f"SELECT {STORED_COLUMNS} FROM journal WHERE run = ? AND seq = ?", run, seq)
        return None if row is None else stored_of(row)

    def last_event_no(self, run: int) -> int:
        query = f"""SELECT {self._dialect.greatest}(coalesce((SELECT event_no FROM journal WHERE run = ? ORDER BY seq DESC LIMIT 1), 0),
                              coalesce((SELECT max(event_no) FROM frames WHERE run = ?), 0))"""
        return int(self._one(query, run, run)[0])

    def snapshot(self, run: int, *, until_seq: int | None = None) -> tuple[int, bytes] | None:
        until = 2**62 if until_seq is None else until_seq
        query = "SELECT seq, body, digest FROM snapshots WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
        row = self._one(query, run, until)
        if row is None:
            return None
        if not is_whole(row[1], row[2]):
            raise JournalCorrupt(f"the snapshot at record {row[0]} of run number {run} is damaged")
        return row[0], row[1]

    def snapshot_seqs(self, run: int) -> list[int]:
        return [row[0] for row in self._all("SELECT seq FROM snapshots WHERE run = ? ORDER BY seq", run)]

    def last_run_no(self) -> int:
        return int(self._one("SELECT coalesce(max(no), 0) FROM runs")[0])

    def last_task_no(self) -> int:
        return int(self._one("SELECT coalesce(max(no), 0) FROM tasks")[0])
