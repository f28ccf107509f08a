"""House-keeping: forks, collection of what is past its date, the doctor's questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from treadle.kernel.errors import (
    JournalCorrupt,
    ReplayDiffers,
    RunExists,
    TreadleError,
    Unsupported,
    ValueRefused,
)
from treadle.kernel.history import fork as fork_run
from treadle.kernel.model import TERMINAL, is_reference
from treadle.kernel.roles import FOREVER_NS, CellMachine, KeepingMachine
from treadle.kernel.values import Value, decode_trusted
from treadle.store.protocol import DefinitionRow, Reads, RunRow

from . import bulks
from .audit import KEPT_NS as AUDIT_KEPT_NS
from .deploys import row_value
from .desk import Desk
from .document import row_of
from .hot import Hot, load_state, open_work
from .mending import check_compatible
from .payloads import started_with

COLLECT_PER_COMMIT = 200
# The operations of house-keeping.
COLLECT, FORK, REMOVE = "collect", "fork", "remove"
# How long an answer waits for whoever asked from another process.
REPLIES_KEPT_NS = 24 * 3_600 * 10**9
NOBODY = 0


def fork(
    desk: Desk,
    id: str,
    *,
    at: int | None,
    definition: DefinitionRow | None,
    new_id: str,
    by: str | None = None,
) -> dict[str, Any]:
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
    desk.adopt(Hot(state, new.no, 0, loaded.machine, loaded.definition, new, set()), step)
    # Its state refers to what the other run holds, which may be removed before it.
    desk.batch.blob_refs += [(new.no, digest) for digest in desk.store.blobs_of(row.no)]
    return {"run": new_id}


def fork_asked(
    id: str, *, at: int | None, definition: DefinitionRow | None, new_id: str, by: str | None
) -> dict[str, Any]:
    """A fork as data: it is made where the new run is decided."""
    row = None if definition is None else row_value(definition)
    return {"id": id, "at": at, "definition": row, "new_id": new_id, "by": by}


def perform_fork(desk: Desk, asked: dict[str, Any]) -> dict[str, Any]:
    row = None if asked["definition"] is None else DefinitionRow(**asked["definition"])
    return fork(desk, asked["id"], at=asked["at"], definition=row, new_id=asked["new_id"], by=asked["by"])


def _before(error: TreadleError, id: str) -> TreadleError:
    """The same error, with the record from which a fork would work."""
    record = (error.where or "").rpartition("#")[2]
    if record.isdigit() and int(record) > 1:
        error.message += f"; fork it before that: treadle fork {id} --at {int(record) - 1}"
    return error


def awaiting(reads: Reads, reference: str, name: str) -> list[str]:
    """The runs with a business reference that wait for a signal."""
    found = []
    for row in reads.runs(reference=reference, limit=10_000):
        if row.status not in TERMINAL:
            waits = open_work(row, reads).values()
            if any(intent.kind == "signal" and intent.params["name"] == name for intent in waits):
                found.append(row.id)
    return sorted(found)


async def collect(
    operate: Callable[..., Awaitable[Any]],
    homes: Sequence[str],
    *,
    now_ns: int | None,
    dry_run: bool,
    by: str | None = None,
) -> dict[str, int]:
    """Removes in small commits, so that nothing else waits long; each of those who hold the `homes` what is theirs.
    Whoever asked is kept among the diagnostics."""
    if not isinstance(now_ns, int | None):
        raise ValueRefused("now_ns is a whole number of nanoseconds since 1970")
    removed = 0
    for home in homes:
        count = COLLECT_PER_COMMIT
        while count >= COLLECT_PER_COMMIT:
            asked = {"step": "runs", "now_ns": now_ns, "dry_run": dry_run}
            count = await operate(COLLECT, asked, home=home)
            removed += count
            if dry_run:
                break
    if dry_run:
        return {"runs": removed, "blobs": 0}
    expired: list[list[Any]] = []
    for home in homes:
        before: int | None = None
        while before != 0:
            asked = {"step": "expired", "now_ns": now_ns, "before_no": before}
            found, before = await operate(COLLECT, asked, home=home)
            expired += found
    last = {"step": "sweep", "now_ns": now_ns, "expired": expired, "runs": removed, "by": by}
    return {"runs": removed, "blobs": await operate(COLLECT, last)}


def perform(desk: Desk, asked: dict[str, Any]) -> Any:
    """One step of a collection, where the runs that it is about are decided."""
    match asked["step"]:
        case "runs":
            return _collect_some(desk, asked["now_ns"], asked["dry_run"])
        case "expired":
            return _expired_some(desk, now_ns=asked["now_ns"], before_no=asked["before_no"])
        case "sweep":
            _forget_replies(desk, now_ns=asked["now_ns"])
            removed = _sweep(desk, [(no, digest) for no, digest in asked["expired"]])
            if asked["by"] is not None:
                _told(desk, {"by": asked["by"], "runs": asked["runs"], "blobs": removed})
            return removed
        case step:
            raise Unsupported(f"no step {step!r} of a collection is known")


def _told(desk: Desk, what: dict[str, Any]) -> None:
    desk.belongs("")
    desk.diagnose("", "COLLECTED", what)


def _forget_replies(desk: Desk, *, now_ns: int | None) -> None:
    """Answers that nobody came for: whoever asked is dead. With them, what was audited long ago, and old bulk jobs."""
    # By the time that it is, whatever time the runs are collected for: somebody waits for the answer to this.
    now = min(desk.clock.now_ns(), 2**62 if now_ns is None else now_ns)
    desk.batch.replies_until_ns = max(0, now - REPLIES_KEPT_NS)
    desk.batch.audit_until_ns = max(0, now - AUDIT_KEPT_NS)
    bulks.forget_old(desk, now)


def _sweep(desk: Desk, expired: list[tuple[int, str]]) -> int:
    removed = desk.store.sweep(keep=desk.pinned(), expired=expired)
    for _, digest in expired:
        desk.blobs.forget(digest)
    return removed


def _expired_some(desk: Desk, *, now_ns: int | None, before_no: int | None) -> list[Any]:
    """Payloads past their date, of one page of ended runs; then where the next page begins, or 0."""
    now = desk.clock.now_ns() if now_ns is None else now_ns
    rows = desk.store.runs(status=sorted(TERMINAL), before_no=before_no, limit=COLLECT_PER_COMMIT)
    expired: list[Value] = []
    for row in rows:
        if not desk.held.holds(row.id):
            continue
        ended_ns = now if row.ended_ns is None else row.ended_ns
        found = [
            digest
            for digest, lifetime in _lifetimes(desk, row).items()
            if lifetime is not None and ended_ns + lifetime <= now and desk.store.has_blob(digest)
        ]
        if found and _stands_alone(desk, row):
            expired += [[row.no, digest] for digest in found]
    return [expired, rows[-1].no if len(rows) == COLLECT_PER_COMMIT else 0]


def _stands_alone(desk: Desk, row: RunRow) -> bool:
    """Makes sure that a run can be shown and retried without deciding anything again, for which its
    payloads might be needed: its last state is a snapshot. False where it cannot be loaded."""
    if row.seq in desk.store.snapshot_seqs(row.no):
        return True
    try:
        hot = desk.hot.get(row.id)
    except TreadleError:
        return False
    if hot is None:
        return False
    desk.stage_snapshot(hot)
    return True


def _lifetimes(desk: Desk, row: RunRow) -> dict[str, int | None]:
    """How long after a run's end each of its payloads lives; None: as long as the run. Of several
    references to one payload the longest counts."""
    try:
        loaded = desk.registry.load(row.definition)
    except TreadleError:
        return {}  # its code is not at hand: what it stored stays with it
    machine = loaded.machine
    if not isinstance(machine, KeepingMachine) or not machine.has_lifetimes(loaded.definition):
        return {}
    found: dict[str, int | None] = {}
    looked_into: set[str] = set()
    queue: list[Value] = [
        record.record() for record in desk.store.journal(row.no) if b"checksum" in record.body
    ]
    while queue:
        for reference in _references(queue.pop()):
            digest = str(reference["checksum"])
            if "scope" in reference:
                lifetime = machine.lifetime_ns(reference)
                known = found.get(digest, 0)
                found[digest] = None if lifetime is None or known is None else max(known, lifetime)
                continue
            found[digest] = None
            if digest not in looked_into and desk.store.has_blob(digest):
                # A large report, or a chunk of results: references stand in it too.
                looked_into.add(digest)
                queue.append(decode_trusted(desk.store.blob(digest)))
    return found


def _references(value: Value) -> Iterator[dict[str, Any]]:
    """References to whole payloads; one with a path is an address inside another's payload."""
    if isinstance(value, dict):
        if is_reference(value):
            if "path" not in value:
                yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)


def perform_remove(desk: Desk, asked: dict[str, Any]) -> dict[str, Any]:
    """Removes one run that has ended, whatever its retention says."""
    row = row_of(desk.store, str(asked["id"]))
    _check_ended(row)
    _remove(desk, row)
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


def _remove(desk: Desk, row: RunRow) -> None:
    desk.hot.drop(row.id)
    # What is kept for ever is nobody's from now on: runs count from 1.
    for digest, lifetime in _lifetimes(desk, row).items():
        if lifetime == FOREVER_NS:
            desk.batch.blob_refs.append((NOBODY, digest))
    desk.batch.runs_removed.append(row.no)
    desk.belongs(row.id)


def _collect_some(desk: Desk, now_ns: int | None, dry_run: bool) -> int:
    now = desk.clock.now_ns() if now_ns is None else now_ns
    rows = desk.store.retained(now, 1_000_000 if dry_run else COLLECT_PER_COMMIT, desk.held.chosen)
    if not dry_run:
        for row in rows:
            _remove(desk, row)
    return len(rows)
