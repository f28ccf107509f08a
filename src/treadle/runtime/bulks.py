"""Bulk work as data: one action on a set of runs that was fixed when it was accepted.

A job is a row, its set lies beside it in chunks. Whoever goes on with it holds it for a while (`take`), and says of each
chunk what came of it (`advance`): both are commits where what belongs to the whole store is decided, so a job goes on at
another server when one dies, and no chunk is counted twice. A chunk that was begun by somebody who died is done again;
that it changes nothing the second time is up to the action (`host/bulk.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

import msgspec

from treadle.kernel.errors import TreadleError, Unsupported
from treadle.kernel.values import Value, encode
from treadle.lang.duration import instant_text

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


KIND: Final = "bulk"
IDS: Final = "bulk.ids"
# Runs that are gone about at once before the row is written again.
CHUNK: Final = 200
# For so long nobody else takes a job; each chunk begins it anew.
HELD_NS: Final = 30 * 10**9
ERRORS_MAX: Final = 100
# So long after its end a job can be asked about.
KEPT_NS: Final = 30 * 86_400 * 10**9

Action = Literal["retry", "cancel", "signal", "delete"]
BulkStatus = Literal["running", "completed", "cancelled"]


class BulkDocument(TypedDict):
    """A job as people see it."""

    id: str
    action: Action
    status: BulkStatus
    matched: int
    done: int
    failed: int
    errors: list[dict[str, Value]]
    by: str
    at: str


class BulkChunk(TypedDict):
    """What whoever goes on with a job is to do next."""

    id: str
    action: Action
    arguments: dict[str, Value]
    by: str
    nth: int
    ids: list[str]


class BulkRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job, and how far it has come."""

    id: str
    action: Action
    arguments: dict[str, Value] = {}
    by: str
    # The workflows that whoever asked may see begin with this.
    scope: str = ""
    at_ns: int
    matched: int
    status: BulkStatus = "running"
    # Chunks that are done.
    next: int = 0
    done: int = 0
    failed: int = 0
    errors: list[dict[str, Value]] = []
    holder: str = ""
    until_ns: int = 0

    @staticmethod
    def of(value: Value) -> BulkRow:
        return msgspec.convert(value, BulkRow, builtin_types=(bytes,))

    @property
    def chunks(self) -> int:
        return -(-self.matched // CHUNK)

    def shown(self) -> BulkDocument:
        return {
            "id": self.id,
            "action": self.action,
            "status": self.status,
            "matched": self.matched,
            "done": self.done,
            "failed": self.failed,
            "errors": self.errors,
            "by": self.by,
            "at": instant_text(self.at_ns),
        }


def find(reads: Reads, id: str) -> BulkRow:
    value = reads.document(KIND, id)
    if value is None:
        raise TreadleError(f"there is no bulk job {id!r}", code="BULK_NOT_FOUND", cls="user")
    return BulkRow.of(value)


def all_of(reads: Reads) -> list[BulkRow]:
    """Every job that is remembered, newest first."""
    found = [BulkRow.of(value) for _, value in reads.documents(KIND)]
    return sorted(found, key=lambda row: (row.at_ns, row.id), reverse=True)


def perform(desk: Desk, body: dict[str, Value]) -> BulkDocument | BulkChunk | bool | None:
    """One operation on jobs, as data. Raises a TreadleError that changes nothing."""
    desk.belongs("")
    match body["op"]:
        case "accept":
            return _accept(desk, body)
        case "take":
            # Who asks may say for how long, and no longer than anybody has it.
            return _take(desk, str(body["holder"]), min(int(body.get("held_ns", HELD_NS)), HELD_NS))
        case "advance":
            return _advance(desk, body)
        case "stop":
            row = find(desk.store, str(body["id"]))
            if row.status == "running":
                row.status = "cancelled"
                _forget_ids(desk, row)
                _write(desk, row)
            return row.shown()
    raise Unsupported(f"{body['op']!r:.40} is not an operation on bulk jobs")


def _accept(desk: Desk, body: dict[str, Value]) -> BulkDocument:
    ids = [str(id) for id in body["ids"]]
    row = BulkRow(
        id=str(body["id"]),
        action=body["action"],
        arguments=dict(body["arguments"]),
        by=str(body["by"]),
        scope=str(body["scope"]),
        at_ns=desk.clock.now_ns(),
        matched=len(ids),
        status="running" if ids else "completed",
    )
    for nth in range(row.chunks):
        chunk = encode(ids[nth * CHUNK : (nth + 1) * CHUNK])
        desk.batch.documents.append((IDS, _chunk_id(row, nth), row.at_ns, chunk))
    _write(desk, row)
    return row.shown()


def _take(desk: Desk, holder: str, held_ns: int) -> BulkChunk | None:
    """The next chunk of the oldest job that nobody else is at; None if there is none."""
    now = desk.clock.now_ns()
    for row in reversed(all_of(desk.store)):
        if row.status != "running" or (row.holder != holder and row.until_ns > now):
            continue
        row.holder, row.until_ns = holder, now + held_ns
        _write(desk, row)
        return {
            "id": row.id,
            "action": row.action,
            "arguments": row.arguments,
            "by": row.by,
            "nth": row.next,
            "ids": desk.store.document(IDS, _chunk_id(row, row.next)) or [],
        }
    return None


def _advance(desk: Desk, body: dict[str, Value]) -> bool:
    """What came of a chunk; False if somebody else has the job by now, or it was stopped."""
    row = find(desk.store, str(body["id"]))
    if (row.status, row.holder, row.next) != ("running", body["holder"], body["nth"]):
        return False
    desk.batch.documents.append((IDS, _chunk_id(row, row.next), 0, None))
    row.next += 1
    row.done += int(body["done"])
    row.failed += int(body["failed"])
    row.errors = [*row.errors, *body["errors"]][:ERRORS_MAX]
    row.until_ns = desk.clock.now_ns() + HELD_NS
    if row.next >= row.chunks:
        row.status = "completed"
    _write(desk, row)
    return True


def forget_old(desk: Desk, now_ns: int) -> None:
    """Jobs that ended long ago."""
    for row in all_of(desk.store):
        if row.status != "running" and row.at_ns + KEPT_NS < now_ns:
            desk.batch.documents.append((KIND, row.id, 0, None))


def _forget_ids(desk: Desk, row: BulkRow) -> None:
    for nth in range(row.next, row.chunks):
        desk.batch.documents.append((IDS, _chunk_id(row, nth), 0, None))


def _chunk_id(row: BulkRow, nth: int) -> str:
    return f"{row.id}/{nth:06}"


def _write(desk: Desk, row: BulkRow) -> None:
    desk.batch.documents.append((KIND, row.id, row.at_ns, encode(msgspec.to_builtins(row))))
