"""Collection of what is past its date: runs, payloads, answers that nobody came for, old lines of the audit.

It goes in small commits, so that nothing else waits long, each where the runs are decided that it is about. With an
archive a run is removed only after it is there, and only if it is still as it was when it was put there: cut between the
two, the run is in both places, and the next collection finds it in the archive and removes it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypedDict

from treadle.kernel.errors import TreadleError, Unsupported, ValueRefused
from treadle.kernel.model import TERMINAL, is_reference
from treadle.kernel.roles import FOREVER_NS, KeepingMachine
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.store.ages import RETURNED
from treadle.store.protocol import RunRow

from . import bulks, dead_letters, lines, retention
from .audit import KEPT_NS as AUDIT_KEPT_NS
from .desk import Desk

COLLECT: Final = "collect"
COLLECT_PER_COMMIT: Final = 200
# Runs that one commit counts for a preview.
PREVIEW_MAX: Final = 1_000_000
# How long an answer waits for whoever asked from another process.
REPLIES_KEPT_NS: Final = 24 * 3_600 * 10**9
# How long a payload that nobody refers to waits for the receipt that will.
LOOSE_KEPT_NS: Final = 24 * 3_600 * 10**9
NOBODY: Final = 0
# The document that says when servers last collected by themselves.
TURN: Final = "house"


class Past(NamedTuple):
    """A run that is past its date, as it was when that was found out."""

    no: int
    id: str
    seq: int


class PastWhen(TypedDict):
    """Which runs are collected: those past their date at an instant (None: now), of all or of those operators spoke of."""

    now_ns: int | None
    ruled: bool


class PutsAway(Protocol):
    """An archive: the numbers of those of the runs that are durable there when this returns."""

    async def __call__(self, runs: Sequence[Past]) -> Sequence[int]: ...


class Operating(Protocol):
    """Has an operation performed where its home is decided, and waits for what it gives."""

    def __call__(self, name: str, body: dict[str, Value], /, *, home: str = "") -> Awaitable[Value]: ...


async def collect(
    operate: Operating,
    homes: Sequence[str],
    *,
    now_ns: int | None,
    dry_run: bool,
    by: str | None = None,
    ruled: bool = False,
    archive: PutsAway | None = None,
) -> dict[str, Value]:
    """Removes what is past its date, each of those who hold the `homes` what is theirs; `ruled`: only runs of which an
    operator said so. Whoever asked is kept among the diagnostics."""
    if not isinstance(now_ns, int | None):
        raise ValueRefused("now_ns is a whole number of nanoseconds since 1970")
    which: PastWhen = {"now_ns": now_ns, "ruled": ruled}
    if dry_run:
        return await _preview(operate, homes, which)
    removed = 0
    for home in homes:
        removed += await _remove_past(operate, home, which, archive)
    expired: list[Value] = []
    for home in homes if not ruled else ():
        before: int | None = None
        while before != 0:
            asked = {"step": "expired", "now_ns": now_ns, "before_no": before}
            found, before = await operate(COLLECT, asked, home=home)
            expired += found
    last = {"step": "sweep", "now_ns": now_ns, "expired": expired, "runs": removed, "by": by}
    done = {"runs": removed, "blobs": await operate(COLLECT, last), "freed": 0}
    while freed := await operate(COLLECT, {"step": "shrink", "rewrite": not ruled}):
        done["freed"] += freed
    return done if archive is None else {**done, "archived": removed}


async def _preview(operate: Operating, homes: Sequence[str], which: PastWhen) -> dict[str, Value]:
    found: Counter[tuple[str, str]] = Counter()
    for home in homes:
        for workflow, status, count in await operate(COLLECT, {"step": "count", **which}, home=home):
            found[workflow, status] += count
    workflows: dict[str, dict[str, int]] = {}
    for (workflow, status), count in sorted(found.items()):
        workflows.setdefault(workflow, {})[status] = count
    return {"runs": found.total(), "blobs": 0, "workflows": workflows}


async def _remove_past(operate: Operating, home: str, which: PastWhen, archive: PutsAway | None) -> int:
    """All runs of one home that are past their date."""
    removed, count = 0, COLLECT_PER_COMMIT
    while count >= COLLECT_PER_COMMIT:
        if archive is None:
            count = gone = await operate(COLLECT, {"step": "runs", **which}, home=home)
        else:
            past = [Past(*one) for one in await operate(COLLECT, {"step": "past", **which}, home=home)]
            count = len(past)
            kept = set(await archive(past)) if past else set()
            asked = {"step": "archived", "runs": [list(one) for one in past if one.no in kept]}
            gone = await operate(COLLECT, asked, home=home) if kept else 0
        removed += gone
        if not gone:
            break  # the rest was taken up again meanwhile, or cannot be archived
    return removed


def perform(desk: Desk, asked: dict[str, Value]) -> object:
    """One step of a collection, where the runs that it is about are decided."""
    match asked["step"]:
        case "take":
            return _take(desk, int(asked["every_ns"]))
        case "count":
            rows = _past(desk, asked, PREVIEW_MAX)
            counted = Counter((row.workflow, row.status) for row in rows)
            return [[workflow, status, count] for (workflow, status), count in sorted(counted.items())]
        case "past":
            return [[row.no, row.id, row.seq] for row in _past(desk, asked, COLLECT_PER_COMMIT)]
        case "runs":
            rows = _past(desk, asked, COLLECT_PER_COMMIT)
            for row in rows:
                remove_run(desk, row)
            return len(rows)
        case "archived":
            return _remove_archived(desk, [Past(*one) for one in asked["runs"]])
        case "expired":
            return _expired_some(desk, now_ns=asked["now_ns"], before_no=asked["before_no"])
        case "sweep":
            return _last(desk, asked)
        case "shrink":
            return desk.store.shrink(rewrite=bool(asked["rewrite"]))
        case step:
            raise Unsupported(f"no step {step!r} of a collection is known")


def _take(desk: Desk, every_ns: int) -> bool:
    """Whether it is whoever asks who collects now: one of all servers, once in a while, if there is anything to go by."""
    if not retention.said(desk.store):
        return False
    now, last = desk.clock.now_ns(), desk.store.document(TURN, COLLECT) or {}
    if 0 <= now - last.get("at_ns", -every_ns) < every_ns:
        return False
    desk.belongs("")
    desk.batch.documents.append((TURN, COLLECT, now, encode({"at_ns": now})))
    return True


def _past(desk: Desk, asked: dict[str, Value], limit: int) -> list[RunRow]:
    now = desk.clock.now_ns() if asked["now_ns"] is None else asked["now_ns"]
    rules = retention.rules(desk.store, now)
    return desk.store.retained(now, limit, desk.held.chosen, rules, stated=not asked["ruled"])


def _remove_archived(desk: Desk, runs: Sequence[Past]) -> int:
    """Removes those that are as they were when they were archived."""
    removed = 0
    for past in runs:
        row = desk.store.run_by_no(past.no)
        if row is not None and row.status in TERMINAL and row.seq == past.seq and desk.held.holds(row.id):
            remove_run(desk, row)
            removed += 1
    return removed


def _last(desk: Desk, asked: dict[str, Value]) -> int:
    """What belongs to no run that is removed: payloads, old answers, old lines."""
    desk.belongs("")
    # By the time that it is, whatever time the runs are collected for: somebody waits for the answer to this.
    now = min(desk.clock.now_ns(), 2**62 if asked["now_ns"] is None else asked["now_ns"])
    desk.batch.replies_until_ns = max(0, now - REPLIES_KEPT_NS)
    desk.batch.audit_until_ns = max(0, now - AUDIT_KEPT_NS)
    bulks.forget_old(desk, now)
    lines.forget_old(desk, now)
    dead_letters.forget_old(desk, now)
    removed = _sweep(desk, [(no, digest) for no, digest in asked["expired"]], now)
    if asked["by"] is not None:
        desk.diagnose("", "COLLECTED", {"by": asked["by"], "runs": asked["runs"], "blobs": removed})
    return removed


def _sweep(desk: Desk, expired: list[tuple[int, str]], now_ns: int) -> int:
    removed = desk.store.sweep(keep=desk.pinned(), expired=expired, loose_before_ns=now_ns - LOOSE_KEPT_NS)
    for _, digest in expired:
        desk.blobs.forget(digest)
    return removed


def _expired_some(desk: Desk, *, now_ns: int | None, before_no: int | None) -> list[Value]:
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


def _references(value: Value) -> Iterator[dict[str, Value]]:
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


def remove_run(desk: Desk, row: RunRow) -> None:
    """Removes a run that has ended. What it kept for ever is nobody's from now on: runs count from 1."""
    desk.hot.drop(row.id)
    for digest, lifetime in _lifetimes(desk, row).items():
        if lifetime == FOREVER_NS:
            desk.batch.blob_refs.append((NOBODY, digest))
    if desk.store.document(RETURNED, row.id) is not None:
        desk.batch.documents.append((RETURNED, row.id, desk.clock.now_ns(), None))
    desk.batch.runs_removed.append(row.no)
    desk.belongs(row.id)
