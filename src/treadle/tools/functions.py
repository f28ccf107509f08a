"""A function of the application as a tool, and how long it may take.

A `def` never suspends, so a worker thread may drive it without an event loop; on an event loop it gets
a thread of its own, because the loop serves everybody. With a time limit it gets one too: a thread
cannot be killed, but whoever waits for it can go on. What a function that was given up returns in the
end is dropped. What a function returns is brought into plain form off the event loop too, within the limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from treadle.work.job import is_revoked
from treadle.work.raised import named, trace, words

from .base import RESULT_BYTES_MAX, BadConfig, time_limit, timed_out, too_large
from .protocol import Outcome, ToolCall
from .results import ResultTooLarge, is_small, kept

log = logging.getLogger("treadle.worker")

# Functions that ran out of time and hang still. One more than this is not begun.
GIVEN_UP_MAX: Final = 256
# How long a coroutine may take to end after it was cancelled.
CANCEL_S: Final = 1.0
# Keys of a task that belong to the pipeline around the tool, never to a function's arguments.
_TASK_KEYS: Final = frozenset({"name", "kind", "spec", "args", "input", "idempotent", "pure", "timeout"})

T = TypeVar("T")


class FunctionTool:
    """A plain function as a tool: the task's arguments by keyword in, its return value out.

    A parameter annotated or named `call` gets the `ToolCall`.
    """

    def __init__(
        self,
        kind: str,
        function: Callable[..., Any],
        *,
        idempotent: bool = False,
        pure: bool = False,
        result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:
        self.kind = kind
        # It touches nothing outside, so it may be called before the decision to call it is durable.
        self.pure = pure
        self.result_bytes_max = result_bytes_max
        self.idempotent = idempotent or pure
        self.function = function
        called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004, an object may be called, too
        self.sync = not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called))
        parameters = inspect.signature(function).parameters
        self._names = [name for name in parameters if name not in _TASK_KEYS]
        self._open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self._call_name = next(
            (n for n, p in parameters.items() if p.annotation in (ToolCall, "ToolCall") or n == "call"), None
        )
        self.takes_call = self._call_name is not None

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        try:
            limit_s = time_limit(config, call)
        except BadConfig as error:
            return Outcome.failed("schema", str(error), code="BAD_CONFIG")
        try:
            if not self.sync:
                return await self._awaited(config, call, limit_s)
            if in_a_loop():
                return await aside(partial(self.invoke, config, call), limit_s, self.kind)
            if limit_s is None:
                return self.invoke(config, call)
            return bounded(partial(self.invoke, config, call), limit_s, self.kind)
        except GivenUp as error:
            return error.outcome()

    async def _awaited(self, config: dict[str, Any], call: ToolCall, limit_s: float | None) -> Outcome:
        try:
            work = self.function(**self.arguments(config, call))
            value = await (work if limit_s is None else _in_time(work, limit_s, self.kind))
            return await off_the_loop(value, partial(self._outcome, value), self.kind)
        except GivenUp:
            raise
        except BaseException as error:  # `sys.exit()` in a function ends its task, not the loop
            if is_revoked(error):
                raise
            return exception_outcome(error)

    def invoke(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        """A `def`, called on this very thread. Whatever it raises is an outcome."""
        try:
            return self._outcome(self.function(**self.arguments(config, call)))
        except BaseException as error:  # `sys.exit()` in a function ends its task, not the worker
            return exception_outcome(error)

    def arguments(self, config: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
        """`args` (or `input`) over the task's own fields, so that both `args: {text: hi}` and a bare
        `text: hi` reach a parameter `text`. Bare fields that no parameter wants are left out."""
        if self._open:
            given = {key: value for key, value in config.items() if key not in _TASK_KEYS}
        else:
            given = {}
            for name in self._names:
                if name in config:
                    given[name] = config[name]
        for key in ("input", "args"):
            if more := config.get(key):
                given.update(more)
        if self._call_name is not None:
            given.setdefault(self._call_name, call)
        return given

    def _outcome(self, value: Any) -> Outcome:
        try:
            if not isinstance(value, Outcome):
                return Outcome(result=kept(value, self.result_bytes_max))
            value.result = kept(value.result, self.result_bytes_max)
            return value
        except ResultTooLarge as error:
            return too_large(error.size, self.result_bytes_max)

    async def close(self) -> None:
        """A function holds nothing."""


def exception_outcome(error: BaseException) -> Outcome:
    """What a user's exception looks like from outside: kind `python`, its own frames only."""
    name = type(error).__name__
    told = trace(error, hidden=(__file__,))
    outcome = Outcome.failed(
        "python",
        named(error),
        code=name,
        details={"traceback": told},
        py={"exception_type": name, "message": words(error), "traceback": told},
    )
    assert outcome.error is not None
    outcome.error["exception_type"] = name
    return outcome


