"""What a handler reports while it works: from a coroutine or from a thread, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from treadle.work.job import Job


def progress_of(job: Job, running: list[asyncio.Future[None]]) -> Callable[[str], Any]:
    loop = asyncio.get_running_loop()

    def progress(text: str) -> Any:
        said = job.progress("node:progress", node=job.intent.params["node"], message=str(text))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # In the thread of a plain function: wait, so that progress keeps its order.
            return asyncio.run_coroutine_threadsafe(said, loop).result()
        task = loop.create_task(said)
        running.append(task)
        return task

    return progress
