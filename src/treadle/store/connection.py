"""One connection to a store, and what concerns the store as a whole: where it is, its schema, its tables as rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from treadle.kernel.errors import StoreBusy

from .blobs import BlobPlace
from .commits import UnderWay
from .dialect import SqlDialect
from .orphans import orphans

# What is noted of a store nobody may work on: it is a backup, or it was being written when its writer ended.
BACKUP: Final = "backup"
UNFINISHED: Final = "unfinished"


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

    def _one(self, query: str, *parameters: Any) -> Any:
        if self._under_way is not None:
            self._see(self._under_way)
        try:
            return self._connection.execute(query, parameters).fetchone()
        except Exception:
            with self._dialect.errors():  # which makes it ours
                raise

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

    def orphans(self) -> dict[str, int]:
        return {table: len(runs) for table, runs in orphans(self._all).items()}

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
