"""Threads beside the event loop and the core's, and what becomes of an engine to which the operating system gives none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from treadle.kernel.errors import Unsupported


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
