"""One SQL store for every engine; the dialect object holds only the differences.

`commit` writes a batch in one transaction with a few large statements, checks the owner's epoch
inside it, and is durable when it returns. Whatever fails, fails whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import OwnershipLost
from treadle.kernel.limits import DIAGNOSTICS_PER_RUN_MAX
from treadle.kernel.values import Value, encode

from . import taken
from .commits import UnderWay
from .orphans import BY_NUMBER
from .packing import bared, pack
from .places import write_places
from .reads import AUDIT_COLUMNS, TASK_COLUMNS
from .row_reading import RUN_COLUMNS
from .rows import Batch, Numbered, TaskRow, beside_records, beside_runs, of_places
from .run_rows import RunRow
from .taken import FRAMES, JOURNAL, PLACED
from .upkeep import SqlUpkeep, marks

if TYPE_CHECKING:
    from .blobs import BlobPlace
    from .commits import Transaction
    from .dialect import SqlDialect


# A store's first records are written as they are: who only writes a few is done before the codec would be loaded.
PLAIN_RECORDS: Final = 8
# A record that is alone in its commit, shorter than this, and has ids to be left out is not compressed: who waits for it waits
# for whole pages of the disk, and what makes a frame is cold after each wait, and takes a tenth of such a step.
LONE_BYTES_MIN: Final = 256


def migrations(dialect: str) -> list[tuple[int, str]]:
    """Every schema step of an engine, numbered by its file name."""
    folder = Path(__file__).with_name("migrations") / dialect
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [(int(f.name[:4]), f.read_text("utf-8")) for f in files]


INSERT_RUN = f"INSERT INTO runs ({RUN_COLUMNS}, shard) VALUES ({marks(RUN_COLUMNS)}, ?)"
# Most runs begin with nothing in the other columns, and a driver takes longer over nothing than over a number.
_PLAIN: Final = "no, id, dialect, workflow, version, definition, status, started_ns, updated_ns, seq"
PLAIN_COLUMNS: Final = f"{_PLAIN}, working, shard"
INSERT_PLAIN_RUN = f"INSERT INTO runs ({PLAIN_COLUMNS}) VALUES ({marks(PLAIN_COLUMNS)})"
UPDATE_RUN = """UPDATE runs SET definition = ?, version = ?, reference = ?, status = ?, working = ?, updated_ns = ?, ended_ns = ?,
                 retain_ns = ?, seq = ?, error = ? WHERE no = ?"""
_RECORD_COLUMNS = "run, seq, event_no, opens, closes, digest, body"
INSERT_RECORD = f"INSERT INTO journal ({_RECORD_COLUMNS}) VALUES ({marks(_RECORD_COLUMNS)})"
_INSERT_TASK = f"INSERT INTO tasks ({TASK_COLUMNS}) VALUES ({marks(TASK_COLUMNS)})"
_UPDATE_TASK = "UPDATE tasks SET roles = ?, status = ?, assignee = ?, due_ns = ?, history = ? WHERE no = ?"
_UPSERT_CHECKPOINT = """INSERT INTO checkpoints (intent, run, body) VALUES (?, ?, ?)
                        ON CONFLICT (intent) DO UPDATE SET body = excluded.body"""
_UPSERT_DOCUMENT = """INSERT INTO documents (kind, id, at_ns, body) VALUES (?, ?, ?, ?)
                      ON CONFLICT (kind, id) DO UPDATE SET at_ns = excluded.at_ns, body = excluded.body"""
_INSERT_DEFINITION = """INSERT INTO definitions (digest, dialect, name, version, path, file, body, created_ns)
                        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
                        ON CONFLICT (digest) DO UPDATE SET dialect = excluded.dialect, name = excluded.name,
                        version = excluded.version, body = excluded.body
                        WHERE definitions.body <> excluded.body OR definitions.name <> excluded.name"""
_NOT_LOOSE = "UPDATE blobs SET at_ns = 0 WHERE digest = ? AND at_ns <> 0"
_UPSERT_VERSION = """INSERT INTO versions (name, version, digest, path, status, reasons, created_ns) VALUES (?, ?, ?, ?, ?, ?, ?)
                     ON CONFLICT (name, version) DO UPDATE SET digest = excluded.digest, path = excluded.path,
                     status = excluded.status, reasons = excluded.reasons"""
_INSERT_AUDIT = f"INSERT INTO audit ({AUDIT_COLUMNS}) VALUES ({marks(AUDIT_COLUMNS)})"
_INSERT_REPLY = "INSERT INTO replies (key, at_ns, body) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_CAP_DIAGNOSTICS = """DELETE FROM diagnostics WHERE run = ? AND no <= coalesce(
                      (SELECT no FROM diagnostics WHERE run = ? ORDER BY no DESC LIMIT 1 OFFSET ?), 0)"""


# Rows as the columns of their tables, in the order of `RUN_COLUMNS` and `TASK_COLUMNS`.


def optional(value: Value) -> bytes | None:
    return None if value is None else encode(value)


def record_values(batch: Batch) -> list[tuple[Any, ...]]:
    """Its records, as they are stored."""
    of = batch.dialects
    values: list[tuple[Any, ...]] = []
    for run, seq, event_no, opens, closes, digest, body in batch.records:
        packed = pack(body, of.get(run, ""), opens, closes)
        values.append((run, seq, event_no, opens, closes, digest, packed))
    return values


def run_values(run: RunRow) -> tuple[Any, ...]:
    return (
        run.no,
        run.id,
        run.dialect,
        run.workflow,
        run.version,
        run.definition,
        optional(run.cell_key),
        run.parent,
        run.parent_intent,
        run.continued_from,
        run.reference,
        run.status,
        int(run.working),
        run.started_ns,
        run.updated_ns,
        run.ended_ns,
        run.retain_ns,
        run.seq,
        optional(run.error),
    )


_plain_values: Final = attrgetter(*_PLAIN.split(", "))
_SELDOM: Final = sorted({*RUN_COLUMNS.split(", ")} - {*PLAIN_COLUMNS.split(", ")})
_seldom_values: Final = attrgetter(*_SELDOM)
_NOTHING: Final = (None,) * len(_SELDOM)


def task_values(task: TaskRow) -> tuple[Any, ...]:
    return (
        task.no,
        task.id,
        task.run,
        task.run_id,
        task.workflow,
        task.name,
        task.type,
        json.dumps(task.roles),
        optional(task.payload),
        optional(task.schema),
        task.reference,
        task.status,
        task.assignee,
        task.created_ns,
        task.due_ns,
        encode(task.history),
    )


class SqlStore(SqlUpkeep):
    """The store on the thread that owns its connection."""

    def __init__(
        self, dialect: SqlDialect, files: BlobPlace | None, *, plain_records: int = PLAIN_RECORDS
    ) -> None:
        connection = dialect.connect()
        super().__init__(dialect, connection, files)
        try:
            dialect.migrate(connection, migrations(dialect.name))
            self._refuse_copies()
        except BaseException:
            connection.close()
            raise
        self._held = {}
        # The tables whose newest rows may have been removed, since anybody last put some behind them.
        self._behind = set(PLACED if self._has_places else ())
        self._plain_left = plain_records
        self._shards = int(self._one("SELECT count(*) FROM shards")[0])
        self._reserved: dict[Numbered, int] = {}
        self._data_version = dialect.data_version(connection)

    @property
    def shards(self) -> int:
        return self._shards

    @property
    def held(self) -> Mapping[int, int]:
        return self._held

    def reserve(self, kind: Numbered, count: int) -> range:
        """For a store that has one owner at a time: nobody else gives numbers away."""
        query = f"""SELECT {self._dialect.greatest}((SELECT coalesce(max(no), 0) FROM {kind}s),
                    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?), 0))"""
        first = max(self._one(query, f"last_{kind}")[0], self._reserved.get(kind, 0)) + 1
        self._reserved[kind] = first + count - 1
        return range(first, first + count)

    def own(self) -> int:
        if self._has_places:
            self._behind.update(PLACED)
        return super().own()

    @property
    def overlaps(self) -> bool:
        return self._dialect.overlaps

    def begin(self, batch: Batch) -> UnderWay:
        """Writes a batch, and begins to make it durable."""
        if batch.blobs:
            self._write_files(batch.blobs)
        with self._dialect.errors():
            transaction = self._dialect.begin(self._connection)
            try:
                self._write_rows(transaction.tx, batch)
                transaction.send()
            except BaseException:
                transaction.undo()
                raise
        return self._goes_on(partial(self._finish, transaction), transaction.is_done)

    def _goes_on(self, wait: Callable[[], None], is_done: Callable[[], bool]) -> UnderWay:
        def over() -> None:
            self._under_way = None

        self._under_way = UnderWay(wait, is_done, over)
        return self._under_way

    def _finish(self, transaction: Transaction) -> None:
        with self._dialect.errors():
            transaction.wait()
        # What went into a file that is gone is not acknowledged.
        self.stay()

    def commit(self, batch: Batch) -> None:
        append = self._dialect.append if self._shards == 1 and len(batch.records) == 1 else None
        if append is not None and JOURNAL not in self._behind and not any(beside_records(batch)):
            self._append(append, self._lone_values(batch))
        else:
            self._write(batch)
        # What went into a file that is gone is not acknowledged.
        self._dialect.stay()

    def _write(self, batch: Batch) -> None:
        if batch.blobs:
            self._write_files(batch.blobs)
        with self._transaction() as tx:
            self._write_rows(tx, batch)

    def _write_rows(self, tx: Any, batch: Batch) -> None:
        self._check_epoch(tx, batch.shards or self._held)
        self._write_runs(tx, batch)
        if batch.records:
            held = JOURNAL in self._behind and self._hold_last(tx, JOURNAL)
            tx.executemany(INSERT_RECORD, self._record_values(batch))
            if held:
                taken.release(tx, JOURNAL)
        if batch.snapshots:
            rows = [(run, seq, sha256(body).digest(), body) for run, seq, body in batch.snapshots]
            tx.executemany("INSERT INTO snapshots (run, seq, digest, body) VALUES (?, ?, ?, ?)", rows)
            if batch.snapshots_done:
                tx.executemany("DELETE FROM snapshots WHERE run = ? AND seq = ?", batch.snapshots_done)
        if any(beside_runs(batch)):
            self._write_waits(tx, batch)
            self._write_progress(tx, batch)
            self._write_content(tx, batch)
            if any(of_places(batch)):
                write_places(tx, batch)
        if batch.runs_removed:
            self._remove_runs(tx, batch.runs_removed)

    def _record_values(self, batch: Batch) -> Sequence[tuple[Any, ...]]:
        if len(batch.records) > self._plain_left:
            return record_values(batch)
        self._plain_left -= len(batch.records)
        return batch.records

    def _lone_values(self, batch: Batch) -> tuple[Any, ...]:
        (record,) = batch.records
        run, seq, event_no, opens, closes, digest, body = record
        if len(body) >= LONE_BYTES_MIN or not (opens or closes):
            return self._record_values(batch)[0]
        return run, seq, event_no, opens, closes, digest, bared(body, opens, closes)

    def _append(self, statement: str, record: tuple[Any, ...]) -> None:
        """One record and nothing else: the steady state of a run that goes step by step. One
        statement is a transaction of its own, and spares three calls of the driver."""
        try:
            done = self._connection.execute(statement, (*record, self._held.get(0, -1)))
        except Exception:
            with self._dialect.errors():  # which makes it ours
                raise
        if done.rowcount != 1:
            raise OwnershipLost("another process took this store over")

    def _write_runs(self, tx: Any, batch: Batch) -> None:
        if batch.runs_new:
            self._insert_runs(tx, batch.runs_new.values())
        if batch.runs_changed:
            rows = [
                (
                    run.definition,
                    run.version,
                    run.reference,
                    run.status,
                    int(run.working),
                    run.updated_ns,
                    run.ended_ns,
                    run.retain_ns,
                    run.seq,
                    optional(run.error),
                    run.no,
                )
                for run in batch.runs_changed.values()
            ]
            tx.executemany(UPDATE_RUN, rows)

    def _insert_runs(self, tx: Any, runs: Iterable[RunRow]) -> None:
        # Where there is one shard, nobody has to say which.
        one = self._shards == 1
        plain: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        for run in runs:
            shard = 0 if one else self.shard_of(run.id)
            if _seldom_values(run) == _NOTHING:
                plain.append((*_plain_values(run), int(run.working), shard))
            else:
                others.append((*run_values(run), shard))
        if plain:
            tx.executemany(INSERT_PLAIN_RUN, plain)
        if others:
            tx.executemany(INSERT_RUN, others)

    def _write_waits(self, tx: Any, batch: Batch) -> None:
        if batch.timers_done:
            done = [(run, intent) for intent, run in batch.timers_done.items()]
            tx.executemany("DELETE FROM timers WHERE run = ? AND intent = ?", done)
        if batch.timers:
            rows = [
                (t.intent, t.run, t.due_ns, int(t.fires), self.shard_of(t.run_id))
                for t in batch.timers.values()
            ]
            query = "INSERT INTO timers (intent, run, due_ns, fires, shard) VALUES (?, ?, ?, ?, ?)"
            tx.executemany(query, rows)
        if batch.tasks_new:
            tx.executemany(_INSERT_TASK, [task_values(task) for task in batch.tasks_new.values()])
            self._write_roles(tx, list(batch.tasks_new.values()))
        if batch.tasks_changed:
            changed = list(batch.tasks_changed.values())
            rows_changed = [
                (json.dumps(t.roles), t.status, t.assignee, t.due_ns, encode(t.history), t.no)
                for t in changed
            ]
            tx.executemany(_UPDATE_TASK, rows_changed)
            tx.executemany("DELETE FROM task_roles WHERE task = ?", [(task.no,) for task in changed])
            self._write_roles(tx, changed)
        if batch.inbox_done:
            tx.executemany("DELETE FROM inbox WHERE key = ?", [(key,) for key in batch.inbox_done])
        if batch.inbox:
            query = "INSERT INTO inbox (key, body, shard) VALUES (?, ?, ?)"
            tx.executemany(query, self._addressed(batch.inbox))
        if batch.replies:
            tx.executemany(_INSERT_REPLY, batch.replies)
        if batch.replies_until_ns:
            tx.execute("DELETE FROM replies WHERE at_ns < ?", (batch.replies_until_ns,))

    @staticmethod
    def _write_roles(tx: Any, tasks: list[TaskRow]) -> None:
        rows = [(role, task.status, task.no) for task in tasks for role in dict.fromkeys(task.roles)]
        if rows:
            tx.executemany("INSERT INTO task_roles (role, status, task) VALUES (?, ?, ?)", rows)

    def _write_progress(self, tx: Any, batch: Batch) -> None:
        if batch.checkpoints:
            rows = [(intent, run, body) for intent, (run, body) in batch.checkpoints.items()]
            tx.executemany(_UPSERT_CHECKPOINT, rows)
        if batch.checkpoints_done:
            tx.executemany("DELETE FROM checkpoints WHERE intent = ?", [(i,) for i in batch.checkpoints_done])
        if batch.frames:
            held = FRAMES in self._behind and self._hold_last(tx, FRAMES)
            tx.executemany(
                "INSERT INTO frames (run, event_no, at_ns, body) VALUES (?, ?, ?, ?)", batch.frames
            )
            if held:
                taken.release(tx, FRAMES)
        if batch.diagnostics:
            query = "INSERT INTO diagnostics (run, at_ns, code, body) VALUES (?, ?, ?, ?)"
            tx.executemany(query, batch.diagnostics)
            runs = dict.fromkeys(row[0] for row in batch.diagnostics)
            tx.executemany(_CAP_DIAGNOSTICS, [(run, run, DIAGNOSTICS_PER_RUN_MAX) for run in runs])
        if batch.audit:
            rows_kept = [
                (r.at_ns, r.user, r.token, r.action, r.target, r.status, r.code, r.server, r.request)
                for r in batch.audit
            ]
            tx.executemany(_INSERT_AUDIT, rows_kept)
        if batch.audit_until_ns:
            tx.execute("DELETE FROM audit WHERE at_ns < ?", (batch.audit_until_ns,))
        if batch.submissions:
            tx.executemany(
                "INSERT INTO submissions (scope, id, at_ns, body) VALUES (?, ?, ?, ?)", batch.submissions
            )

    def _write_content(self, tx: Any, batch: Batch) -> None:
        if batch.blobs:
            self._write_blobs(tx, batch.blobs)
        if batch.blobs_waiting:
            rows = [(at_ns, digest) for digest, at_ns in batch.blobs_waiting.items()]
            tx.executemany("UPDATE blobs SET at_ns = ? WHERE digest = ?", rows)
        if batch.blob_refs:
            query = "INSERT INTO blob_refs (run, digest) VALUES (?, ?) ON CONFLICT (run, digest) DO NOTHING"
            tx.executemany(query, batch.blob_refs)
            # What a worker put down for a receipt waits for nobody any more: it is the run's, and goes with it.
            tx.executemany(_NOT_LOOSE, [(digest,) for _, digest in batch.blob_refs])
        if batch.blob_refs_done:
            tx.executemany("DELETE FROM blob_refs WHERE run = ? AND digest = ?", batch.blob_refs_done)
        for row in batch.definitions:
            body = encode(row.body)
            tx.execute(
                _INSERT_DEFINITION,
                (row.digest, row.dialect, row.name, row.version, row.path, row.file, body, row.created_ns),
            )
        for version in batch.versions:
            reasons = json.dumps(version.reasons)
            tx.execute(
                _UPSERT_VERSION,
                (
                    version.name,
                    version.version,
                    version.digest,
                    version.path,
                    version.status,
                    reasons,
                    version.created_ns,
                ),
            )
        for kind, id, at_ns, document in batch.documents:
            if document is None:
                tx.execute("DELETE FROM documents WHERE kind = ? AND id = ?", (kind, id))
            else:
                tx.execute(_UPSERT_DOCUMENT, (kind, id, at_ns, document))

    def _hold_last(self, tx: Any, table: str) -> bool:
        """Where the last row that there ever was is gone, has new ones come behind it."""
        held = taken.hold(tx, table)
        if not held:
            # What is there by now is there for good, until somebody removes it.
            self._behind.discard(table)
        return held

    def _remove_runs(self, tx: Any, numbers: list[int]) -> None:
        self._note_taken(tx)
        rows = [(no,) for no in numbers]
        tx.executemany("DELETE FROM task_roles WHERE task IN (SELECT no FROM tasks WHERE run = ?)", rows)
        itself = "(SELECT id FROM runs WHERE no = ?)"
        tx.executemany(f"DELETE FROM submissions WHERE scope = 'run:' || {itself}", rows)
        for table in ("places", "diagnostics"):
            tx.executemany(f"DELETE FROM {table} WHERE run = {itself}", rows)
        for table in BY_NUMBER:
            tx.executemany(f"DELETE FROM {table} WHERE run = ?", rows)
        tx.executemany("DELETE FROM runs WHERE no = ?", rows)

    def changed(self) -> bool:
        if not self._dialect.shared:
            return False
        self._dialect.stay(log=True)
        with self._dialect.errors():
            version = self._dialect.data_version(self._connection)
        before, self._data_version = self._data_version, version
        return version != before
