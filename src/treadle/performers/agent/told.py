"""What a handler reports while it works: from a coroutine or from a thread, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from treadle.kernel.showing import shown
from treadle.work.job import Job

# A handler may report anything; what is no text is quoted.
_SHOWN_CHARS_MAX: Final = 2_000


def progress_of(job: Job, running: list[asyncio.Future[None]]) -> Callable[[str], Any]:
    loop = asyncio.get_running_loop()

    def progress(text: str) -> Any:
        message = text if isinstance(text, str) else shown(text, _SHOWN_CHARS_MAX)
        said = job.progress("node:progress", node=job.intent.params["node"], message=message)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # In the thread of a plain function: wait, so that progress keeps its order.
            return asyncio.run_coroutine_threadsafe(said, loop).result()
        task = loop.create_task(said)
        running.append(task)
        return task

    return progress
