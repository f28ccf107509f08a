"""Collection of what is past its date: runs, payloads, answers that nobody came for, old lines of the audit.

What there is to collect is found beside the core (`finding.py`). It goes in small commits, so that nothing else waits long,
each where the runs are decided that it is about; and each makes sure first that what was found still is so: a run may have
been taken up again meanwhile, a payload handed to somebody. With an archive a run is removed only after it is there, and
only if it is still as it was when it was put there: cut between the two, the run is in both places, and the next
collection finds it in the archive and removes it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from treadle.kernel.errors import TreadleError, Unsupported, ValueRefused
from treadle.kernel.model import TERMINAL
from treadle.kernel.values import Value, encode
from treadle.store.ages import RETURNED
from treadle.store.loose import LOOSE_AT_ONCE
from treadle.store.run_rows import RunRow

from . import bulks, dead_letters, finding, lines, retention
from .commands import AUDIT_KEPT_NS, COLLECT
from .finding import Found, PastWhen, Pins
from .registry import Registry

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


T = TypeVar("T")

COLLECT_PER_COMMIT: Final = 200
# Runs of which one commit lets payloads go: some of them have to be loaded for it.
EXPIRED_PER_COMMIT: Final = 20
# Runs that a preview counts.
PREVIEW_MAX: Final = 1_000_000
# How long an answer waits for whoever asked from another process.
REPLIES_KEPT_NS: Final = 24 * 3_600 * 10**9
# How long a payload that nobody refers to waits for the receipt that will.
LOOSE_KEPT_NS: Final = 24 * 3_600 * 10**9
# How often loose payloads are looked for again because others were pinned meanwhile; the next collection finds the rest.
PINNED_ANEW_MAX: Final = 10
NOBODY: Final = 0
# What a digest begins with. A message that asks for the removal of payloads leaves it out: it is none that hands them over.
SHA256: Final = "sha256:"
# The document that says when servers last collected by themselves.
TURN: Final = "house"


class PutsAway(Protocol):
    """An archive: the numbers of those of the runs that are durable there when this returns."""

    async def __call__(self, runs: Sequence[Found]) -> Sequence[int]: ...


class Operating(Protocol):
    """Has an operation performed where its home is decided, and waits for what it gives."""

    def __call__(self, name: str, body: dict[str, Value], /, *, home: str = "") -> Awaitable[Value]: ...


class AsksBeside(Protocol):
    """Asks the store beside the core, with the definitions that are known there."""

    def __call__(self, question: Callable[[Reads, Registry], T], /) -> Awaitable[T]: ...


class Collection:
    """One collection, in the hands of whoever asked for it: `operate` reaches those who hold the `homes`, each removes what is
    theirs; `ruled`: only runs of which an operator said so; `now_ns` is an instant to collect for, `clock` tells the time."""

    def __init__(
        self,
        operate: Operating,
        read: AsksBeside,
        homes: Sequence[str],
        *,
        clock: Callable[[], int],
        now_ns: int | None,
        ruled: bool = False,
        pins: Callable[[], Pins] = lambda: finding.NO_PINS,
        per_commit: int = COLLECT_PER_COMMIT,
    ) -> None:
        if not isinstance(now_ns, int | None):
            raise ValueRefused("now_ns is a whole number of nanoseconds since 1970")
        self._operate, self._read, self._homes, self._clock = operate, read, homes, clock
        self._which: PastWhen = {"now_ns": now_ns, "ruled": ruled}
        self._pins = pins
        self._per_commit = per_commit

    async def collect(self, *, by: str | None = None, archive: PutsAway | None = None) -> dict[str, Value]:
        """Removes what is past its date. Whoever asked is kept among the diagnostics."""
        runs = await self._remove_past(archive)
        ruled = self._which["ruled"]
        if not ruled:
            await self._let_go()
        blobs = await self._remove_loose()
        last = {"step": "last", "now_ns": self._which["now_ns"], "runs": runs, "blobs": blobs, "by": by}
        await self._operate(COLLECT, last)
        done = {"runs": runs, "blobs": blobs, "freed": 0}
        while freed := await self._operate(COLLECT, {"step": "shrink", "rewrite": not ruled}):
            done["freed"] += freed
        return done if archive is None else {**done, "archived": runs}

    async def preview(self) -> dict[str, Value]:
        """How many runs there are to collect, by workflow and status."""
        now_ns, which = self._clock(), self._which

        def count(reads: Reads, registry: Registry) -> Counter[tuple[str, str]]:
            rows = finding.past_rows(reads, which, now_ns, PREVIEW_MAX)
            return Counter((row.workflow, row.status) for row in rows)

        found = await self._read(count)
        workflows: dict[str, dict[str, int]] = {}
        for (workflow, status), number in sorted(found.items()):
            workflows.setdefault(workflow, {})[status] = number
        return {"runs": found.total(), "blobs": 0, "workflows": workflows}

    async def _remove_past(self, archive: PutsAway | None) -> int:
        """All runs that are past their date."""
        removed, which = 0, self._which
        # Runs that were taken up again meanwhile, or that cannot be archived: those after them are not kept waiting.
        stay: set[int] = set()
        while True:
            limit = self._per_commit + len(stay)
            found = await self._read(partial(finding.past, which=which, now_ns=self._clock(), limit=limit))
            past = [run for run in found if run.no not in stay]
            kept = {run.no for run in past} if archive is None or not past else set(await archive(past))
            stay.update(run.no for run in past if run.no not in kept)
            past = [run for run in past if run.no in kept]
            gone = await self._of_each({"step": "runs", **which}, past)
            removed += gone
            if gone < len(past):
                stay.update(run.no for run in past)
            if len(found) < limit:
                return removed

    async def _let_go(self) -> None:
        """Payloads that are past their date, of runs that are not."""
        before: int | None = None
        while before != 0:
            now_ns = self._clock() if self._which["now_ns"] is None else self._which["now_ns"]
            asked = partial(finding.expired, now_ns=now_ns, before_no=before, limit=self._per_commit)
            found, before = await self._read(asked)
            for some in _slices(found, EXPIRED_PER_COMMIT):
                await self._of_each({"step": "expired"}, some)

    async def _of_each(self, asked: dict[str, Value], runs: Sequence[Found]) -> int:
        """One commit of everybody who decides some of these runs; of how many runs it was so still."""
        body = {**asked, "runs": [list(run) for run in runs]}
        return sum([await self._operate(COLLECT, body, home=home) for home in self._homes if runs])

    async def _remove_loose(self) -> int:
        """What belongs to no run: payloads, rows and files that somebody left."""
        orphans, files, files_at_once = await self._read(finding.strays)
        if orphans:
            await self._operate(COLLECT, {"step": "orphans", "found": orphans})
        now_ns = self._clock()
        # By the time that it is, whatever time the runs are collected for: somebody waits for the answer to this.
        before_ns = min(now_ns, now_ns if self._which["now_ns"] is None else self._which["now_ns"])
        before_ns = max(0, before_ns - LOOSE_KEPT_NS)
        removed, anew = 0, 0
        after: str | None = ""
        while after is not None and anew <= PINNED_ANEW_MAX:
            page = await self._read(partial(finding.loose, pins=self._pins, before_ns=before_ns, after=after))
            asked = {"step": "loose", "before_ns": before_ns, "pinned_by": page.pinned_by}
            for digests in _slices(page.digests, LOOSE_AT_ONCE):
                done = await self._operate(
                    COLLECT, {**asked, "digests": [one.removeprefix(SHA256) for one in digests]}
                )
                if done is None:
                    anew += 1
                    break
                removed += done[0]
                files += done[1]
            else:
                after = page.last
        for some in _slices(files, files_at_once):
            await self._operate(COLLECT, {"step": "files", "digests": some})
        return removed


def _slices(all: Sequence[T], size: int) -> Iterator[list[T]]:
    return (list(all[at : at + size]) for at in range(0, len(all), size))


def perform(desk: Desk, asked: dict[str, Value]) -> object:
    """One step of a collection, where the runs that it is about are decided."""
    match asked["step"]:
        case "take":
            return _take(desk, int(asked["every_ns"]))
        case "runs":
            return _remove(desk, asked)
        case "expired":
            return sum([_let_go(desk, Found(*one)) for one in asked["runs"]])
        case "orphans":
            desk.store.remove_orphans(asked["found"])
        case "loose":
            return _remove_loose(desk, asked)
        case "files":
            desk.store.remove_files(asked["digests"])
        case "last":
            _last(desk, asked)
        case "shrink":
            return desk.store.shrink(rewrite=bool(asked["rewrite"]))
        case step:
            raise Unsupported(f"no step {step!r} of a collection is known")
    return None


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


def _still(desk: Desk, found: Found, row: RunRow | None) -> bool:
    """Whether a run is as it was when it was looked at, and decided here."""
    as_it_was = row is not None and row.id == found.id and row.seq == found.seq and row.status in TERMINAL
    return as_it_was and desk.held.holds(found.id)


def _remove(desk: Desk, asked: dict[str, Value]) -> int:
    """Removes runs that are as they were, and still past their date: operators may have thought better of it."""
    found = {run.no: run for run in (Found(*one) for one in asked["runs"])}
    which: PastWhen = {"now_ns": asked["now_ns"], "ruled": asked["ruled"]}
    here = desk.held.chosen
    rows = finding.past_rows(desk.store, which, desk.clock.now_ns(), len(found), shards=here, among=found)
    due = [row for row in rows if _still(desk, found[row.no], row)]
    for row in due:
        _remove_run(desk, row, found[row.no].digests)
    return len(due)


def _let_go(desk: Desk, found: Found) -> bool:
    """A run that is as it was refers to some of its payloads no more."""
    row = desk.store.run_by_no(found.no)
    if row is None or not _still(desk, found, row) or not _stands_alone(desk, row):
        return False
    desk.belongs(row.id)
    desk.batch.blob_refs_done += [(found.no, digest) for digest in found.digests]
    for digest in found.digests:
        desk.blobs.forget(digest)
    return True


def _remove_loose(desk: Desk, asked: dict[str, Value]) -> list[Value] | None:
    """Those of these payloads that nobody refers to: how many, and which of them are files. None if others are pinned by
    now than when they were looked for."""
    if finding.pinning(desk.store, asked["pinned_by"]) != asked["pinned_by"]:
        return None
    before_ns = min(asked["before_ns"], max(0, desk.clock.now_ns() - LOOSE_KEPT_NS))
    return list(desk.store.remove_loose([SHA256 + one for one in asked["digests"]], before_ns))


def _last(desk: Desk, asked: dict[str, Value]) -> None:
    """What belongs to no run and is no payload: old answers, old lines."""
    desk.belongs("")
    now = min(desk.clock.now_ns(), 2**62 if asked["now_ns"] is None else asked["now_ns"])
    desk.batch.replies_until_ns = max(0, now - REPLIES_KEPT_NS)
    desk.batch.audit_until_ns = max(0, now - AUDIT_KEPT_NS)
    bulks.forget_old(desk, now)
    lines.forget_old(desk, now)
    dead_letters.forget_old(desk, now)
    if asked["by"] is not None:
        body = {"by": asked["by"], "runs": asked["runs"], "blobs": asked["blobs"]}
        desk.diagnose("", "COLLECTED", body)


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


def remove_run(desk: Desk, row: RunRow) -> None:
    """Removes a run that has ended."""
    _remove_run(desk, row, finding.lasting(desk.store, desk.registry, row))


def _remove_run(desk: Desk, row: RunRow, lasting: Sequence[str]) -> None:
    """What it kept for ever is nobody's from now on: runs count from 1."""
    desk.hot.drop(row.id)
    desk.batch.blob_refs += [(NOBODY, digest) for digest in lasting]
    if desk.store.document(RETURNED, row.id) is not None:
        desk.batch.documents.append((RETURNED, row.id, desk.clock.now_ns(), None))
    desk.batch.runs_removed.append(row.no)
    desk.belongs(row.id)
