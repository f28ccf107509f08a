"""Runs that come back from an archive: rows of a commit, as they were; nothing is decided, nothing is done again.

What an archive holds has ended. It stays until somebody deletes it: whoever put it back wants it here, however long ago
it ended, and no collection takes it away again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.errors import BlobMissing, RunExists, Unsupported
from treadle.kernel.model import TERMINAL
from treadle.kernel.values import Value, digest_bytes, encode
from treadle.store.ages import RETURNED
from treadle.store.backups import name_of
from treadle.store.returning import Returning
from treadle.store.run_rows import RunRow

if TYPE_CHECKING:
    from .desk import Desk


def perform(desk: Desk, asked: dict[str, Value]) -> str | dict[str, str]:
    """One step: a payload that runs refer to, or a run, which was put here as a payload before."""
    desk.belongs(str(asked["id"]))
    match asked["step"]:
        case "payload":
            body: bytes = asked["body"]
            digest = digest_bytes(body)
            desk.batch.blobs[digest] = body
            return digest
        case "run":
            found = Returning.from_bytes(desk.store.blob(str(asked["package"])))
            _put_back(desk, found, same_store=found.store == name_of(desk.store.work_key()))
            return {"id": found.run.id}
        case step:
            raise Unsupported(f"no step {step!r:.40} of a return is known")


def _put_back(desk: Desk, found: Returning, *, same_store: bool) -> None:
    row, batch = found.run, desk.batch
    if row.status not in TERMINAL:
        raise Unsupported(
            f"{row.id} has not ended; an archive has only runs that have", code="NOT_AN_ARCHIVE"
        )
    if desk.store.run(row.id) is not None:
        raise RunExists(f"the store has a run {row.id!r} already; it is left as it is")
    if missing := [digest for digest in found.payloads if not desk.store.has_blob(digest)]:
        raise BlobMissing(f"the payload {missing[0]} of {row.id} is not in the store any more; try again")
    row.no = no = row.no if same_store and _is_free(desk, row) else desk.next_run_no()
    batch.runs_new[no] = row
    batch.dialects[no] = row.dialect
    batch.records += [(no, *record) for record in found.records]
    batch.snapshots += [(no, *snapshot) for snapshot in found.snapshots]
    batch.frames += [(no, *frame) for frame in found.frames]
    batch.blob_refs += [(no, digest) for digest in found.payloads]
    batch.diagnostics += [(row.id, *said) for said in found.diagnostics]
    batch.submissions += [(f"run:{row.id}", *answered) for answered in found.submissions]
    for task in found.tasks:
        task.no, task.run = desk.next_task_no(), no
        batch.tasks_new[task.id] = task
    _put_definitions(desk, found)
    now = desk.clock.now_ns()
    batch.documents.append((RETURNED, row.id, now, encode({"at_ns": now})))


def _is_free(desk: Desk, row: RunRow) -> bool:
    """Whether its number of then can be its own again. One above all others may be given to somebody else any time."""
    return 0 < row.no < desk.store.last_run_no() and desk.store.run_by_no(row.no) is None


def _put_definitions(desk: Desk, found: Returning) -> None:
    """What the store has is left as it is: a version is what was deployed last under its name."""
    store, batch = desk.store, desk.batch
    batch.definitions += [row for row in found.definitions if store.definition(row.digest) is None]
    for version in found.versions:
        if version.version not in {known.version for known in store.versions(version.name)}:
            batch.versions.append(version)
    batch.documents += [said for said in found.documents if store.document(said[0], said[1]) is None]
