"""The lane of plain functions: threads that work, and what becomes of those that hang.

A thread cannot be killed and a function may take for ever, so the lane counts threads that are free,
not threads that are there: while none is, one more is started, up to `threads` at once and then, when
nothing has moved for a moment, slowly up to `threads_max`. A thread whose work was settled without it
(cancelled, out of time) is given up: it leaves the lane at once, and ends when its function does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from treadle.runtime.ports import Work

if TYPE_CHECKING:
    from treadle.bus.protocol import NearSide


FUNCTIONS: Final = "functions"

log = logging.getLogger("treadle.worker")

# Beside the threads that work: functions that hang, each with a thread nobody can end.
GIVEN_UP_MAX: Final = 256
# How long work waits for a thread before the lane grows beyond its usual size.
STUCK_S: Final = 0.05


class LaneThread:
    """One thread of the lane."""

    thread: threading.Thread

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: Work | None = None
        self.since_s = 0.0
        self.given_up = False


class Lane:
    """`serve(work)` does one piece of work; it must not raise. A thread that was woken goes on until nothing waits, and
    wakes another while something does. Any thread may call anything here."""

    def __init__(
        self, bus: NearSide, serve: Callable[[Work], None], *, threads: int, threads_max: int
    ) -> None:
        self._bus = bus
        self.threads_max = threads_max
        self._serve = serve
        self._usual = threads
        self._members: dict[str, LaneThread] = {}
        self._given_up: set[LaneThread] = set()
        self._idle = 0
        self._made = 0
        # How much has been finished: a lane that does not move is stuck.
        self._finished = 0
        self._seen = (-1, 0.0)
        self._closed = False
        self._leaving = False
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._lock = threading.Lock()

    # --- work comes ---

    @property
    def waiting(self) -> int:
        return self._bus.waiting_in(FUNCTIONS)

    def wake(self) -> bool:
        """New work is there. Whether some waits that no free thread will take."""
        waiting = self.waiting
        with self._lock:
            while self._idle < waiting and len(self._members) < self._usual and self._add():
                continue
        # One is woken in any case: threads that are at work go on with what waits, but the last of them may just now have
        # found nothing. It wakes the next one (`_work`).
        self._tokens.put(True)
        return waiting > self._idle

    def tend(self) -> float | None:
        """Lets a lane grow in which nothing moves. For how long it has not moved; None if it does."""
        with self._lock:
            if self.waiting <= self._idle:
                self._seen = (-1, 0.0)
                return None
            finished, since = self._seen
            now = time.monotonic()
            if finished != self._finished:
                self._seen = (self._finished, now)
                return 0.0
            if now - since >= STUCK_S and self._add():
                self._tokens.put(True)
            return now - since

    def _add(self) -> bool:
        """Under the lock. One more thread, if there may be one."""
        if self._closed or len(self._members) >= self.threads_max or len(self._given_up) >= GIVEN_UP_MAX:
            return False
        member = LaneThread(f"treadle-worker-{self._made}")
        member.thread = threading.Thread(target=self._live, args=(member,), name=member.name, daemon=True)
        self._made += 1
        self._members[member.name] = member
        self._idle += 1
        try:
            member.thread.start()
        except RuntimeError as error:  # the system has no thread left; those that are there go on
            del self._members[member.name]
            self._idle -= 1
            log.warning("no further thread can be started: %s", error)
            return False
        return True

    # --- a thread's life ---

    def _live(self, member: LaneThread) -> None:
        try:
            while not member.given_up and self._tokens.get():
                with self._lock:
                    self._idle -= 1
                try:
                    self._work(member)
                finally:
                    with self._lock:
                        self._idle += 1
        finally:
            self._leave(member)

    def _work(self, member: LaneThread) -> None:
        while not member.given_up and not self._leaving:
            if not (works := self._bus.take_here(FUNCTIONS, 1)):
                return
            if self._idle and self._tokens.empty() and self.waiting:
                # Before we begin, for it may take long. Where it does not, we have done all before others are awake: a
                # crowd of them would only take the interpreter from each other.
                self._tokens.put(True)
            member.since_s = time.monotonic()
            (member.work,) = works
            try:
                # Asked once `revoke` finds it here: what was revoked before that is not begun.
                if self._bus.is_held(works[0].intent.id):
                    self._serve(works[0])
            finally:
                member.work = None
                self._finished += 1

    def _leave(self, member: LaneThread) -> None:
        with self._lock:
            self._members.pop(member.name, None)
            self._given_up.discard(member)
            self._idle -= 1
        if not self._closed and self.waiting:
            self.wake()

    # --- work goes ---

    def revoke(self, intent: str) -> None:
        """The intent is settled: who still works on it is given up, and need not be waited for."""
        with self._lock:
            for member in list(self._members.values()):
                if (work := member.work) is not None and work.intent.id == intent:
                    member.given_up = True
                    del self._members[member.name]
                    self._given_up.add(member)
        if self.waiting:
            self.wake()

    @property
    def busy(self) -> list[tuple[Work, float]]:
        """What the threads have in hand, and for how many seconds, the longest first."""
        now = time.monotonic()
        held = [(m.work, now - m.since_s) for m in list(self._members.values()) if m.work is not None]
        return sorted(held, key=lambda pair: -pair[1])

    @property
    def given_up(self) -> int:
        return len(self._given_up)

    def take_no_more(self) -> None:
        self._leaving = True

    def close(self) -> list[threading.Thread]:
        """Tells every thread to end after what it has in hand; those that will."""
        with self._lock:
            self._closed = True
            members, self._members = list(self._members.values()), {}
        for member in members:
            member.given_up = True
            self._tokens.put(False)
        return [member.thread for member in members]
