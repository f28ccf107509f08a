"""Ctrl-C: the first stops what a command does, in order. Who presses it again wants out: the process ends there and
then, as if it had been killed, which costs nothing that was acknowledged. Left to asyncio, the second one is raised in the
middle of the clean-up of the first, and people see a traceback."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType

from .output import EXIT_INTERRUPTED


class Interrupts:
    """Around `asyncio.run`, whose way to stop the first one is; `told` is what people are left with."""

    def __init__(self, told: Callable[[], str]) -> None:
        self._told = told
        self._pressed = False

    def __enter__(self) -> Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ValueError):
            signal.signal(signal.SIGINT, self._before)

    def begin(self) -> None:
        """Inside the loop. On another thread than the main one nobody is asked."""
        first = signal.getsignal(signal.SIGINT)

        def stop(number: int, frame: FrameType | None) -> None:
            if self._pressed or not callable(first):
                os.write(2, f"\n{self._told()}\n".encode())
                os._exit(EXIT_INTERRUPTED)
            self._pressed = True
            first(number, frame)

        with suppress(ValueError):
            signal.signal(signal.SIGINT, stop)
