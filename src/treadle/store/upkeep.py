"""A store as something that is kept: payloads that wait for a receipt, room on the disk, copies of it. `sql.py` is about what
its owner writes all the time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.kernel.errors import Unsupported
from treadle.kernel.limits import BLOB_INLINE_BYTES_MAX

from . import taken
from .connection import BACKUP, UNFINISHED, OwnedConnection
from .loose import LOOSE_AT_ONCE, named
from .orphans import remove_orphans
from .reads import SqlReads
from .rows import bounded
from .taken import PLACED


def marks(columns: str) -> str:
    """A place for the value of each column."""
    return ", ".join("?" * len(columns.split(", ")))


class SqlUpkeep(SqlReads, OwnedConnection):
    # The tables whose newest rows may have been removed, since anybody last put some behind them.
    _behind: set[str]

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

    def _note_taken(self, tx: Any) -> None:
        """Before rows are removed."""
        if self._has_places:
            taken.note(tx)
            self._behind.update(PLACED)

    def notice(self) -> None:
        """A file says by itself that it has changed."""

    # --- payloads, and its room on the disk ---

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
        # From here on nobody removes their files; until then another member may have done so.
        if (
            self._files is not None
            and any(row[-1] is None for row in rows)
            and not self._dialect.was_alone(tx)
        ):
            self._write_files(blobs)

    def remove_orphans(self, found: Mapping[str, Sequence[int | str]]) -> None:
        with self._transaction() as tx:
            self._check_epoch(tx, self._held)
            self._note_taken(tx)
            remove_orphans(tx, found)

    def remove_loose(self, digests: Sequence[str], before_ns: int) -> tuple[int, list[str]]:
        """The rows, in a transaction; then whoever asked has the files removed. A crash between them leaves a file
        without a row, which is found as a stray one."""
        query = f"""SELECT digest, body IS NULL FROM blobs WHERE at_ns <= ? AND digest IN ({", ".join("?" * len(digests))})
                    AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest)"""
        with self._transaction() as tx:
            self._check_epoch(tx, self._held)
            self._dialect.keep_out(tx, "blobs")
            loose = dict(self._all(query, bounded(before_ns), *digests)) if digests else {}
            if loose:
                # What a run hands over is nobody's while the message is under way, should the run be gone by then.
                under_way = named(bytes(row[0]) for row in self._all("SELECT body FROM inbox"))
                loose = {digest: filed for digest, filed in loose.items() if digest not in under_way}
            tx.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in loose])
        return len(loose), sorted(digest for digest, filed in loose.items() if filed)

    def remove_files(self, digests: Sequence[str]) -> None:
        if self._files is None or not digests:
            return
        with self._transaction() as tx:
            # Whoever refers to one of them just now is waited for, and seen.
            self._dialect.keep_out(tx, "blobs")
            for digest in digests:
                if not self.has_blob(digest):
                    self._files.remove(digest)

    def sweep(self, *, keep: Iterable[str] = (), loose_before_ns: int | None = None) -> int:
        kept, before_ns = set(keep), 2**62 if loose_before_ns is None else max(0, loose_before_ns)
        if lost := self.orphans():
            self.remove_orphans(lost)
        removed, page = 0, [""]
        while page:
            page = self.loose(before_ns, page[-1], LOOSE_AT_ONCE)
            count, files = self.remove_loose([digest for digest in page if digest not in kept], before_ns)
            self.remove_files(files)
            removed += count
        self.remove_files(self.stray_files())
        return removed

    def shrink(self, *, rewrite: bool = False) -> int:
        with self._dialect.errors():
            return self._dialect.shrink(self._connection, rewrite=rewrite)

    def idle(self) -> None:
        self._dialect.checkpoint(self._connection)

    def end_with_its_holder(self) -> None:
        """For a store in memory: there is nobody to close it for but whoever holds it, so it is closed
        when it is forgotten, too."""
        weakref.finalize(self, self._connection.close)

    def close(self) -> None:
        """Leaves one whole file where it can, so that a copy of it is a copy of the store."""
        self._dialect.checkpoint(self._connection)
        super().close()

    # --- whole tables, for copies of the store ---

    def insert_rows(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._transaction() as tx:
            tx.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks(columns)})", rows)

    def keep_payload(self, digest: str, body: bytes) -> None:
        self._write_files({digest: body})
        with self._transaction() as tx:
            self._write_blobs(tx, {digest: body})

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
