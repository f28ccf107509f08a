"""Planted bugs of what a store is promised to be: the one that is there, the bytes that were written, and who did what.
See `canaries.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from treadle.store.sqlite import SqliteDialect
from treadle.store.upkeep import SqlUpkeep


@contextlib.contextmanager
def store_looked_for_at_each_poll_only() -> Iterator[None]:
    """What goes into a file that is gone is acknowledged, until the next poll."""
    stay = SqliteDialect.stay

    def seldom(dialect: SqliteDialect, *, log: bool = False) -> None:
        if log:
            stay(dialect, log=log)

    with patch.object(SqliteDialect, "stay", seldom):
        yield


@contextlib.contextmanager
def store_looked_for_at_each_commit_only() -> Iterator[None]:
    """An engine that has nothing to commit never finds out that its store is gone."""
    stay = SqliteDialect.stay

    def seldom(dialect: SqliteDialect, *, log: bool = False) -> None:
        if not log:
            stay(dialect)

    with patch.object(SqliteDialect, "stay", seldom):
        yield


@contextlib.contextmanager
def guest_takes_over_what_is_gone() -> Iterator[None]:
    """Whoever takes a store over takes what has its name by then for what it has open: what 0.1.0 did."""
    own = SqlUpkeep.own

    def trusting(store: SqlUpkeep) -> int:
        store._dialect.settle()
        return own(store)

    with patch.object(SqlUpkeep, "own", trusting):
        yield


# What breaks only where the store is a file.
FILE_CANARIES = (
    store_looked_for_at_each_poll_only,
    store_looked_for_at_each_commit_only,
    guest_takes_over_what_is_gone,
)
