"""Follows the journal of a store and tells a collector of it, on a thread of its own.

One process does it for a store: whoever decides what belongs to the whole of it. How far it is, is a row of the store,
written after the collector has what comes before. So a crash, or another process that goes on, tells some spans a second
time, under the same ids; none is missing. What is kept in memory is bounded: one page of records, and the runs that
moved last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from treadle.kernel.errors import TreadleError
from treadle.kernel.history import restore
from treadle.kernel.tracing import TraceIds
from treadle.kernel.values import Value
from treadle.store.marks import FollowedRecord, Mark

from .otlp import Otlp
from .spans import Attribute, Measured, RunTrace, Span

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


log = logging.getLogger("treadle.telemetry")
T = TypeVar("T")

POLL_S: Final = 0.5
SAVE_S: Final = 2.0
# How long the end of an engine waits for the collector.
FLUSH_S: Final = 5.0
PAGE: Final = 400
RUNS_MAX: Final = 2_048
# A longer journal is not read from its beginning, but from its last snapshot.
RECORDS_MAX: Final = 5_000
MARKS_MAX: Final = 16


class FollowedStore(Protocol):
    """The store, as a follower needs it. Called on the follower's thread."""

    def is_ours(self) -> bool:
        """Whether what belongs to the whole store is decided here."""
        ...

    def read(self, question: Callable[[Reads], T]) -> T: ...

    def saved(self) -> Value | None: ...

    def save(self, body: dict[str, Value]) -> None: ...


class Follower:
    def __init__(
        self,
        store: FollowedStore,
        otlp: Otlp,
        ids: Callable[[], TraceIds],
        measured_by: Callable[[str], Measured],
        *,
        runs_max: int = RUNS_MAX,
        records_max: int = RECORDS_MAX,
    ) -> None:
        self._store = store
        self._otlp = otlp
        self._ids = ids
        self._measured_by = measured_by
        self._runs_max = runs_max
        self._records_max = records_max
        # The newest first; empty while somebody else follows.
        self._marks: list[Mark] = []
        self._unsaved = False
        self._saved_s = 0.0
        self._runs: OrderedDict[int, RunTrace] = OrderedDict()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="treadle-traces", daemon=True)

    def start(self) -> None:
        """What is committed after this is told, if the store answers; else from when it does."""
        try:
            self._is_following()
        except TreadleError as error:
            self._say(error)
        self._thread.start()

    def stop(self) -> None:
        """Tells what is there, if the collector answers."""
        self._stopping.set()
        self._otlp.stop_within(FLUSH_S, self._thread)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            begun, moved = time.monotonic(), False
            try:
                moved = self._is_following() and self._turn(once=False)
            except Exception as error:
                # The store does not answer now, or is somebody else's: what was saved holds.
                self._say(error)
                self._forget()
            # Runs come first: under load it takes half of the time at most, and catches up when there is more.
            self._stopping.wait(min(POLL_S, time.monotonic() - begun) if moved else POLL_S)
        try:
            while self._is_following() and self._turn(once=True):
                pass
            self._save(now=True)
        except Exception as error:
            self._say(error)

    def _say(self, error: Exception) -> None:
        level = logging.DEBUG if isinstance(error, TreadleError) else logging.ERROR
        log.log(level, "traces are not told for a moment: %s", error, exc_info=level == logging.ERROR)

    def _is_following(self) -> bool:
        if not self._store.is_ours():
            self._forget()
        elif not self._marks:
            saved: Any = self._store.saved()
            if saved is not None:
                self._marks = [Mark(*mark) for mark in saved["marks"]]
            else:
                self._marks, self._unsaved = [self._store.read(lambda reads: reads.last_mark())], True
                self._save(now=True)
        return bool(self._marks)

    def _forget(self) -> None:
        self._marks, self._unsaved = [], False
        self._runs.clear()

    def _turn(self, *, once: bool) -> bool:
        """Tells one page; whether there may be more."""
        try:
            mark, spans = self._store.read(self._read)
        except BaseException:
            self._runs.clear()  # some have read records that will be read again
            raise
        if mark is None:
            self._save()
            return False
        if spans and not self._otlp.deliver(spans, once=once):
            self._runs.clear()
            return False
        self._marks = [mark, *self._marks][:MARKS_MAX]
        self._unsaved = True
        self._save()
        return True

    def _save(self, *, now: bool = False) -> None:
        if self._unsaved and (now or time.monotonic() - self._saved_s >= SAVE_S):
            self._store.save({"marks": [list(mark) for mark in self._marks]})
            self._unsaved, self._saved_s = False, time.monotonic()

    # --- from records to spans ---

    def _read(self, reads: Reads) -> tuple[Mark | None, list[Span]]:
        page = reads.follow(self._marks, PAGE)
        spans: list[Span] = []
        for followed in page:
            try:
                spans += self._spans(reads, followed)
            except TreadleError:
                raise
            except Exception:
                self._runs.pop(followed.mark.run, None)
                log.exception("record %d of run number %d has no span", followed.mark.seq, followed.mark.run)
        return (page[-1].mark if page else None), spans

    def _spans(self, reads: Reads, followed: FollowedRecord) -> list[Span]:
        no, seq = followed.mark.run, followed.mark.seq
        trace = self._runs.get(no)
        if trace is None or trace.seq != seq - 1:
            trace = self._found(reads, no, seq)
            if trace is None:
                return []  # it is deleted already
            self._runs[no] = trace
        self._runs.move_to_end(no)
        while len(self._runs) > self._runs_max:
            self._runs.popitem(last=False)
        return trace.read(followed.stored.record())

    def _found(self, reads: Reads, no: int, seq: int) -> RunTrace | None:
        """A run as it was before a record."""
        row = reads.run_by_no(no)
        if row is None:
            return None
        trace = RunTrace(self._ids(), row, self._measured_by(row.dialect))
        if seq > self._records_max and (kept := reads.snapshot(no, until_seq=seq - 1)) is not None:
            trace.restore(restore(kept[1]))
        while trace.seq < seq - 1:
            before = trace.seq
            for stored in reads.journal(no, after_seq=before, until_seq=min(before + PAGE, seq - 1)):
                trace.read(stored.record())
            if trace.seq == before:
                return None
        return trace


def nothing_measured(kind: str, params: Any, value: Any) -> dict[str, Attribute]:
    """Of a dialect that is not here."""
    return {}
