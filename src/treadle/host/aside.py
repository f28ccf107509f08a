"""Threads beside the event loop and the core's, and what becomes of an engine that has none: the operating system gives it none, or it is
a child made by fork(), whose threads are its parent's."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from treadle.kernel.errors import Unsupported


class Threaded(Protocol):
    def be_forked(self) -> None: ...


# What has threads of its own in this process, and is told in a child that it has none.
OPENED: Final[weakref.WeakSet[Threaded]] = weakref.WeakSet()


def _leave_behind() -> None:
    for opened in list(OPENED):
        opened.be_forked()


os.register_at_fork(after_in_child=_leave_behind)


async def aside(work: Callable[[], None]) -> None:
    """Waits for something off the loop; on it where the operating system gives no thread for that."""
    try:
        await asyncio.to_thread(work)
    except RuntimeError:
        work()


def beside(work: Callable[[], None]) -> None:
    """Does something on a thread of its own, which nobody waits for: it may never end."""
    try:
        threading.Thread(target=work, name="treadle-beside", daemon=True).start()
    except RuntimeError:
        work()


@contextmanager
def threads_given() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Unsupported(
            f"the engine cannot start its threads ({error}); raise the limit of memory (ulimit -v) or of "
            "processes (ulimit -u)",
            code="NO_THREADS",
        ) from error
