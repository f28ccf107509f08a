"""Archives: ended runs in files of their own, one a month, put there before they are removed from their store.

Each file is a store that can be looked into and not worked on, as a backup is (`backups.py`): every question can be asked of
it, and a run of it replays as ever. A run is there whole or not at all, with the definitions and payloads that it needs,
and a digest of all its rows. Putting the same run there again changes nothing; one that was sent on meanwhile takes the place
of what it was. So whoever is cut between archive and removal begins again, and nothing is lost or there twice.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from treadle.kernel.errors import BlobCorrupt, BlobMissing, JournalCorrupt, StoreCorrupt, Unsupported
from treadle.kernel.history import check_link
from treadle.kernel.state import GENESIS
from treadle.kernel.values import encode
from treadle.lang.duration import instant_text

from .backups import in_one_file, name_of
from .connection import BACKUP
from .copying import TABLES
from .packing import unpack
from .reads import SqlReads
from .run_rows import RunRow
from .sql import SqlStore
from .sqlite import SqliteDialect

# The kind of documents that say what a run of an archive is, in one word.
ARCHIVED: Final = "archived"
PAGE: Final = 500
_DIGEST: Final = re.compile(rb"sha256:[0-9a-f]{64}")
_FILES: Final = "[0-9][0-9][0-9][0-9]-[0-9][0-9]*.db"
_COLUMNS: Final = {table.name: table.columns for table in TABLES}


class _Part(NamedTuple):
    """Rows that belong to a run: by its number or its id, in the order of a key."""

    table: str
    columns: str
    key: str
    first: Any
    owner: str = "run"
    by_id: bool = False


_RUN: Final = _COLUMNS["runs"].removeprefix("no, ")
_PARTS: Final = (
    _Part("journal", "seq, event_no, opens, closes, digest, body", "seq", -1),
    _Part("snapshots", "seq, digest, body", "seq", -1),
    _Part("frames", "event_no, at_ns, body", "event_no", -1),
    _Part("blob_refs", "digest", "digest", ""),
    _Part("diagnostics", "run, at_ns, code, body", "no", -1, by_id=True),
    _Part("submissions", "scope, id, at_ns, body", "id", "", owner="scope", by_id=True),
    _Part("tasks", _COLUMNS["tasks"].replace("no, id, run, ", "id, "), "no", -1),
)


class _File(SqlStore):
    """One file of an archive, open to be added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(SqliteDialect(path), None)
        if self.noted(BACKUP) is None:
            about = {"from": "an archive", "at": instant_text(time.time_ns()), "archive": True}
            self.note_of_store(BACKUP, {**about, "store": "", "epoch": 0, "tables": []})

    def _refuse_copies(self) -> None:
        noted = self.noted(BACKUP)
        if not (noted or {"archive": not self.last_run_no() and not self.versions()}).get("archive"):
            raise Unsupported(
                f"{self._path} is not of an archive; name a folder of its own", code="NOT_AN_ARCHIVE"
            )

    def add(self, source: SqlReads, row: RunRow) -> None:
        """A run, in a transaction to itself."""
        with self._transaction() as tx:
            if (before := self.run(row.id)) is not None:
                self._remove_runs(tx, [before.no])
            no = self.last_run_no() + 1
            (about,) = source.rows_where("runs", _RUN, "no = ?", row.no)
            _insert(tx, "runs", f"no, {_RUN}", [(no, *about)])
            for part in _PARTS:
                for page in _pages(source, part, row):
                    self._add_page(tx, part, no, page)
                    if part.table == "blob_refs":
                        self._add_payloads(tx, source, [line[1] for line in page])
            self._add_definitions(tx, source, needed(source, row))
            whence = {"no": row.no, "store": name_of(source.work_key()) if source.has_key() else ""}
            word = encode({"seq": row.seq, "digest": digest_of(source, row), **whence})
            tx.execute("DELETE FROM documents WHERE kind = ? AND id = ?", (ARCHIVED, row.id))
            _insert(tx, "documents", "kind, id, at_ns, body", [(ARCHIVED, row.id, time.time_ns(), word)])

    def _add_page(self, tx: Any, part: _Part, no: int, page: list[Any]) -> None:
        rows = [line[1:] for line in page]
        if part.by_id:
            _insert(tx, part.table, part.columns, rows)
        elif part.table != "tasks":
            _insert(tx, part.table, f"run, {part.columns}", [(no, *line) for line in rows])
        else:
            first = self.last_task_no() + 1
            numbered = [(first + nth, no, *line) for nth, line in enumerate(rows)]
            _insert(tx, "tasks", f"no, run, {part.columns}", numbered)
            names = part.columns.split(", ")
            roles, status = names.index("roles") + 2, names.index("status") + 2
            whose = [
                (role, line[status], line[0])
                for line in numbered
                for role in dict.fromkeys(json.loads(line[roles]))
            ]
            _insert(tx, "task_roles", "role, status, task", whose)

    def _add_payloads(self, tx: Any, source: SqlReads, digests: list[str]) -> None:
        for digest in digests:
            if not self.has_blob(digest):
                body = source.blob(digest)
                _insert(tx, "blobs", "digest, size, at_ns, body", [(digest, len(body), 0, body)])

    def _add_definitions(self, tx: Any, source: SqlReads, digests: list[str]) -> None:
        for digest in digests:
            if not self.rows_where("definitions", "digest", "digest = ?", digest):
                for table in ("definitions", "versions"):
                    found = source.rows_where(table, _COLUMNS[table], "digest = ?", digest)
                    _insert(tx, table, _COLUMNS[table], found, once=True)
                pins = source.rows_where("documents", "kind, id, at_ns, body", "id = ?", digest)
                _insert(tx, "documents", "kind, id, at_ns, body", pins, once=True)


