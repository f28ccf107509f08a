"""How a bus waits: whoever is told to end while it does, ends.

Before Python 3.12 `asyncio.wait_for` answers where a cancellation and its answer come at once, and the cancellation is
lost: a loop that ends by being cancelled then goes on for ever. So nothing here uses it, and calls into libraries that
do (nats-py) are made under `heeding_cancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def heeding_cancel() -> Iterator[None]:
    """Whatever comes of the calls within, this task ends here if it was told to end meanwhile."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


async def at_most(limit_s: float, event: asyncio.Event) -> None:
    """Waits for an event, but not longer than this."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
