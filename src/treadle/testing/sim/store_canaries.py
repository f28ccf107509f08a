"""Planted bugs of what a store is promised to be: the one that is there, the bytes that were written, and who did what.
See `canaries.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from treadle.kernel.errors import TreadleError
from treadle.runtime import document
from treadle.runtime.commands import AuditEntry, Deliver, Operate, audit_row
from treadle.runtime.intake import Inbox
from treadle.runtime.staging import Answers, Staged, Staging
from treadle.store.reads import SqlReads
from treadle.store.rows import AuditRow, Batch
from treadle.store.sql import SqlStore
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


@contextlib.contextmanager
def told_by_the_next_commit() -> Iterator[None]:
    """The line of the audit goes into the commit after the one that makes the change."""
    left: WeakKeyDictionary[Staging, list[AuditRow]] = WeakKeyDictionary()
    begin = Staging.begin

    def late(answers: Answers, entry: AuditEntry, value: Any, error: TreadleError | None) -> None:
        row = audit_row(entry, answers._clock.now_ns(), value, error)
        left.setdefault(answers._staging, []).append(row)

    def begins(staging: Staging) -> Staged:
        last = begin(staging)
        staging.batch.audit += left.pop(staging, [])
        return last

    with patch.object(Answers, "write_down", late), patch.object(Staging, "begin", begins):
        yield


@contextlib.contextmanager
def told_when_it_is_asked() -> Iterator[None]:
    """Somebody is said to have done what they asked for before it is known what becomes of it."""
    take = Inbox._take

    def hasty(inbox: Inbox, command: Deliver | Operate) -> None:
        if command.entry is not None:
            inbox._answers.write_down(command.entry, {}, None)
            if isinstance(command, Deliver):
                command.entry = None
            else:
                command = replace(command, entry=None)
        take(inbox, command)

    with patch.object(Inbox, "_take", hasty):
        yield


@contextlib.contextmanager
def records_taken_as_they_are() -> Iterator[None]:
    """Nobody compares records with their digests before they are shown."""
    with patch.object(document, "check_link", lambda id, seq, digest, stored: None):
        yield


@contextlib.contextmanager
def payloads_taken_as_they_are() -> Iterator[None]:
    """Nobody compares a payload with its name."""
    blob = SqlReads.blob

    def trusting(reads: SqlReads, digest: str) -> bytes:
        row = reads._one("SELECT body FROM blobs WHERE digest = ?", digest)
        return blob(reads, digest) if row is None or row[0] is None else bytes(row[0])

    with patch.object(SqlReads, "blob", trusting):
        yield


@contextlib.contextmanager
def payload_after_its_row() -> Iterator[None]:
    """A large payload is written once the commit is made that refers to it."""
    commit, write = SqlStore._write, SqlStore._write_files

    def late(store: SqlStore, batch: Batch) -> None:
        with patch.object(SqlStore, "_write_files", lambda store, blobs: None):
            commit(store, batch)
        write(store, batch.blobs)

    with patch.object(SqlStore, "_write", late):
        yield


# What breaks with one core and with several.
STORE_CANARIES = (
    records_taken_as_they_are,
    payloads_taken_as_they_are,
    payload_after_its_row,
    told_by_the_next_commit,
    told_when_it_is_asked,
)
# What breaks only where the store is a file.
FILE_CANARIES = (
    store_looked_for_at_each_poll_only,
    store_looked_for_at_each_commit_only,
    guest_takes_over_what_is_gone,
)
