"""How soon threads take the interpreter from each other.

A thread that computes keeps Python's interpreter for a while (5 ms, if nobody has said otherwise) before another gets it. Beside
a tool that computes without pause, each commit waits so long: then it is worth much to ask for it sooner. But where all threads are
ours and there is enough to do, to and fro costs a sixth of the time and more, and brings nothing. Commits that take long and hold
little, or take long while somebody else computes, are a reason to try it; nobody can tell from outside whose work it is that a thread of
ours does. So what is got done is counted, before and under haste: it stays only where that is more, and after a while it is tried without.
"""

from __future__ import annotations

import sys
import threading
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
# So many looks at what is done without haste come before it, and so many at what is done with it; that must be so much more.
CALM_LOOKS: Final = 2
TRIAL_LOOKS: Final = 8
WORTH: Final = 1.15
# Where it was not, it is tried again after so many looks, and after twice as many each time.
RESTS: Final = (80, 320)


class Threads:
    """The CPU time of all threads of this process but those that are known as the house's own."""

    def __init__(self) -> None:
        self._clocks: list[int] = []

    def begin(self) -> None:
        """Of the house's own there is only the thread that calls."""
        self._clocks = []
        self.join()

    def join(self) -> None:
        """The thread that calls is one of the house's own. It asks for its own clock: that of a thread which has ended
        meanwhile must not be asked for."""
        if sys.platform == "linux":
            self._clocks.append(time.pthread_getcpuclockid(threading.get_ident()))

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
        # Looks until haste ends; what was done a second before it, until it is known whether it is worth it.
        self._left = 0
        self._calm_pace: float | None = None
        # Looks at which something was committed, and how much in how long: without haste, or in its trial.
        self._looks, self._records, self._seconds = 0, 0.0, 0.0
        # Looks until it may be tried again, and how long the next such rest is.
        self._resting, self._rest = 0, RESTS[0]
        self._crowded = False

    def is_crowded(self) -> bool:
        """Whether commits take long because somebody else computes."""
        return self._crowded

    def look(self) -> None:
        seen, self._seen = self._seen, self._counted()
        since = [now - then for now, then in zip(self._seen, seen, strict=True)]
        commits, records, seconds, others_s, passed_s = since
        if commits:
            self._looks += 1
            self._records += records
            self._seconds += passed_s
        if self._left:
            self._under_haste()
            return
        self._resting = max(0, self._resting - 1)
        is_slow = seconds > SLOW_S * commits  # not where there were none
        self._crowded = is_slow and others_s > OTHERS_SHARE * passed_s
        wanted = self._crowded or (is_slow and records < FEW_RECORDS * commits)
        if not wanted:
            self._count_anew()
        elif self._looks >= CALM_LOOKS and not self._resting:
            self._hurry()

    def _under_haste(self) -> None:
        self._left -= 1
        if self._calm_pace is not None and self._looks >= TRIAL_LOOKS:
            is_worth_it = self._pace() > WORTH * self._calm_pace
            self._calm_pace = None
            if is_worth_it:
                self._rest = RESTS[0]
            else:
                self._resting, self._rest = self._rest, min(2 * self._rest, RESTS[1])
                self._left = 0
        if not self._left:
            self.end()

    def _counted(self) -> tuple[float, ...]:
        taken = self._meter.commit_seconds
        return sum(taken.counts), self._meter.records, taken.sum, self._others_s(), self._monotonic()

    def _pace(self) -> float:
        return self._records / self._seconds if self._seconds > 0 else 0.0

    def _count_anew(self) -> None:
        self._looks, self._records, self._seconds = 0, 0.0, 0.0

    def _hurry(self) -> None:
        before = sys.getswitchinterval()
        if before > HASTY_S:
            self._before, self._left, self._calm_pace = before, TRIED_AFTER, self._pace()
            self._count_anew()
            sys.setswitchinterval(HASTY_S)

    def end(self) -> None:
        """The program has it again as it was."""
        before, self._before, self._left, self._crowded = self._before, None, 0, False
        self._calm_pace = None
        self._count_anew()
        self._seen = self._counted()
        if before is not None:
            sys.setswitchinterval(before)
