"""Which plain steps are quick. It decides where they are called, and nothing else: never what is recorded.

A `def` may compute for a microsecond or wait for a network for a minute, and its author need not say which. The first
call of each gets a thread of its own, beside the event loop. One that was quick is called by the worker's lane the next
time, whose few threads take one call after the other; one that took long gets a thread of its own again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# Making a thread, and the way to it and back, takes a good part of this on a busy machine.
QUICK_S: Final = 0.005


class StepPace:
    """Any thread may call anything here."""

    def __init__(self) -> None:
        self._quick: set[str] = set()

    def is_quick(self, step: str) -> bool:
        return step in self._quick

    def timed(self, step: str, call: Callable[[], T]) -> T:
        """Calls; how long it takes is noted, whatever becomes of it."""
        begun = time.monotonic()
        try:
            return call()
        finally:
            if time.monotonic() - begun < QUICK_S:
                self._quick.add(step)
            else:
                self._quick.discard(step)
