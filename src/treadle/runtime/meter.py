"""What a core counts as it goes: plain numbers, added up once a commit and only when it is durable.

Whoever shows them (`server/metrics.py`) reads them from another thread, between two additions. So each is a number
or a dictionary of numbers that only grows, and nothing here locks, formats or knows how it is shown. Labels are
bounded: a thousand names of workflows must not become a thousand series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from treadle.kernel.model import Receipt, Rejected

from .staging import Staged

NAMES_MAX: Final = 200
OTHER: Final = "other"
STARTED: Final = "started"

SHORT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
LATE_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0)
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Histogram:
    """How often a value fell into which bucket; the last bucket is everything beyond the bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class LabelNames:
    """Values of a label: the first of them are themselves, those that come later are all `other`."""

    def __init__(self, most: int = NAMES_MAX) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class CoreMeter:
    def __init__(self) -> None:
        self._workflows = LabelNames()
        self._kinds = LabelNames()
        # By workflow and what became of them: `started`, or the status of a run that ended or stalled.
        self.runs: Counter[tuple[str, str]] = Counter()
        # Intents that settled, by kind and status; how long they were open, by kind.
        self.steps: Counter[tuple[str, str]] = Counter()
        self.step_seconds: dict[str, Histogram] = {}
        self.records = 0
        self.commit_seconds = Histogram(SHORT_S)
        self.commit_records = Histogram(SIZES)
        # Commits that the store did not take, by the code of the error.
        self.commits_failed: Counter[str] = Counter()
        self.stale_receipts = 0
        self.timer_lag = Histogram(LATE_S)
        self.schedule_lag = Histogram(LATE_S)

    def committed(self, staged: Staged, seconds: float) -> None:
        """A commit is durable: whoever it started, settled and ended counts."""
        batch, records = staged.batch, len(staged.batch.records)
        self.commit_seconds.observe(seconds)
        self.commit_records.observe(records)
        self.records += records
        for turn in staged.turns:
            workflow = self._workflows.label(turn.workflow)
            if turn.seq == 1:
                self.runs[workflow, STARTED] += 1
            if turn.status is not None:
                self.runs[workflow, turn.status] += 1
        for close in staged.closed:
            kind = close.intent.kind
            if (open_for := self.step_seconds.get(kind)) is None:
                kind = self._kinds.label(kind)
                open_for = self.step_seconds.setdefault(kind, Histogram(LONG_S))
            self.steps[kind, close.status] += 1
            open_for.observe((close.at_ns - close.intent.at_ns) / 1e9)
            if kind == "timer" and close.status == "ok" and close.intent.due_ns is not None:
                self.timer_lag.observe(max(0, close.at_ns - close.intent.due_ns) / 1e9)
        for _, _, code, _ in batch.diagnostics:
            if code == "receipt.stale":
                self.stale_receipts += 1

    def refused(self, code: str) -> None:
        """The store did not take a commit."""
        self.commits_failed[code] += 1


def settled_as(event: object) -> str:
    """How an event settles the intent that it is about, in a word."""
    if type(event) is Receipt:
        return event.status
    return "rejected" if type(event) is Rejected else "ok"
