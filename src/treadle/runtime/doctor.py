"""The doctor: is what the store holds what was written, and can its runs be decided?

It only reads, on a connection of its own, and never changes a schema: it works beside a running engine and
when no engine would start. Without `deep` it stops after a while and says how far it came; the newest runs
are looked at first.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import ENGINE_KINDS, TERMINAL
from treadle.lang.duration import instant_text
from treadle.store.run_rows import RunRow

from .document import records
from .hot import BlobCache, load_state
from .registry import Registry
from .stuck import why_stuck
from .undecided import is_lasting

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


PAGE: Final = 200
SHOWN_MAX: Final = 100
# A clock that is further from the store's is told of.
SKEW_NS_MAX: Final = 2 * 10**9

Tell = Callable[[dict[str, int]], None]


class Finding(TypedDict):
    """What is not as it should be, and what to do about it."""

    what: str
    id: str
    message: str
    remedy: str


class Damage(Finding):
    """What is not what was written, or cannot be read."""

    code: str


class OpenLong(TypedDict):
    """Work that is not finished, long after it was asked for."""

    run: str
    workflow: str
    step: str
    kind: str
    since: str
    seconds: int


class Examination(TypedDict):
    """What the doctor says: in words, and one by one."""

    ok: bool
    problems: list[str]
    damaged: list[Damage]
    findings: list[Finding]
    open_long: list[OpenLong]
    # How much was looked at, and whether that is `all` there is.
    checked: dict[str, int]


class DoctorPace(msgspec.Struct, frozen=True, kw_only=True):
    """How long the doctor takes, and what counts as long."""

    # For a look that is not deep.
    budget_s: float = 10.0
    # How often whoever waits is told how far it came.
    tell_s: float = 0.2
    # Work that is open for so long is told of: nobody may be at it, or it hangs.
    open_long_s: float = 600.0


PACE: Final = DoctorPace()


class _Report:
    def __init__(self, deep: bool, tell: Tell | None, pace: DoctorPace) -> None:
        self._tell, self._tell_s, self._told = tell, pace.tell_s, time.monotonic()
        self.until = None if deep else time.monotonic() + pace.budget_s
        self.damaged: list[Damage] = []
        # What is no damage, and does not go away by itself.
        self.findings: list[Finding] = []
        self.checked = {"definitions": 0, "runs": 0, "records": 0, "payloads": 0}
        self.partial = False
        self.current = True

    def tired(self) -> bool:
        if self._tell is not None and time.monotonic() - self._told >= self._tell_s:
            self._told = time.monotonic()
            self._tell(dict(self.checked))
        self.partial = self.partial or (self.until is not None and time.monotonic() > self.until)
        return self.partial

    def find(self, what: str, id: str, message: str, remedy: str) -> None:
        if len(self.findings) < SHOWN_MAX:
            self.findings.append({"what": what, "id": id, "message": message, "remedy": remedy})

    def add(self, what: str, id: str, error: TreadleError, remedy: str) -> None:
        if len(self.damaged) < SHOWN_MAX:
            self.damaged.append(
                {"what": what, "id": id, "code": error.code, "message": error.message, "remedy": remedy}
            )


def examine(
    reads: Reads,
    registry: Registry,
    *,
    deep: bool = False,
    tell: Tell | None = None,
    current: bool = True,
    pace: DoctorPace = PACE,
) -> Examination:
    """`problems` in words, `damaged` and other `findings` one by one with what to do, work that is `open_long`, and how much was
    `checked`. `tell` hears now and then how far it came."""
    problems = reads.check()
    report = _Report(deep, tell, pace)
    report.current = current
    _clock(reads, report)
    if current:  # an earlier schema has not all of the tables
        _orphans(reads, report)
    _definitions(reads, report)
    _payloads(reads, report, deep)
    _runs(reads, registry, report)
    problems += [
        f"{found['what']} {found['id']}: {found['message']}" for found in (*report.damaged, *report.findings)
    ]
    return {
        "ok": not problems,
        "problems": problems,
        "damaged": report.damaged,
        "findings": report.findings,
        "open_long": _open_long(reads, registry, pace.open_long_s),
        "checked": {**report.checked, "all": not report.partial},
    }


def skew_ns(reads: Reads) -> int:
    """How far this machine's clock is ahead of the store's; half of the way there and back is not known."""
    before = time.time_ns()
    store = reads.now_ns()
    return (before + time.time_ns()) // 2 - store


def _clock(reads: Reads, report: _Report) -> None:
    """Timers, schedules and tokens go by this machine's clock, leases by the store's."""
    ahead_ns = skew_ns(reads)
    if abs(ahead_ns) > SKEW_NS_MAX:
        told = f"{abs(ahead_ns) / 1e9:.1f} s {'ahead of' if ahead_ns > 0 else 'behind'} the store's clock"
        report.find("clock", socket.gethostname(), told, "set both by the same time servers (chrony, NTP)")


def _orphans(reads: Reads, report: _Report) -> None:
    for table, runs in reads.orphans().items():
        told = f"{len(runs)} runs that are gone still have rows here"
        report.find("table", table, told, "treadle gc removes them")


def _open_long(reads: Reads, registry: Registry, open_long_s: float) -> list[OpenLong]:
    """Work that was handed out, or should have been, long ago and is not finished; the oldest first."""
    now_ns, found = time.time_ns(), []
    for row in reads.working(after_no=0, limit=PAGE):
        try:
            opened = load_state(row, reads, registry, BlobCache(reads)).open.values()
        except TreadleError:
            continue  # it is among the damaged
        for intent in opened:
            if intent.kind not in ENGINE_KINDS and now_ns - intent.at_ns >= open_long_s * 10**9:
                found.append((intent.at_ns, row, intent))
    found.sort(key=lambda one: one[0])
    return [
        {
            "run": row.id,
            "workflow": row.workflow,
            "step": intent.name,
            "kind": intent.kind,
            "since": instant_text(at_ns),
            "seconds": (now_ns - at_ns) // 10**9,
        }
        for at_ns, row, intent in found[:SHOWN_MAX]
    ]


def _definitions(reads: Reads, report: _Report) -> None:
    for version in reads.versions():
        report.checked["definitions"] += 1
        try:
            reads.definition(version.digest)
        except TreadleError as error:
            report.add("definition", f"{version.name}@{version.version}", error, "deploy its file again")


def _payloads(reads: Reads, report: _Report, deep: bool) -> None:
    """Whether the payloads are there and as large as they were; `deep` also reads them."""
    after = ""
    while (page := reads.payloads(after, PAGE)) and not report.tired():
        for digest, size in page:
            after = digest
            report.checked["payloads"] += 1
            try:
                if deep:
                    reads.blob(digest)
                else:
                    reads.check_payload(digest, size)
            except TreadleError as error:
                report.add("payload", digest, error, "restore its file from a backup")


def _runs(reads: Reads, registry: Registry, report: _Report) -> None:
    before: int | None = None
    while not report.tired() and (page := reads.runs(before_no=before, limit=PAGE)):
        for row in page:
            before = row.no
            if report.tired():
                return
            report.checked["runs"] += 1
            try:
                _run(reads, registry, row, report)
            except TreadleError as error:
                if is_lasting(error) and error.code != "BLOB_MISSING":
                    end = "look at it; it has ended" if row.status in TERMINAL else f"treadle cancel {row.id}"
                    report.add(
                        "run", row.id, error, f"{end}, or treadle fork {row.id} --at N before the fault"
                    )


def _run(reads: Reads, registry: Registry, row: RunRow, report: _Report) -> None:
    """Every record against the chain, every snapshot against its digest; an unfinished run is decided."""
    for _ in records(reads, row):
        report.checked["records"] += 1
    for seq in reads.snapshot_seqs(row.no):
        reads.snapshot(row.no, until_seq=seq)
    if row.status in TERMINAL:
        return
    state = load_state(row, reads, registry, BlobCache(reads))
    why = why_stuck(reads, registry, row, state) if report.current else None
    # Somebody may have gone on with it between one question and the next.
    if why is not None and load_state(row, reads, registry, BlobCache(reads)).seq == state.seq:
        remedy = f"treadle fork {row.id} opens it anew in a run of its own; then treadle cancel {row.id}"
        report.find("run", row.id, why, remedy)
