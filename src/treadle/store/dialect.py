"""Everything in which two SQL engines may differ. If it is not here, it is shared."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from treadle.kernel.errors import ValueRefused

# What a driver raises, before it asks its engine, for what no column of any engine holds.
UNFIT: Final = (UnicodeEncodeError, OverflowError)


def unfit(error: Exception) -> ValueRefused:
    if isinstance(error, UnicodeEncodeError):
        return ValueRefused("text with a lone surrogate, which no store keeps")
    return ValueRefused("a number that does not fit into 64 bits, which no store keeps")


class Position(msgspec.Struct, frozen=True):
    """How an engine says where its newest rows are: the question for the place (of a table, or of the whole
    store), the column that tells it of a row, and how to compare the two."""

    mark: str
    column: str
    found: str


if TYPE_CHECKING:
    from .commits import Transaction

    class SqlDialect(Protocol):
        """How the shared store talks to an engine."""

        @property
        def name(self) -> str: ...
        @property
        def shared(self) -> bool:
            """Whether other connections can see the database."""
            ...

        @property
        def greatest(self) -> str:
            """The function that gives the greatest of its arguments."""
            ...

        @property
        def like(self) -> str:
            """The operator that compares with a pattern whatever the case."""
            ...

        @property
        def position(self) -> Position: ...
        @property
        def append(self) -> str | None:
            """One record in one statement that checks the epoch of shard 0, where that is worth it."""
            ...

        @property
        def now_ns(self) -> str:
            """The time by the store's own clock, as an expression."""
            ...

        @property
        def skip_locked(self) -> str:
            """What a SELECT of rows that are changed next ends with: it passes over those that somebody else changes."""
            ...

        @property
        def overlaps(self) -> bool:
            """Whether there is something to gain by going on while a transaction is made durable."""
            ...

        def begin(self, connection: Any) -> Transaction: ...
        def transaction(self, connection: Any) -> contextlib.AbstractContextManager[Any]:
            """What is done in it is durable after it, or leaves nothing behind. Its errors are ours."""
            ...

        def connect(self, *, readonly: bool = False) -> Any: ...
        def begin_reading(self, connection: Any) -> None:
            """Begins a transaction that sees the store as it is now, until it is rolled back."""
            ...

        def migrate(self, connection: Any, migrations: list[tuple[int, str]]) -> None: ...
        def data_version(self, connection: Any) -> int: ...
        def schema_version(self, connection: Any) -> int: ...
        def checkpoint(self, connection: Any) -> None: ...
        def size(self, connection: Any) -> int:
            """How many bytes the database has on disk."""
            ...

        def keep_out(self, tx: Any, table: str) -> None:
            """Until the transaction ends nobody else writes to a table; whoever has begun to is waited for."""
            ...

        def was_alone(self, tx: Any) -> bool:
            """Whether nobody else could write before this transaction began; if somebody could, what it has written so far is
            there when this returns."""
            ...

        def shrink(self, connection: Any, *, rewrite: bool) -> int:
            """Gives some unused room on the disk back: how many bytes; 0 when there is no more."""
            ...

        def integrity(self, connection: Any) -> list[str]: ...
        def errors(self) -> contextlib.AbstractContextManager[None]: ...
        def settle(self, *, log: bool = False) -> None: ...
        def stay(self, *, log: bool = False) -> None: ...
        def close(self, connection: Any) -> None: ...


class Tended:
    """An engine that others write to meanwhile, and that looks after its own room: it uses it again by itself, and gives
    none of it back to the disk."""

    def shrink(self, connection: Any, *, rewrite: bool) -> int:
        return 0

    def keep_out(self, tx: Any, table: str) -> None:
        tx.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")

    def was_alone(self, tx: Any) -> bool:
        tx.execute("SELECT 1").fetchone()
        return False


def on_shards(column: str, shards: Collection[int] | None) -> str:
    """Narrows a query to some shards, or runs by their numbers; to none if there is none."""
    return "" if shards is None else f"AND {column} IN ({', '.join(map(str, sorted(shards))) or '-1'})"