# --- time -----------------------------------------------------------------------------------------


# What no future can hand on: it would close whoever awaits it, or never reach them.
UNFIT: Final = (StopIteration, GeneratorExit)


class GivenUp(Exception):
    """The function took longer than it may, or none may be begun because too many hang."""

    def __init__(self, limit_s: float | None) -> None:
        super().__init__()
        self.limit_s = limit_s

    def outcome(self) -> Outcome:
        if self.limit_s is not None:
            return timed_out("timeout", self.limit_s)
        message = f"{GIVEN_UP_MAX} functions that ran out of time still hang; none is begun before some end"
        return Outcome.failed("storage_quota", message, code="THREADS_EXHAUSTED", retryable=True)


_hanging: set[threading.Thread] = set()


def bounded(work: Callable[[], T], limit_s: float, name: str) -> T:
    """The work on a thread of its own, awaited by this one for so long. Raises GivenUp."""
    box: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    thread = _begin(work, lambda value, error: box.put((value, error)), name)
    try:
        value, error = box.get(timeout=limit_s)
    except Empty:
        _let_go(thread, name, f"its time limit of {limit_s:g} s")
        raise GivenUp(limit_s) from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value] # there is a value where there is no error


async def off_the_loop(value: Any, work: Callable[[], T], name: str) -> T:
    """Work whose length is that of the value: on a thread, if there is a loop to hold up and the value is large."""
    return work() if is_small(value) or not in_a_loop() else await aside(work, None, name)


async def aside(work: Callable[[], T], limit_s: float | None, name: str) -> T:
    """The work on a thread of its own, awaited by this coroutine. Raises GivenUp."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if isinstance(error, UNFIT):
            future.set_exception(RuntimeError(named(error)))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type] # there is a value where there is no error

    def done(value: T | None, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("%s ended after its engine did", name)

    thread = _begin(work, done, name)
    try:
        async with asyncio.timeout(limit_s) as timer:
            return await future
    except TimeoutError:
        if not timer.expired():
            raise
        _let_go(thread, name, f"its time limit of {limit_s:g} s")
        raise GivenUp(limit_s) from None
    except asyncio.CancelledError:
        _let_go(thread, name, "its task was cancelled")
        raise


def _begin(
    work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], name: str
) -> threading.Thread:
    if len(_hanging) >= GIVEN_UP_MAX:
        raise GivenUp(None)
    context = contextvars.copy_context()

    def live() -> None:
        value, error = None, None
        try:
            value = context.run(work)
        except BaseException as raised:
            error = raised
        _hanging.discard(threading.current_thread())
        done(value, error)

    thread = threading.Thread(target=live, name=f"treadle-{name}", daemon=True)
    thread.start()
    return thread


def _let_go(thread: threading.Thread, name: str, what: str) -> None:
    if thread.is_alive():
        _hanging.add(thread)
        if not thread.is_alive():
            _hanging.discard(thread)
        log.warning(
            "the function %s goes on after %s; it is left to itself (%d such)", name, what, len(_hanging)
        )


async def _in_time(work: Any, limit_s: float, name: str) -> Any:
    """What the coroutine gives. One that does not end when it is cancelled is left to itself."""
    task = asyncio.ensure_future(_kept(work))
    try:
        await asyncio.wait([task], timeout=limit_s)
        if task.done():
            found, error = task.result()
            if error is not None:
                raise error
            return found
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_S)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_S)
        raise
    if not task.done():
        log.warning(
            "the coroutine %s goes on after its time limit of %g s and being cancelled", name, limit_s
        )
    elif not task.cancelled():
        task.exception()  # looked at: nobody else will
    raise GivenUp(limit_s)


async def _kept(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What a coroutine gives, or what it raises: `sys.exit()` must not leave a task, or it ends the loop, and with
    it the engine."""
    try:
        return await work, None
    except BaseException as error:
        if is_revoked(error):
            raise
        return None, error


def in_a_loop() -> bool:
    """Whether an event loop runs on this thread."""
    # As `get_running_loop`, without an error to be raised and caught for each function on a thread.
    return asyncio._get_running_loop() is not None