class Archive:
    """A folder of such files."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise Unsupported(f"the folder {folder} does not exist; create it", code="NO_FOLDER")
        self._folder = folder
        self._open: dict[Path, _File] = {}

    def put(self, source: SqlReads, numbers: Sequence[int]) -> list[int]:
        """Puts runs there; those that are durable there, whole, when this returns. One that is damaged, or gone
        meanwhile, is not among them."""
        kept = []
        with source.at_one_moment():
            for no in numbers:
                row = source.run_by_no(no)
                if row is None or row.ended_ns is None:
                    continue
                try:
                    self._put(source, row)
                except (BlobMissing, BlobCorrupt, JournalCorrupt, StoreCorrupt):
                    continue  # the doctor says what is wrong with it
                kept.append(no)
        return kept

    def _put(self, source: SqlReads, row: RunRow) -> None:
        file = self._file_for(source, row)
        word = file.document(ARCHIVED, row.id)
        if word is None or word["seq"] != row.seq:
            _check_chain(source, row)
            file.add(source, row)
        check_run(file, row.id)

    def _file_for(self, source: SqlReads, row: RunRow) -> _File:
        """The file of the month in which it ended. An id may be used again for another run: that is in the next."""
        month = datetime.fromtimestamp((row.ended_ns or 0) // 10**9, UTC).strftime("%Y-%m")
        first = _begins(source, row)
        nth = 1
        while True:
            path = self._folder / f"{month}{'' if nth == 1 else f'.{nth}'}.db"
            if path not in self._open:
                self._open[path] = _File(path)
            file = self._open[path]
            before = file.run(row.id)
            if before is None or _begins(file, before) == first:
                return file
            nth += 1

    def close(self) -> None:
        """Leaves files that stand alone."""
        for path, file in self._open.items():
            file.close()
            in_one_file(path)
        self._open.clear()


def listed(folder: Path) -> Iterator[tuple[Path, RunRow]]:
    """Every run of an archive with the file that it is in, newest first."""
    for path in sorted(folder.glob(_FILES), reverse=True):
        with contextlib.closing(_reads(path)) as reads:
            before: int | None = None
            while page := reads.runs(before_no=before, limit=PAGE):
                yield from ((path, row) for row in page)
                before = page[-1].no


def check(folder: Path) -> dict[str, Any]:
    """Whether everything in an archive is what was put there: how many runs there are, and which of them are not."""
    files, runs, damaged = 0, 0, list[dict[str, str]]()
    for path in sorted(folder.glob(_FILES)):
        files += 1
        with contextlib.closing(_reads(path)) as reads:
            try:
                for problem in reads.check():
                    damaged.append({"file": str(path), "id": "", "message": problem})
                for id, _ in reads.documents(ARCHIVED):
                    runs += 1
                    try:
                        check_run(reads, id)
                    except (BlobMissing, BlobCorrupt, JournalCorrupt, StoreCorrupt) as error:
                        damaged.append({"file": str(path), "id": id, "message": error.message})
            except StoreCorrupt as error:
                damaged.append({"file": str(path), "id": "", "message": error.message})
    return {"archive": str(folder), "ok": not damaged, "files": files, "runs": runs, "damaged": damaged}


def digest_of(reads: SqlReads, row: RunRow) -> str:
    """What the rows of a run are, in one word; the numbers that a store gives do not count."""
    found = sha256()
    for line in reads.rows_where("runs", _RUN, "no = ?", row.no):
        found.update(encode([_value(column) for column in line]))
    for part in _PARTS:
        for page in _pages(reads, part, row):
            for line in page:
                found.update(encode([part.table, *(_value(column) for column in line[1:])]))
    return found.hexdigest()


def check_run(reads: SqlReads, id: str) -> None:
    """Refuses a run of an archive that is not what was put there."""
    row, word = reads.run(id), reads.document(ARCHIVED, id)
    if row is None or word is None or digest_of(reads, row) != word["digest"]:
        raise StoreCorrupt(f"{id} is not what was archived")
    _check_chain(reads, row)
    for digest in reads.blobs_of(row.no):
        reads.blob(digest)


def _check_chain(reads: SqlReads, row: RunRow) -> None:
    seq, digest = 0, GENESIS
    while page := reads.journal_page(row.no, after_seq=seq, limit=PAGE):
        for stored, _ in page:
            check_link(row.id, seq, digest, stored)
            seq, digest = stored.seq, stored.digest


def needed(reads: SqlReads, row: RunRow) -> list[str]:
    """The digests among which those of the definitions are that a run needs: its own, and whatever its records name."""
    found = {row.definition}
    (journal,) = (part for part in _PARTS if part.table == "journal")
    for page in _pages(reads, journal, row):
        found.update(_named_in(page))
    return sorted(found)


def _pages(reads: SqlReads, part: _Part, row: RunRow) -> Iterator[list[Any]]:
    owner: Any = row.no
    if part.by_id:
        owner = f"run:{row.id}" if part.owner == "scope" else row.id
    last = part.first
    columns = f"{part.key}, {part.columns}"
    while page := reads.rows_where(
        part.table, columns, f"{part.owner} = ? AND {part.key} > ?", owner, last, order=part.key, limit=PAGE
    ):
        yield page
        last = page[-1][0]


def _named_in(page: list[Any]) -> set[str]:
    """The digests that records name; those of definitions are among them. Ids that stand in other columns are none."""
    return {found.decode() for line in page for found in _DIGEST.findall(unpack(bytes(line[-1]), None, None))}


def _begins(reads: SqlReads, row: RunRow) -> bytes:
    (first,) = reads.rows_where("journal", "digest", "run = ?", row.no, order="seq", limit=1)
    return bytes(first[0])


def _insert(tx: Any, table: str, columns: str, rows: Sequence[Sequence[Any]], *, once: bool = False) -> None:
    marks = ", ".join("?" * len(columns.split(", ")))
    again = " ON CONFLICT DO NOTHING" if once else ""
    plain = [[_value(column) for column in row] for row in rows]
    tx.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks}){again}", plain)


def _reads(path: Path) -> SqlReads:
    dialect = SqliteDialect(path)
    return SqlReads(dialect, dialect.connect(readonly=True), None)


def _value(column: Any) -> Any:
    return bytes(column) if isinstance(column, memoryview | bytearray) else column
