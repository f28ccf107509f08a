"""How soon threads take the interpreter from each other.

A thread that computes keeps Python's interpreter for a while (5 ms, if nobody has said otherwise) before another gets it. Beside
a tool that computes without pause, each commit of a run that goes step by step waits so long: then it is worth
much to ask for it sooner. But where all threads are ours and there is enough to do, to and fro costs a sixth of the time and
brings nothing. So it is seen from the commits: those that take long and hold little ask for haste; after a while it is
tried without.
"""

from __future__ import annotations

import sys
from typing import Final

from treadle.runtime.meter import CoreMeter

HASTY_S: Final = 0.0005
# Commits that take longer, each, wait for more than a quick disk; and hold so little that they wait again soon.
SLOW_S: Final = 0.0025
FEW_RECORDS: Final = 8
# How often it is looked whether haste is wanted, and after how many looks it is tried without.
LOOK_S: Final = 0.025
TRIED_AFTER: Final = 80


class Haste:
    """Called by whoever turns the core, so by one thread at a time."""

    def __init__(self, meter: CoreMeter) -> None:
        self._meter = meter
        self._seen = self._counted()
        # What the program had; None where we have not changed it.
        self._before: float | None = None
        self._left = 0

    def look(self) -> None:
        if self._left:
            self._left -= 1
            if not self._left:
                self.end()
            return
        seen, self._seen = self._seen, self._counted()
        commits, records, seconds = (now - then for now, then in zip(self._seen, seen, strict=True))
        if commits and seconds > SLOW_S * commits and records < FEW_RECORDS * commits:
            self._hurry()

    def _counted(self) -> tuple[int, int, float]:
        taken = self._meter.commit_seconds
        return sum(taken.counts), self._meter.records, taken.sum

    def _hurry(self) -> None:
        before = sys.getswitchinterval()
        if before > HASTY_S:
            self._before, self._left = before, TRIED_AFTER
            sys.setswitchinterval(HASTY_S)

    def end(self) -> None:
        """The program has it again as it was."""
        before, self._before, self._left = self._before, None, 0
        self._seen = self._counted()
        if before is not None:
            sys.setswitchinterval(before)
