"""How soon threads take the interpreter from each other.

A thread that computes keeps Python's interpreter for a while (5 ms, if nobody has said otherwise) before another gets it. Beside
a tool that computes without pause, each commit waits so long: then it is worth much to ask for it sooner. But where all threads are
ours and there is enough to do, to and fro costs a sixth of the time and brings nothing. So it is seen from the commits, and
from who computes: those that take long ask for haste if they hold little, or if somebody else takes much of the time. After a while
it is tried without.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from treadle.runtime.meter import CoreMeter

HASTY_S: Final = 0.0002
# Commits that take longer, each, wait for more than a quick disk; and hold so little that they wait again soon.
SLOW_S: Final = 0.0025
FEW_RECORDS: Final = 8
# What of the time others may compute: workers' quick functions take less than half of this.
OTHERS_SHARE: Final = 0.4
# How often it is looked whether haste is wanted, and after how many looks it is tried without.
LOOK_S: Final = 0.025
TRIED_AFTER: Final = 80


class Threads:
    """The CPU time of all threads of this process but those that are known as the house's own."""

    def __init__(self) -> None:
        self._clocks: list[int] = []

    def know(self, *threads: int | None) -> None:
        self._clocks = []
        if sys.platform == "linux":
            self._clocks = [time.pthread_getcpuclockid(thread) for thread in threads if thread is not None]

    def others_s(self) -> float:
        if not self._clocks:
            return 0.0  # it cannot be told apart here
        own = 0.0
        with suppress(OSError):  # one of them has ended
            for clock in self._clocks:
                own += time.clock_gettime(clock)
        return time.process_time() - own


class Haste:
    """Called by whoever turns the core, so by one thread at a time. `others_s` is how long others have computed so far."""

    def __init__(
        self,
        meter: CoreMeter,
        others_s: Callable[[], float] = lambda: 0.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter = meter
        self._others_s = others_s
        self._monotonic = monotonic
        self._seen = self._counted()
        # What the program had; None where we have not changed it.
        self._before: float | None = None
        self._left = 0
        self._crowded = False

    def is_crowded(self) -> bool:
        """Whether commits take long because somebody else computes."""
        return self._crowded

    def look(self) -> None:
        if self._left:
            self._left -= 1
            if not self._left:
                self.end()
            return
        seen, self._seen = self._seen, self._counted()
        since = [now - then for now, then in zip(self._seen, seen, strict=True)]
        commits, records, seconds, others_s, passed_s = since
        is_slow = seconds > SLOW_S * commits  # not where there were none
        self._crowded = is_slow and others_s > OTHERS_SHARE * passed_s
        if self._crowded or (is_slow and records < FEW_RECORDS * commits):
            self._hurry()

    def _counted(self) -> tuple[float, ...]:
        taken = self._meter.commit_seconds
        return sum(taken.counts), self._meter.records, taken.sum, self._others_s(), self._monotonic()

    def _hurry(self) -> None:
        before = sys.getswitchinterval()
        if before > HASTY_S:
            self._before, self._left = before, TRIED_AFTER
            sys.setswitchinterval(HASTY_S)

    def end(self) -> None:
        """The program has it again as it was."""
        before, self._before, self._left, self._crowded = self._before, None, 0, False
        self._seen = self._counted()
        if before is not None:
            sys.setswitchinterval(before)
