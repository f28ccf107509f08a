"""asyncio in a simulated world: each callback is an entry of the world's calendar, and dies with its process.

What drives an operation over several members (`apps/barrier.py`) is a coroutine like any other, and it is driven here
as it is. No thread, no selector, no real time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from .world import SimWorld

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
MS = 1_000_000
# Whom the end of something is told: its value, or what it failed with.
Told = Callable[[Any, BaseException | None], None]


class SimLoop(asyncio.AbstractEventLoop):
    """As much of a loop as tasks, futures, `gather`, `sleep` and `to_thread` need."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._ready: deque[asyncio.Handle] = deque()
        # In the order of their beginning.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.closed = False

    @property
    def idle(self) -> bool:
        return not self._tasks

    def waiting(self) -> list[str]:
        """What is driven here and has not come to its end."""
        return [str(task.get_coro()) for task in self._tasks]

    def begin(self, asked: Coroutine[Any, Any, Any], told: Told) -> None:
        """Drives what somebody asks for; who dies before its end tells nobody."""
        self.create_task(asked).add_done_callback(partial(self._ended, told))

    def _ended(self, told: Told, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self.closed:
            return
        told(None if error is not None else task.result(), error)

    def close(self) -> None:
        """The process is gone. Its coroutines are ended here and now: left to the collector they would be at any
        moment. Whoever they ask meanwhile is gone as well (`SimHouse.ask`)."""
        if self.closed:
            return
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
        while self._ready:
            self._run(self._ready.popleft())

    # --- the calendar ---

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self.closed:
            self._world.after(self._world.rng.randrange(MS // 10), self._run_next)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self, context)
        self._world.after(int(delay * 1e9), lambda: None if self.closed else self._run(handle))
        return handle

    def _run_next(self) -> None:
        if self._ready:
            self._run(self._ready.popleft())

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(outer)

    # --- what tasks and futures ask of their loop ---

    def time(self) -> float:
        return self._world.monotonic()

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """What takes long is done at once: time is simulated."""
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A promise that was found broken ends the world."""
        raise context.get("exception") or AssertionError(context["message"])

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Its entry finds out by itself."""
