"""One SQL store for every engine; the dialect object holds only the differences.

`commit` writes a batch in one transaction with a few large statements, checks the owner's epoch
inside it, and is durable when it returns. Whatever fails, fails whole.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from treadle.kernel.errors import OwnershipLost, Unsupported
from treadle.kernel.ids import shard_of as kernel_shard_of
from treadle.kernel.limits import BLOB_INLINE_BYTES_MAX, DIAGNOSTICS_PER_RUN_MAX
from treadle.kernel.values import encode

from .blobs import BlobPlace
from .commits import Transaction, UnderWay
from .connection import BACKUP, UNFINISHED
from .dialect import SqlDialect
from .orphans import BY_NUMBER, orphans, remove_orphans
from .places import write_places
from .protocol import Batch, Message, Numbered, TaskRow, beside_records, beside_runs
from .reads import AUDIT_COLUMNS, TASK_COLUMNS, SqlReads
from .row_reading import RUN_COLUMNS
from .row_values import optional, record_values, run_values, task_values

# A file of a payload that has no row after so long was left by somebody who was killed.
FILES_KEPT_NS: Final = 3_600 * 10**9


def migrations(dialect: str) -> list[tuple[int, str]]:
    """Every schema step of an engine, numbered by its file name."""
    folder = Path(__file__).with_name("migrations") / dialect
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [(int(f.name[:4]), f.read_text("utf-8")) for f in files]


def _marks(columns: str) -> str:
    return ", ".join("?" * len(columns.split(", ")))


INSERT_RUN = f"INSERT INTO runs ({RUN_COLUMNS}, shard) VALUES ({_marks(RUN_COLUMNS)}, ?)"
UPDATE_RUN = """UPDATE runs SET definition = ?, version = ?, reference = ?, status = ?, working = ?, updated_ns = ?, ended_ns = ?,
                 retain_ns = ?, seq = ?, error = ? WHERE no = ?"""
_RECORD_COLUMNS = "run, seq, event_no, opens, closes, digest, body"
INSERT_RECORD = f"INSERT INTO journal ({_RECORD_COLUMNS}) VALUES ({_marks(_RECORD_COLUMNS)})"
_INSERT_TASK = f"INSERT INTO tasks ({TASK_COLUMNS}) VALUES ({_marks(TASK_COLUMNS)})"
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
_INSERT_AUDIT = f"INSERT INTO audit ({AUDIT_COLUMNS}) VALUES ({_marks(AUDIT_COLUMNS)})"
_INSERT_REPLY = "INSERT INTO replies (key, at_ns, body) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_CAP_DIAGNOSTICS = """DELETE FROM diagnostics WHERE run = ? AND no <= coalesce(
                      (SELECT no FROM diagnostics WHERE run = ? ORDER BY no DESC LIMIT 1 OFFSET ?), 0)"""


class SqlStore(SqlReads):
    """The store on the thread that owns its connection."""

    def __init__(self, dialect: SqlDialect, files: BlobPlace | None) -> None:
        connection = dialect.connect()
        super().__init__(dialect, connection, files)
        try:
            dialect.migrate(connection, migrations(dialect.name))
            self._refuse_copies()
        except BaseException:
            connection.close()
            raise
        # The shards that this store has claimed, and the epoch of each.
        self._held: dict[int, int] = {}
        self._shards = int(self._one("SELECT count(*) FROM shards")[0])
        self._reserved: dict[Numbered, int] = {}
        self._data_version = dialect.data_version(connection)

    def _refuse_copies(self) -> None:
        """A copy that is none yet, or that is kept for later, is not worked on: its work may be another's."""
        if self.noted(BACKUP) is not None:
            raise Unsupported(
                "this is a backup: look into it, or restore it with `treadle restore FILE --store URL`",
                code="STORE_IS_BACKUP",
            )
        if self.noted(UNFINISHED) is not None:
            raise Unsupported(
                "a copy to this place was broken off; remove what is there, and copy or restore again",
                code="STORE_UNFINISHED",
            )

    def end_with_its_holder(self) -> None:
        """For a store in memory: there is nobody to close it for but whoever holds it, so it is closed
        when it is forgotten, too."""
        weakref.finalize(self, self._connection.close)

    def _transaction(self) -> contextlib.AbstractContextManager[Any]:
        return self._dialect.transaction(self._connection)

    def own(self) -> int:
        """Takes every shard, whoever holds it; the highest new epoch."""
        with self._transaction() as tx:
            taken = tx.execute("UPDATE shards SET epoch = epoch + 1 RETURNING shard, epoch").fetchall()
        self._held = {int(shard): int(epoch) for shard, epoch in taken}
        self._dialect.settle(log=True)
        return max(self._held.values())

    @property
    def shards(self) -> int:
        return self._shards

    @property
    def held(self) -> Mapping[int, int]:
        return self._held

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

    def reserve(self, kind: Numbered, count: int) -> range:
        """For a store that has one owner at a time: nobody else gives numbers away."""
        highest = self.last_run_no() if kind == "run" else self.last_task_no()
        first = max(highest, self._reserved.get(kind, 0)) + 1
        self._reserved[kind] = first + count - 1
        return range(first, first + count)

    @property
    def overlaps(self) -> bool:
        return self._dialect.overlaps

    def begin(self, batch: Batch) -> UnderWay:
        """Writes a batch, and begins to make it durable."""
        self._write_files(batch.blobs)
        with self._dialect.errors():
            transaction = self._dialect.begin(self._connection)
            try:
                self._write_rows(transaction.tx, batch)
                transaction.send()
            except BaseException:
                transaction.undo()
                raise
        return self._goes_on(partial(self._finish, transaction), lambda: transaction.done)

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
        if append is not None and not any(beside_records(batch)):
            self._append(append, record_values(batch)[0])
        else:
            self._write(batch)
        # What went into a file that is gone is not acknowledged.
        self._dialect.stay()

    def _write(self, batch: Batch) -> None:
        self._write_files(batch.blobs)
        with self._transaction() as tx:
            self._write_rows(tx, batch)

    def _write_rows(self, tx: Any, batch: Batch) -> None:
        self._check_epoch(tx, batch.shards or self._held)
        self._write_runs(tx, batch)
        if batch.records:
            tx.executemany(INSERT_RECORD, record_values(batch))
        if batch.snapshots:
            rows = [(run, seq, sha256(body).digest(), body) for run, seq, body in batch.snapshots]
            tx.executemany("INSERT INTO snapshots (run, seq, digest, body) VALUES (?, ?, ?, ?)", rows)
            if batch.snapshots_done:
                tx.executemany("DELETE FROM snapshots WHERE run = ? AND seq = ?", batch.snapshots_done)
        if any(beside_runs(batch)):
            self._write_waits(tx, batch)
            self._write_progress(tx, batch)
            self._write_content(tx, batch)
            write_places(tx, batch)
        if batch.runs_removed:
            self._remove_runs(tx, batch.runs_removed)

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

    def _check_epoch(self, tx: Any, shards: Iterable[int]) -> None:
        """Refuses the transaction unless every shard is still this store's."""
        wanted = {shard: self._held.get(shard, -1) for shard in shards}
        if not wanted and self._shards == 1:
            wanted = {0: -1}
        marks = ", ".join("?" * len(wanted))
        found = dict(
            tx.execute(f"SELECT shard, epoch FROM shards WHERE shard IN ({marks})", tuple(wanted)).fetchall()
        )
        if found != wanted:
            raise OwnershipLost(f"this engine held epochs {wanted}; the store is at {found}")

    def _write_runs(self, tx: Any, batch: Batch) -> None:
        if batch.runs_new:
            new = [(*run_values(run), self.shard_of(run.id)) for run in batch.runs_new.values()]
            tx.executemany(INSERT_RUN, new)
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
            tx.executemany(
                "INSERT INTO frames (run, event_no, at_ns, body) VALUES (?, ?, ?, ?)", batch.frames
            )
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

    def keep_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Payloads for a receipt that will refer to them, put down without owning the store; they wait for it."""
        self._write_files(blobs)
        with self._transaction() as tx:
            self._write_blobs(tx, blobs)
            query = f"UPDATE blobs SET at_ns = {self._dialect.now_ns} WHERE digest = ?"
            tx.executemany(query, [(digest,) for digest in blobs])
            self._write_files(blobs)  # again, where a collection took one away before its row was there

    def _write_files(self, blobs: Mapping[str, bytes]) -> None:
        """Files first: a reference must never be durable before what it refers to."""
        if self._files is not None:
            for digest, body in blobs.items():
                if len(body) > BLOB_INLINE_BYTES_MAX:
                    self._files.write(digest, body)

    def _write_blobs(self, tx: Any, blobs: Mapping[str, bytes]) -> None:
        inline = BLOB_INLINE_BYTES_MAX if self._files is not None else 2**62
        rows = [(d, len(body), 0, body if len(body) <= inline else None) for d, body in blobs.items()]
        query = "INSERT INTO blobs (digest, size, at_ns, body) VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING"
        tx.executemany(query, rows)

    def _write_content(self, tx: Any, batch: Batch) -> None:
        if batch.blobs:
            self._write_blobs(tx, batch.blobs)
        if batch.blob_refs:
            query = "INSERT INTO blob_refs (run, digest) VALUES (?, ?) ON CONFLICT (run, digest) DO NOTHING"
            tx.executemany(query, batch.blob_refs)
            # What a worker put down for a receipt waits for nobody any more: it is the run's, and goes with it.
            tx.executemany(_NOT_LOOSE, [(digest,) for _, digest in batch.blob_refs])
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

    @staticmethod
    def _remove_runs(tx: Any, numbers: list[int]) -> None:
        rows = [(no,) for no in numbers]
        tx.executemany("DELETE FROM task_roles WHERE task IN (SELECT no FROM tasks WHERE run = ?)", rows)
        itself = "(SELECT id FROM runs WHERE no = ?)"
        tx.executemany(f"DELETE FROM submissions WHERE scope = 'run:' || {itself}", rows)
        for table in ("places", "diagnostics"):
            tx.executemany(f"DELETE FROM {table} WHERE run = {itself}", rows)
        for table in BY_NUMBER:
            tx.executemany(f"DELETE FROM {table} WHERE run = ?", rows)
        tx.executemany("DELETE FROM runs WHERE no = ?", rows)

    def shard_of(self, run: str) -> int:
        """Where a run's rows are found; what belongs to no run is on the first shard."""
        return 0 if self._shards == 1 or not run else kernel_shard_of(run, self._shards)

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

    def changed(self) -> bool:
        if not self._dialect.shared:
            return False
        self._dialect.stay(log=True)
        with self._dialect.errors():
            version = self._dialect.data_version(self._connection)
        before, self._data_version = self._data_version, version
        return version != before

    def notice(self) -> None:
        """A file says by itself that it has changed."""

    def sweep(
        self,
        *,
        keep: Iterable[str] = (),
        expired: Iterable[tuple[int, str]] = (),
        loose_before_ns: int | None = None,
    ) -> int:
        """Payloads are removed in two steps: the row in a transaction, then the file. A crash between
        them leaves a file without a row, which the next sweep finds."""
        kept = set(keep)
        before_ns = 2**62 if loose_before_ns is None else max(0, loose_before_ns)
        query = """SELECT digest FROM blobs WHERE at_ns <= ? AND digest NOT IN (SELECT digest FROM blob_refs)
                   ORDER BY digest"""
        with self._transaction() as tx:
            self._check_epoch(tx, self._held)
            self._dialect.keep_out(tx, "blobs")
            remove_orphans(tx, orphans(self._all))
            tx.executemany("DELETE FROM blob_refs WHERE run = ? AND digest = ?", list(expired))
            loose = [row[0] for row in self._all(query, before_ns) if row[0] not in kept]
            tx.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in loose])
        if self._files is not None:
            # A file comes before its row: a young one without a row may be somebody's who writes it just now.
            left = self._files.digests(time.time_ns() - FILES_KEPT_NS)
            for digest in sorted({*loose, *left}):
                with self._transaction():
                    if not self.has_blob(digest):
                        self._files.remove(digest)
        return len(loose)

    def shrink(self, *, rewrite: bool = False) -> int:
        with self._dialect.errors():
            return self._dialect.shrink(self._connection, rewrite=rewrite)

    # --- whole tables, for copies of the store ---

    def insert_rows(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._transaction() as tx:
            tx.executemany(f"INSERT INTO {table} ({columns}) VALUES ({_marks(columns)})", rows)

    def keep_payload(self, digest: str, body: bytes) -> None:
        batch = Batch(blobs={digest: body})
        if self._files is not None and len(body) > BLOB_INLINE_BYTES_MAX:
            self._files.write(digest, body)
        with self._transaction() as tx:
            self._write_content(tx, batch)

    def keep_key(self, key: bytes) -> None:
        """Leases of work that another place gave hold here; with a key of its own, they do not."""
        with self._transaction() as tx:
            tx.execute("UPDATE meta SET value = ? WHERE key = 'work_key'", (key.hex(),))

    def note_of_store(self, key: str, value: dict[str, Any] | None) -> None:
        """Notes something of the store itself, or forgets it."""
        with self._transaction() as tx:
            if value is None:
                tx.execute("DELETE FROM meta WHERE key = ?", (key,))
            else:
                tx.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (key, json.dumps(value)))

    def raise_epochs(self, above: int) -> None:
        """Whoever held a shard of the store that this is a copy of holds none of it here."""
        with self._transaction() as tx:
            tx.execute("UPDATE shards SET epoch = ?", (above + 1,))

    def idle(self) -> None:
        self._dialect.checkpoint(self._connection)

    def close(self) -> None:
        """Leaves one whole file where it can, so that a copy of it is a copy of the store."""
        self._dialect.checkpoint(self._connection)
        super().close()
