"""The questions a store answers, once for all SQL engines. Each is one indexed query or a page."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from treadle.kernel.errors import BlobCorrupt, BlobMissing, DefinitionCorrupt, TreadleError
from treadle.kernel.values import Value, decode_trusted, digest_bytes
from treadle.kernel.values import digest as digest_of

from .ages import past_conditions
from .blobs import known
from .connection import RunReads
from .counts import RunCounts
from .dialect import on_shards
from .figures import StoreNumbers, numbers_of
from .following import FollowReads
from .many import ManyReads
from .marks import NOW, MovedRun
from .member_reads import MemberReads
from .places import PlaceReads
from .row_reading import RUN_COLUMNS, run_of
from .rows import AgeRule, AuditRow, DefinitionRow, TaskRow, TimerRow, VersionRow, bounded
from .run_rows import RunRow

# SQLite takes many more variables in one statement; a page of them is quick anywhere.
KEYS_PER_QUERY = 500
# A file of a payload that has no row after so long was left by somebody who was killed.
FILES_KEPT_NS: Final = 3_600 * 10**9
AUDIT_COLUMNS = 'at_ns, "user", token, action, target, status, code, server, request'
TASK_STATUSES = ("open", "claimed", "completed", "cancelled", "expired")
TASK_COLUMNS = (
    "no, id, run, run_id, workflow, name, type, roles, payload, task_schema, reference, status, assignee, "
    "created_ns, due_ns, history"
)


def _task(row: Sequence[Any]) -> TaskRow:
    return TaskRow(
        no=row[0],
        id=row[1],
        run=row[2],
        run_id=row[3],
        workflow=row[4],
        name=row[5],
        type=row[6],
        roles=json.loads(row[7]),
        payload=None if row[8] is None else decode_trusted(row[8]),
        schema=None if row[9] is None else decode_trusted(row[9]),
        reference=row[10],
        status=row[11],
        assignee=row[12],
        created_ns=row[13],
        due_ns=row[14],
        history=decode_trusted(row[15]),
    )


class SqlReads(RunReads, RunCounts, PlaceReads, FollowReads, ManyReads, MemberReads):
    """Reads on one connection. Not for two threads at once."""

    # --- runs ---

    def runs(
        self,
        *,
        status: Sequence[str] = (),
        workflow: str | None = None,
        reference: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        search: str | None = None,
        parent: str | None = None,
        prefix: str | None = None,
        before_no: int | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        clauses: list[tuple[str, list[Any]]] = []
        if status:
            clauses.append((f"status IN ({', '.join('?' * len(status))})", list(status)))
        if workflow is not None:
            clauses.append(("workflow = ?", [workflow]))
        if reference is not None:
            clauses.append(("reference = ?", [reference]))
        if since_ns is not None:
            clauses.append(("started_ns >= ?", [bounded(since_ns)]))
        if until_ns is not None:
            clauses.append(("started_ns < ?", [bounded(until_ns)]))
        if parent is not None:
            clauses.append(("parent = ?", [parent]))
        if prefix is not None:
            clauses.append(("substr(workflow, 1, ?) = ?", [len(prefix), prefix]))
        if before_no is not None:
            clauses.append(("no < ?", [before_no]))
        if search:
            like = "%" + search.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
            clauses.append(
                (
                    " OR ".join(
                        f"{column} {self._dialect.like} ? ESCAPE '!'"
                        for column in ("id", "workflow", "reference")
                    ).join("()"),
                    [like] * 3,
                )
            )
        where = " WHERE " + " AND ".join(text for text, _ in clauses) if clauses else ""
        values = [value for _, found in clauses for value in found]
        query = f"SELECT {RUN_COLUMNS} FROM runs{where} ORDER BY no DESC LIMIT ?"
        return [run_of(row) for row in self._all(query, *values, bounded(limit))]

    def working(self, *, after_no: int, limit: int, shard: int | None = None) -> list[RunRow]:
        here = "" if shard is None else f"shard = {int(shard)} AND"
        query = f"SELECT {RUN_COLUMNS} FROM runs WHERE {here} working = 1 AND no > ? ORDER BY no LIMIT ?"
        return [run_of(row) for row in self._all(query, after_no, limit)]

    def numbers(self, now_ns: int) -> StoreNumbers:
        return numbers_of(self._one, self.run_count(), self._dialect.size(self._connection), now_ns)

    def retained(
        self,
        now_ns: int,
        limit: int,
        shards: Collection[int] | None = None,
        rules: Sequence[AgeRule] = (),
        *,
        stated: bool = True,
        among: Collection[int] | None = None,
    ) -> list[RunRow]:
        here, found = f"{on_shards('shard', shards)} {on_shards('no', among)}", list[RunRow]()
        for condition, values, order in past_conditions(now_ns, rules, stated=stated):
            query = f"SELECT {RUN_COLUMNS} FROM runs WHERE {condition} {here} ORDER BY {order} LIMIT ?"
            found += [run_of(row) for row in self._all(query, *values, limit - len(found))]
        return found

    # --- journals ---

    def runs_beyond(self, event_no: int) -> list[str]:
        last = "SELECT event_no FROM journal WHERE run = runs.no ORDER BY seq DESC LIMIT 1"
        return [id for (id,) in self._all(f"SELECT id FROM runs WHERE ({last}) > ? ORDER BY no", event_no)]

    def moved(self, since: tuple[int, int]) -> tuple[tuple[int, int], list[MovedRun]]:
        place = self._dialect.position
        # Read before the runs: what comes in between is found twice, not never.
        records, frames = (
            int(self._one(place.mark.format(table=table))[0]) for table in ("journal", "frames")
        )
        if since == (records, frames) or since == NOW:
            return (records, frames), []
        rows = self._all(
            f"""SELECT runs.id, runs.no, runs.status, min(found.seq) FROM (
                 SELECT run, seq FROM journal WHERE {place.column} {place.found} ?
                 UNION ALL SELECT run, 2 FROM frames WHERE {place.column} {place.found} ?
               ) AS found JOIN runs ON runs.no = found.run GROUP BY runs.no ORDER BY runs.no""",
            *since,
        )
        return (records, frames), [MovedRun(id, no, status, first == 1) for id, no, status, first in rows]

    def frames(self, run: int, *, after: int = 0, limit: int = 1000) -> list[tuple[int, int, bytes]]:
        query = "SELECT event_no, at_ns, body FROM frames WHERE run = ? AND event_no > ? ORDER BY event_no LIMIT ?"
        return self._all(query, run, after, limit)

    # --- timers, tasks, messages ---

    def timers_due(self, now_ns: int, limit: int, shards: Collection[int] | None = None) -> list[TimerRow]:
        query = f"""SELECT t.intent, t.run, t.due_ns, t.fires, r.id FROM timers t JOIN runs r ON r.no = t.run
                    WHERE t.due_ns <= ? {on_shards("t.shard", shards)} ORDER BY t.due_ns, t.intent LIMIT ?"""
        return [
            TimerRow(row[0], row[1], row[2], bool(row[3]), row[4]) for row in self._all(query, now_ns, limit)
        ]

    def timer_next(self) -> int | None:
        found: int | None = self._one("SELECT min(due_ns) FROM timers")[0]
        return found

    def timer_after(self, now_ns: int, shards: Collection[int] | None = None) -> int | None:
        query = f"SELECT min(due_ns) FROM timers WHERE due_ns > ? {on_shards('shard', shards)}"
        found: int | None = self._one(query, now_ns)[0]
        return found

    def timers_of(self, run: int) -> list[TimerRow]:
        rows = self._all(
            "SELECT intent, run, due_ns, fires FROM timers WHERE run = ? ORDER BY due_ns, intent", run
        )
        return [TimerRow(row[0], row[1], row[2], bool(row[3])) for row in rows]

    def task(self, id: str) -> TaskRow | None:
        row = self._one(f"SELECT {TASK_COLUMNS} FROM tasks WHERE id = ?", id)
        return None if row is None else _task(row)

    def tasks(
        self,
        *,
        role: str | None = None,
        assignee: str | None = None,
        status: Sequence[str] = (),
        reference: str | None = None,
        run: str | None = None,
        after_no: int = 0,
        limit: int = 100,
    ) -> list[TaskRow]:
        """The page is found first, one search per status in an index that is in the right order, and
        only its rows are read: so a query costs what it shows, however many tasks there are."""
        clauses: list[str] = []
        values: list[Any] = []
        narrow = assignee is not None or reference is not None or run is not None
        if assignee is not None:
            clauses.append("assignee = ?")
            values.append(assignee)
        if reference is not None:
            clauses.append("reference = ?")
            values.append(reference)
        if run is not None:
            clauses.append("run = (SELECT no FROM runs WHERE id = ?)")
            values.append(run)
        table, number = "tasks", "no"
        if role is not None and narrow:
            # All three columns of the unique index, so that it is one look and no scan.
            clauses.append(
                "EXISTS (SELECT 1 FROM task_roles r WHERE r.role = ? AND r.status = tasks.status AND r.task = tasks.no)"
            )
            values.append(role)
        elif role is not None:
            table, number = "task_roles", "task"
            clauses.append("role = ?")
            values.append(role)
        if not status and (role is not None or assignee is not None):
            status = TASK_STATUSES
        searches, parameters = [], []
        for wanted in status or (None,):
            where = [*clauses, *(["status = ?"] if wanted is not None else []), f"{number} > ?"]
            found = (
                f"SELECT {number} AS no FROM {table} WHERE {' AND '.join(where)} ORDER BY {number} LIMIT ?"
            )
            searches.append(f"SELECT no FROM ({found}) AS found")
            parameters += [*values, *([wanted] if wanted is not None else []), after_no, bounded(limit)]
        page = f"{' UNION ALL '.join(searches)} ORDER BY no LIMIT ?"
        query = f"SELECT {TASK_COLUMNS} FROM tasks WHERE no IN ({page}) ORDER BY no"
        return [_task(row) for row in self._all(query, *parameters, bounded(limit))]

    def inbox(self, limit: int, shards: Collection[int] | None = None) -> list[tuple[str, bytes]]:
        narrowed = "" if shards is None else on_shards("shard", shards)
        return self._all(
            f"SELECT key, body FROM inbox WHERE no > 0 {narrowed} ORDER BY no LIMIT ?",
            limit,
        )

    def has_message(self, key: str) -> bool:
        return self._one("SELECT 1 FROM inbox WHERE key = ?", key) is not None

    def replies(self, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for first in range(0, len(keys), KEYS_PER_QUERY):
            page = keys[first : first + KEYS_PER_QUERY]
            marks = ", ".join("?" * len(page))
            found.update(self._all(f"SELECT key, body FROM replies WHERE key IN ({marks})", *page))
        return found

    def checkpoints(self, run: int) -> dict[str, Value]:
        rows = self._all("SELECT intent, body FROM checkpoints WHERE run = ?", run)
        return {intent: decode_trusted(body) for intent, body in rows}

    def diagnostics(self, run: str | None = None, *, limit: int = 1000) -> list[dict[str, Any]]:
        where, values = ("WHERE run = ?", [run]) if run is not None else ("", [])
        rows = self._all(
            f"SELECT run, at_ns, code, body FROM diagnostics {where} ORDER BY no DESC LIMIT ?", *values, limit
        )
        return [
            {"run": r, "at_ns": at, "code": code, **decode_trusted(body)}
            for r, at, code, body in reversed(rows)
        ]

    def audit(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        target: str | None = None,
        token: str | None = None,
        status: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        before_no: int | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        family = action is not None and "." not in action
        asked: list[tuple[str, Any]] = [
            ('"user" = ?', user),
            ("substr(action, 1, ?) = ?" if family else "action = ?", action),
            ("target = ?", target),
            ("token = ?", token),
            ("status = ?", status),
            ("at_ns >= ?", None if since_ns is None else bounded(since_ns)),
            ("at_ns < ?", None if until_ns is None else bounded(until_ns)),
            ("no < ?", before_no),
        ]
        given = [(clause, value) for clause, value in asked if value is not None]
        where = f" WHERE {' AND '.join(clause for clause, _ in given)}" if given else ""
        values: list[Any] = []
        for clause, value in given:
            values += [len(value) + 1, f"{value}."] if clause.startswith("substr") else [value]
        query = f"SELECT no, {AUDIT_COLUMNS} FROM audit{where} ORDER BY no DESC LIMIT ?"
        names = ("no", "at_ns", "user", "token", "action", "target", "status", "code", "server", "request")
        return [
            AuditRow(**dict(zip(names, row, strict=True)))
            for row in self._all(query, *values, bounded(limit))
        ]

    def submission(self, scope: str, id: str) -> Value | None:
        row = self._one("SELECT body FROM submissions WHERE scope = ? AND id = ?", scope, id)
        return None if row is None else decode_trusted(row[0])

    # --- blobs, definitions, documents ---

    def blob(self, digest: str) -> bytes:
        row = self._one("SELECT size, body FROM blobs WHERE digest = ?", digest)
        if row is None:
            raise BlobMissing(f"blob expired: {digest} is not in the store any more, or never was")
        size, body = row
        if body is None:
            return known(self._files, digest).read(digest, size)
        if len(body) != size or digest_bytes(body) != digest:
            raise BlobCorrupt(f"{digest}: the stored bytes do not match it")
        return bytes(body)

    def payloads(self, after: str, limit: int) -> list[tuple[str, int]]:
        """The digests and sizes of stored payloads, a page in their order."""
        query = "SELECT digest, size FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?"
        return [(digest, size) for digest, size in self._all(query, after, limit)]

    def check_payload(self, digest: str, size: int) -> None:
        """Whether a payload is there, without reading it: its file, or its row."""
        (inside,) = self._one("SELECT body IS NOT NULL FROM blobs WHERE digest = ?", digest) or (True,)
        if not inside:
            known(self._files, digest).check(digest, size)

    def has_blob(self, digest: str) -> bool:
        return self._one("SELECT 1 FROM blobs WHERE digest = ?", digest) is not None

    def loose(self, before_ns: int, after: str, limit: int) -> list[str]:
        query = """SELECT digest FROM blobs WHERE digest > ? AND at_ns <= ?
                   AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest)
                   ORDER BY digest LIMIT ?"""
        return [digest for (digest,) in self._all(query, after, bounded(before_ns), limit)]

    def stray_files(self) -> list[str]:
        if self._files is None:
            return []
        # A file comes before its row: a young one without a row may be somebody's who writes it just now.
        old = self._files.digests(time.time_ns() - FILES_KEPT_NS)
        return sorted(digest for digest in old if not self.has_blob(digest))

    @property
    def files_at_once(self) -> int:
        return 1 if self._files is None else self._files.removed_at_once

    def blobs_of(self, run: int) -> list[str]:
        rows = self._all("SELECT digest FROM blob_refs WHERE run = ? ORDER BY digest", run)
        return [digest for (digest,) in rows]

    def origins(self) -> list[tuple[str, str]]:
        query = "SELECT DISTINCT dialect, file FROM definitions WHERE file IS NOT NULL ORDER BY file, dialect"
        return [(dialect, file) for dialect, file in self._all(query)]

    def definition(self, digest: str) -> DefinitionRow | None:
        query = "SELECT digest, dialect, name, version, path, file, body, created_ns FROM definitions WHERE digest = ?"
        row = self._one(query, digest)
        if row is None:
            return None
        try:
            body = decode_trusted(row[6])
            intact = digest_of({"dialect": row[1], "name": row[2], "version": row[3], "body": body}) == digest
        except TreadleError:
            intact = False
        if not intact:
            raise DefinitionCorrupt(
                f"the stored definition of {row[2]} does not match its digest {digest}; deploy its file again"
            )
        return DefinitionRow(
            digest=row[0],
            dialect=row[1],
            name=row[2],
            version=row[3],
            path=row[4],
            file=row[5],
            body=body,
            created_ns=row[7],
        )

    def versions(self, name: str | None = None, *, path: str | None = None) -> list[VersionRow]:
        clauses, values = [], []
        if name is not None:
            clauses.append("name = ?")
            values.append(name)
        if path is not None:
            clauses.append("path = ?")
            values.append(path)
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        query = f"SELECT name, version, digest, path, status, reasons, created_ns FROM versions {where} ORDER BY name, created_ns"
        return [
            VersionRow(
                name=row[0],
                version=row[1],
                digest=row[2],
                path=row[3],
                status=row[4],
                reasons=json.loads(row[5]),
                created_ns=row[6],
            )
            for row in self._all(query, *values)
        ]

    def document(self, kind: str, id: str) -> Value | None:
        row = self._one("SELECT body FROM documents WHERE kind = ? AND id = ?", kind, id)
        return None if row is None else decode_trusted(row[0])

    def documents(self, kind: str) -> list[tuple[str, Value]]:
        rows = self._all("SELECT id, body FROM documents WHERE kind = ? ORDER BY id", kind)
        return [(id, decode_trusted(body)) for id, body in rows]

    def documents_before(self, kind: str, at_ns: int, limit: int) -> list[str]:
        query = "SELECT id FROM documents WHERE kind = ? AND at_ns < ? ORDER BY id LIMIT ?"
        return [id for (id,) in self._all(query, kind, at_ns, limit)]

    def counts(self) -> Iterator[tuple[str, int]]:
        for table in ("runs", "journal", "snapshots", "timers", "tasks", "inbox", "replies", "blobs"):
            yield table, int(self._one(f"SELECT count(*) FROM {table}")[0])
