"""Where an engine is at home: the process that opened it, and the event loop on which that was.

Nothing of an open engine goes along with a fork: a child made by fork() has none of its parent's threads.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from treadle.kernel.errors import Unsupported

T = TypeVar("T")


class HomeLoop:
    def __init__(self) -> None:
        # Whether this is a child forked from the process that opened the engine: it has none of its threads.
        self.is_forked = False
        self.is_open = False
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> asyncio.AbstractEventLoop:
        """From now on the engine answers on the loop that this is called from, and on no other."""
        self.check_process()
        if self.is_open:
            raise Unsupported("this engine is open already; use it inside its one `async with`")
        self.is_open = True
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        _OPENED.add(self)
        return self._loop

    def close(self) -> None:
        self.is_open = False
        _OPENED.discard(self)

    def check_process(self) -> None:
        if self.is_forked:
            raise Unsupported(
                f"this engine was opened by process {self._pid}, and a forked child has none of its threads; "
                "open an engine of the child's own",
                code="ENGINE_FORKED",
            )

    def check(self) -> asyncio.AbstractEventLoop:
        """The loop we are called from, which must be the one that opened the engine."""
        if self.is_forked:
            self.check_process()
        loop = asyncio.get_running_loop()
        if self.is_open and loop is not self._loop:
            raise Unsupported(
                "this engine was opened on another event loop, and answers only there; "
                "open one on this loop, or use treadle.sync.Engine, which any thread may call",
                code="ENGINE_ELSEWHERE",
            )
        return loop

    def hop(self, call: Callable[[T], None], argument: T) -> None:
        """From any thread: has something done on the loop."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closing: nobody is left to be told
                self._loop.call_soon_threadsafe(call, argument)


# Those of engines that are open in this process; in a child they are told that it is not theirs.
_OPENED: Final[weakref.WeakSet[HomeLoop]] = weakref.WeakSet()


def _leave_behind() -> None:
    for opened in list(_OPENED):
        opened.is_forked = True


os.register_at_fork(after_in_child=_leave_behind)
