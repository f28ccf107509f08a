"""Runs of an archive on their way back to a store: each is one value, checked when it is read, whole when it is written.

What a run was is in it, to the last row; what belongs to the store (numbers, shards) is given anew. A run that comes back
to the store from which it was taken has its number again where that is free, and with it its place in lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treadle.kernel.errors import RunNotFound, StoreUnavailable, Unsupported

from . import archives, backups
from .reads import SqlReads
from .rows import DefinitionRow, TaskRow, VersionRow
from .run_rows import RunRow

PAGE = 500


class Returning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One run with all that is its own but its payloads, which go before it."""

    run: RunRow
    # The store that it was taken from; its number there is the row's.
    store: str
    # seq, event_no, opens, closes, digest, body
    records: list[tuple[int, int, bytes | None, bytes | None, bytes, bytes]]
    # seq, body
    snapshots: list[tuple[int, bytes]]
    # event_no, at_ns, body
    frames: list[tuple[int, int, bytes]]
    payloads: list[str]
    # at_ns, code, body
    diagnostics: list[tuple[int, str, bytes]]
    # id, at_ns, body
    submissions: list[tuple[str, int, bytes]]
    tasks: list[TaskRow]
    definitions: list[DefinitionRow]
    versions: list[VersionRow]
    # kind, id, at_ns, body: what is said of those definitions
    documents: list[tuple[str, str, int, bytes]]

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, body: bytes) -> Returning:
        return msgspec.msgpack.decode(body, type=cls)


def checked(file: Path, ids: Sequence[str]) -> list[str]:
    """The runs of a file that are meant, or all of them, in the order in which they began; every one is what was put
    there."""
    with _opened(file) as reads:
        rows: list[RunRow] = []
        before: int | None = None
        while page := reads.runs(before_no=before, limit=PAGE):
            rows += page
            before = page[-1].no
        there = {row.id: (row.started_ns, row.no) for row in rows}
        if missing := [id for id in ids if id not in there]:
            raise RunNotFound(
                f"{file} has no run {missing[0]!r}; `treadle archive list DIR` says which file has it"
            )
        found = sorted(dict.fromkeys(ids) or there, key=there.__getitem__)
        for id in found:
            archives.check_run(reads, id)
        return found


def taken(file: Path, id: str) -> Returning:
    """One run of a file, whole."""
    with _opened(file) as reads:
        archives.check_run(reads, id)
        row = reads.run(id)
        assert row is not None, "it was checked"
        word: dict[str, Any] = reads.document(archives.ARCHIVED, id) or {}
        digests_named = archives.needed(reads, row)
        definitions = [found for digest in digests_named if (found := reads.definition(digest)) is not None]
        no, row.no = row.no, int(word.get("no", 0))
        digests = {found.digest for found in definitions}
        names = sorted({found.name for found in definitions})
        return Returning(
            run=row,
            store=str(word.get("store", "")),
            records=list(_records(reads, no)),
            snapshots=_rows(reads, "snapshots", "seq, body", no),
            frames=_rows(reads, "frames", "event_no, at_ns, body", no),
            payloads=list(reads.blobs_of(no)),
            diagnostics=reads.rows_where("diagnostics", "at_ns, code, body", "run = ?", id, order="no"),
            submissions=reads.rows_where(
                "submissions", "id, at_ns, body", "scope = ?", f"run:{id}", order="id"
            ),
            tasks=[task for page in _tasks(reads, id) for task in page],
            definitions=definitions,
            versions=[v for name in names for v in reads.versions(name) if v.digest in digests],
            documents=[
                said
                for digest in sorted(digests)
                for said in reads.rows_where("documents", "kind, id, at_ns, body", "id = ?", digest)
            ],
        )


def payload(file: Path, digest: str) -> bytes:
    with _opened(file) as reads:
        return reads.blob(digest)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[SqlReads]:
    if not file.is_file():
        raise StoreUnavailable(f"there is no file {file}; `treadle archive list DIR` says which there are")
    with backups.opened(file) as (reads, about):
        if not about.get("archive"):
            raise Unsupported(
                f"{file} is a backup, and not of an archive; `treadle restore FILE --store URL` makes a store of it",
                code="NOT_AN_ARCHIVE",
            )
        yield reads


def _rows(reads: SqlReads, table: str, columns: str, run: int) -> list[Any]:
    return reads.rows_where(table, columns, "run = ?", run, order=columns.partition(",")[0])


def _records(
    reads: SqlReads, run: int
) -> Iterator[tuple[int, int, bytes | None, bytes | None, bytes, bytes]]:
    ids = {seq: (opens, closes) for seq, opens, closes in reads.open_ids(run, after_seq=0)}
    seq = 0
    while page := reads.journal_page(run, after_seq=seq, limit=PAGE):
        for stored, event_no in page:
            yield stored.seq, event_no, *ids[stored.seq], stored.digest, stored.body
        seq = page[-1][0].seq


def _tasks(reads: SqlReads, id: str) -> Iterator[list[TaskRow]]:
    after = 0
    while page := reads.tasks(run=id, after_no=after, limit=PAGE):
        yield page
        after = page[-1].no
