"""One call of a skill's handler: where it runs, for how long, and what it reports meanwhile.

`async def` runs on the event loop, `def` in a thread of its own: a pool would be shared with those
who read files and resolve names, and a few slow tools would stop every other run. There are at most
as many as the worker has calls in hand, and they do not keep the process from ending. A tool with a
time limit that runs out of it has failed; a thread cannot be stopped, so a `def` may still finish.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.kernel.showing import shown
from treadle.tools.functions import UNFIT
from treadle.work.job import Job, is_revoked
from treadle.work.raised import named

from .skill import SkillTool, ToolContext

# A handler may report anything; what is no text is quoted.
_SHOWN_CHARS_MAX: Final = 2_000


def _nobody() -> None:
    """Nobody wants to know of a late end."""


async def run_handler(
    tool: SkillTool, input: dict[str, Any], context: ToolContext, late: Callable[[], None] = _nobody
) -> Any:
    """What the handler returns. Whatever it raises is an ordinary exception, even an exit. `late` is
    called when a thread ends that nobody waited for any more."""
    try:
        async with asyncio.timeout(tool.timeout_s) as limit:
            if tool.is_async:
                found = tool.handler(input, context)
            else:
                found = await _in_thread(late, tool.handler, input, context)
            return await found if inspect.isawaitable(found) else found
    except TimeoutError as error:
        if not limit.expired():
            raise
        perhaps = "" if tool.is_async else "; it may still take effect"
        raise ToolError(
            f"the tool {tool.name!r} did not finish within {tool.timeout_s:g} s{perhaps}"
        ) from error
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        if is_revoked(error):
            raise
        raise ToolError(f"the tool {tool.name!r} raised {type(error).__name__}") from error


async def _in_thread(late: Callable[[], None], function: Callable[..., Any], *arguments: Any) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            late()
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, UNFIT):
            done.set_exception(RuntimeError(named(error)))
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *arguments)
        except BaseException as raised:  # it belongs to whoever waits for it
            error = raised
        with suppress(RuntimeError):  # the loop has ended, and with it everyone who waited
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="treadle-tool", daemon=True).start()
    return await done


def progress_of(job: Job, running: list[asyncio.Future[None]]) -> Callable[[str], Any]:
    """What a handler reports with while it works: from a coroutine or from a thread, in order."""
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
