"""A whole store, copied to another place: from a file to a server, or back, or to a backup (`backups.py`).

The source is at rest or seen as it was at one moment, the target is empty. Rows are read and written in pages, in the
order of their keys. Afterwards both are read again and compared, every record's digest is made again from the bytes that
are there, and every payload's: a copy that is not the same is said to be none. Until its maker says that it is whole,
nobody can work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from treadle.kernel.errors import StoreCorrupt, Unsupported
from treadle.kernel.history import check_link
from treadle.kernel.state import GENESIS
from treadle.kernel.values import digest_bytes, encode

from .connection import UNFINISHED
from .reads import SqlReads
from .sql import SqlStore

PAGE: Final = 2_000
# Rows that may be large each are read a few at once.
FEW: Final = 50

# Hears of which table how many rows are done.
Tell = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: str
    # What orders its rows; where that is a number that the store gives, it gives new ones.
    key: str
    numbered: bool = False
    page: int = PAGE


TABLES: Final = (
    Table("definitions", "digest, dialect, name, version, path, file, body, created_ns", "digest"),
    Table("versions", "name, version, digest, path, status, reasons, created_ns", "name, version"),
    Table(
        "runs",
        "no, id, dialect, workflow, version, definition, cell_key, parent, parent_intent, continued_from, reference, "
        "status, working, started_ns, updated_ns, ended_ns, retain_ns, seq, error",
        "no",
    ),
    Table("journal", "run, seq, event_no, opens, closes, digest, body", "run, seq"),
    Table("snapshots", "run, seq, digest, body", "run, seq", page=FEW),
    Table("timers", "run, intent, due_ns, fires", "run, intent"),
    Table(
        "tasks",
        "no, id, run, run_id, workflow, name, type, roles, payload, task_schema, reference, status, assignee, "
        "created_ns, due_ns, history",
        "no",
    ),
    Table("task_roles", "role, status, task", "role, status, task"),
    Table("inbox", "key, body", "no", numbered=True),
    Table("replies", "key, at_ns, body", "key"),
    Table("checkpoints", "intent, run, body", "intent", page=FEW),
    Table("frames", "run, event_no, at_ns, body", "run, event_no"),
    Table("diagnostics", "run, at_ns, code, body", "no", numbered=True),
    Table("submissions", "scope, id, at_ns, body", "scope, id"),
    Table("blob_refs", "run, digest", "run, digest"),
    Table("places", "run, workflow, lane, held, priority, since_ns, quota", "run"),
    Table("documents", "kind, id, at_ns, body", "kind, id"),
    Table(
        "audit",
        'at_ns, "user", token, action, target, status, code, server, request',
        "no",
        numbered=True,
    ),
)
# Tables whose rows say on which shard they are, and how the run is found that says which.
_ON_SHARDS: Final = {"runs": "id", "timers": "run"}


@dataclass(frozen=True, slots=True)
class Copied:
    """How many rows of each kind, and a digest of each table's rows as they are in both places."""

    counts: dict[str, int]
    digests: dict[str, str]


def copy(source: SqlReads, target: SqlStore, tell: Tell = lambda table, rows: None) -> Copied:
    """Copies everything, and leaves the target marked as unfinished. Raises if the target is not empty, or is not the
    same afterwards."""
    target.note_of_store(UNFINISHED, {})
    if target.last_run_no() or target.versions() or target.inbox(1):
        target.note_of_store(UNFINISHED, None)
        raise Unsupported(
            "the store to copy to is not empty; name one where nothing is yet", code="STORE_NOT_EMPTY"
        )
    counts: dict[str, int] = {}
    for table in TABLES:
        counts[table.name] = 0
        for rows in _pages(source, table):
            counts[table.name] += _copied(source, target, table, rows)
            tell(table.name, counts[table.name])
    counts["blobs"] = _copy_blobs(source, target, tell)
    digests = {table.name: digest_of(source, table) for table in TABLES}
    for table in TABLES:
        if digests[table.name] != digest_of(target, table):
            raise StoreCorrupt(f"the copy differs from the store in {table.name}; remove it, and try again")
    check_chains(target)
    return Copied(counts, digests)


def _pages(store: SqlReads, table: Table) -> Iterator[list[Any]]:
    """The rows of a table with their keys in front, in the order of those."""
    last: tuple[Any, ...] | None = None
    width = len(table.key.split(", "))
    while rows := store.rows_after(table.name, f"{table.key}, {table.columns}", table.key, last, table.page):
        yield [tuple(row) for row in rows]
        last = tuple(rows[-1][:width])


def _copied(source: SqlReads, target: SqlStore, table: Table, rows: list[Any]) -> int:
    width = len(table.key.split(", "))
    plain = [row[width:] for row in rows]
    columns = table.columns
    if table.name in _ON_SHARDS:
        at = columns.split(", ").index(_ON_SHARDS[table.name])
        ids = {row[at] for row in plain} if table.name == "runs" else None
        homes = {id: id for id in ids} if ids is not None else _ids_of(source, {row[at] for row in plain})
        plain = [(*row, target.shard_of(homes.get(row[at], ""))) for row in plain]
        columns += ", shard"
    target.insert_rows(table.name, columns, plain)
    return len(rows)


def _ids_of(store: SqlReads, numbers: set[int]) -> dict[int, str]:
    rows = (store.run_by_no(no) for no in numbers)
    return {row.no: row.id for row in rows if row is not None}


def _copy_blobs(source: SqlReads, target: SqlStore, tell: Tell) -> int:
    """Payloads one by one: they may be large. Each is what its digest says, here and there."""
    count, after = 0, ""
    while page := source.payloads(after, 100):
        for digest, size in page:
            body = source.blob(digest)
            target.keep_payload(digest, body)
            if digest_bytes(target.blob(digest)) != digest or len(body) != size:
                raise StoreCorrupt(f"the payload {digest} is another one in the copy")
            count += 1
        tell("blobs", count)
        after = page[-1][0]
    return count


def digest_of(store: SqlReads, table: Table) -> str:
    """What the rows of a table are, in one word; numbers that the store gives do not count."""
    width = 0 if not table.numbered else len(table.key.split(", "))
    found = sha256()
    for rows in _pages(store, table):
        for row in rows:
            found.update(encode([_value(column) for column in row[width:]]))
    return found.hexdigest()


def _value(column: Any) -> Any:
    return bytes(column) if isinstance(column, memoryview | bytearray) else column


def check_chains(store: SqlReads) -> None:
    """Makes every record's digest again, from the record before it and its own bytes."""
    last: tuple[int] | None = None
    while runs := store.rows_after("runs", "no, id", "no", last, PAGE):
        for no, id in runs:
            seq, digest = 0, GENESIS
            while page := store.journal_page(no, after_seq=seq, limit=PAGE):
                for stored, _ in page:
                    check_link(id, seq, digest, stored)
                    seq, digest = stored.seq, stored.digest
        last = (runs[-1][0],)
