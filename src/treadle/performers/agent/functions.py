"""Nodes by Python: `run: module:function`, or the name of a registered function.

The function gets the context that a model would be told (`{"input": …, "<node>": data, …}`) and, if it takes
a second argument, a `ToolContext`. A `def` runs in a thread, an `async def` on the loop. What it returns is
the node's data; anything but an object is its `result`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value, to_value
from treadle.lang.handed import check_written
from treadle.tools.imported import imported
from treadle.tools.portable import portable
from treadle.work.job import Done, Job, StaysOpen, is_revoked
from treadle.work.raised import named

from .handlers import progress_of, run_handler
from .payloads import DATA_BYTES_MAX, Payloads, wants_chunk
from .skill import CleanLogger, SkillTool, ToolContext

log = logging.getLogger("treadle.agent")
SAID_CHARS_MAX: Final = 2_000
Function = Callable[..., Any]


@dataclass(slots=True)
class FunctionWork:
    """`registered(name)` gives a function that was registered with the engine."""

    payloads: Payloads
    registered: Callable[[str], Function | None]
    redact: Callable[[str], str]

    async def call(self, job: Job) -> Done:
        params = job.intent.params
        name = str(params["run"])
        function = self._find(name, job.options.get("base"))
        setup = await self.payloads.load(job, params["setup"])
        input = await self.payloads.load(job, setup["input"])
        context = await self.payloads.context(job, input, params["base"], params["own"])
        if "approval" in params:
            context["approval"] = await self.payloads.load(job, params["approval"])
        tool = SkillTool(name, "", {}, True, _handler(function))
        running: list[Any] = []
        about = ToolContext(
            config={},
            logger=CleanLogger(log.getChild("function"), self.redact),
            idempotency_key=job.idempotency_key,
            run_id=job.run,
            node=params["node"],
            progress=progress_of(job, running),
            base=job.options.get("base"),
            _options=job.options,
        )
        found = _plain(await _run(tool, to_value(context), about, job), name)
        value: dict[str, Any] = {"data": await self.payloads.slim(job, found, DATA_BYTES_MAX)}
        if wants_chunk(own := params["own"]):
            value["own"] = await self.payloads.chunk(job, own)
        return Done(value=value)

    def _find(self, name: str, base: str | None) -> Function:
        if (found := self.registered(name)) is not None:
            return found
        if ":" not in name:
            raise StaysOpen(f"no function {name!r} is registered here; register it, or write module:function")
        return imported(name, base, _not_found)


def _not_found(message: str) -> TreadleError:
    return TreadleError(message, cls="user", code="FUNCTION_NOT_FOUND")


def _handler(function: Function) -> Function:
    takes = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    count = min(len(takes), 2)
    if inspect.iscoroutinefunction(function):

        async def wait(context: dict[str, Any], about: ToolContext) -> Any:
            return await function(*(context, about)[:count])

        return wait
    return lambda context, about: function(*(context, about)[:count])


async def _run(tool: SkillTool, context: Value, about: ToolContext, job: Job) -> Any:
    try:
        return await run_handler(tool, context, about, job.late)
    except (TreadleError, StaysOpen):
        raise
    except BaseException as error:
        if is_revoked(error):
            raise
        said = named(error)
        raise TreadleError(f"{tool.name} raised {said[:SAID_CHARS_MAX]}", code="FUNCTION_FAILED") from error


def _plain(found: Any, name: str) -> Value:
    check_written(found)
    try:
        value = portable(found)
    except TypeError as error:
        raise TreadleError(f"what {name} returned cannot be stored: {error}", code="VALUE_REFUSED") from error
    return value if isinstance(value, dict) else {"result": value}
