"""Forks, and the removal of single runs that have ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from treadle.kernel.errors import (
    JournalCorrupt,
    ReplayDiffers,
    RunExists,
    TreadleError,
    Unsupported,
)
from treadle.kernel.history import fork as fork_run
from treadle.kernel.model import TERMINAL
from treadle.kernel.roles import CellMachine
from treadle.kernel.values import Value
from treadle.store.rows import DefinitionRow
from treadle.store.run_rows import RunRow

from .collecting import COLLECT_PER_COMMIT, remove_run
from .deploys import row_value
from .document import row_of
from .hot import Hot, load_state
from .moving import check_compatible
from .opened import open_work
from .payloads import started_with

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


# The operations of house-keeping.


def fork(
    desk: Desk,
    id: str,
    *,
    at: int | None,
    definition: DefinitionRow | None,
    new_id: str,
    by: str | None = None,
) -> dict[str, str]:
    """A new run from a run's state at a record; its open work is reissued under ids of its own."""
    row = row_of(desk.store, id)
    if isinstance(desk.registry.load(row.definition).machine, CellMachine):
        raise Unsupported(
            f"{id} is one instance of its workflow and key, so there cannot be a second one; "
            "look at its past with `treadle state --at`, or try code on it with `treadle shadow`"
        )
    if desk.store.run(new_id) is not None:
        raise RunExists(f"a run {new_id!r} exists already; choose another id")
    try:
        source = load_state(row, desk.store, desk.registry, desk.blobs, until_seq=at)
    except (ReplayDiffers, JournalCorrupt) as error:
        raise _before(error, id) from error
    digest = definition.digest if definition is not None else source.definition
    loaded = desk.registry.load(digest)
    check_compatible(loaded, source, moves=definition is not None)
    about = source if definition is None else definition
    workflow = source.workflow if definition is None else definition.name
    place = None
    if not source.ended:
        place = desk.lines.place_for_fork(new_id, workflow, digest, source, started_with(desk.store, row.no))
    state, step = fork_run(
        source,
        id=new_id,
        definition=digest,
        seed=desk.entropy(16),
        at_ns=desk.clock.now_ns(),
        by=by,
        queued=place is not None,
    )
    state.workflow, state.version = workflow, about.version
    if place is not None:
        desk.lines.enter(place)
    new = RunRow(
        no=desk.next_run_no(),
        id=new_id,
        dialect=state.dialect,
        workflow=state.workflow,
        version=state.version,
        definition=digest,
        cell_key=state.key,
    )
    desk.adopt(Hot(state, new.no, 0, loaded.machine, loaded.definition, new), step)
    # Its state refers to what the other run holds, which may be removed before it.
    desk.batch.blob_refs += [(new.no, digest) for digest in desk.store.blobs_of(row.no)]
    return {"run": new_id}


def fork_asked(
    id: str, *, at: int | None, definition: DefinitionRow | None, new_id: str, by: str | None
) -> dict[str, Value]:
    """A fork as data: it is made where the new run is decided."""
    row = None if definition is None else row_value(definition)
    return {"id": id, "at": at, "definition": row, "new_id": new_id, "by": by}


def perform_fork(desk: Desk, asked: dict[str, Value]) -> dict[str, str]:
    row = None if asked["definition"] is None else DefinitionRow(**asked["definition"])
    return fork(desk, asked["id"], at=asked["at"], definition=row, new_id=asked["new_id"], by=asked["by"])


def _before(error: TreadleError, id: str) -> TreadleError:
    """The same error, with the record from which a fork would work."""
    record = (error.where or "").rpartition("#")[2]
    if record.isdigit() and int(record) > 1:
        error.message += f"; fork it before that: treadle fork {id} --at {int(record) - 1}"
    return error


def awaiting(
    reads: Reads, reference: str, name: str, *, but: Collection[str] = frozenset()
) -> dict[str, int]:
    """The runs with a business reference that wait for a signal, each with the version at which it does."""
    found = {}
    for row in reads.runs(reference=reference, limit=10_000):
        if row.status not in TERMINAL and row.id not in but:
            version = _version(row, reads)  # before what waits then: what comes in between is noticed
            waits = open_work(row, reads).values()
            if any(intent.kind == "signal" and intent.params["name"] == name for intent in waits):
                found[row.id] = version
    return dict(sorted(found.items()))


def _version(row: RunRow, reads: Reads) -> int:
    """The number of a run's last record; its row may be from an earlier one."""
    cut = reads.snapshot(row.no)
    last = cut[0] if cut is not None else 0
    return max([last, *(seq for seq, _, _ in reads.open_ids(row.no, after_seq=last))])


def perform_remove(desk: Desk, asked: dict[str, Value]) -> dict[str, str | bool]:
    """Removes one run that has ended, whatever its retention says."""
    row = row_of(desk.store, str(asked["id"]))
    _check_ended(row)
    remove_run(desk, row)
    return {"id": row.id, "removed": True}


def family_of(reads: Reads, id: str) -> list[str]:
    """A run and the runs below it, itself first; all of them have ended, or it is refused."""
    found = [row_of(reads, id)]
    for row in found:
        before: int | None = None
        while page := reads.runs(parent=row.id, before_no=before, limit=COLLECT_PER_COMMIT):
            found += page
            before = page[-1].no
    for row in found:
        _check_ended(row)
    return [row.id for row in found]


def _check_ended(row: RunRow) -> None:
    if row.status not in TERMINAL:
        raise TreadleError(
            f"{row.id} is {row.status}, and only runs that have ended are deleted; cancel it first",
            code="RUN_NOT_ENDED",
            cls="consistency",
        )
