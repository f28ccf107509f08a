"""The event loop of one run: asyncio's interface, with durable time and no world outside.

It is the running loop during one decision only. Whatever is ready runs in the order in which it became ready;
when nothing is ready any more, the decision is over. A timer is an await of the run like any other, so
`asyncio.sleep`, `timeout`, `wait_for`, `TaskGroup`, `Event`, `Lock` and `Queue` mean the durable thing.

Tasks and futures hash by number: a set of them has one order in every process.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, cast

from treadle.kernel.errors import Undecidable
from treadle.kernel.stops import is_stop

from .errors import Dropped, NotDeterministic
from .guard import Turn, seen

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_TASKS: Final = asyncio.tasks.__file__
TASKS_LOOKED_AT: Final = 32
# How often a function may catch its own end before it is left as it is.
THROWS_MAX: Final = 100


class Numbered(Protocol):
    """What the loop asks of the run behind it."""

    now_ns: int
    started_ns: int
    offence: Undecidable | None

    def at(self, due_ns: int, handle: asyncio.TimerHandle) -> None:
        """Opens a timer that will put `handle` into the loop."""

    def not_at(self, handle: asyncio.TimerHandle) -> None:
        """A timer is not wanted any more."""

    def unwanted(self, number: int) -> None:
        """An await is not wanted any more."""

    def refuse(self, what: str, instead: str) -> NotDeterministic:
        """The function did what it may not do."""

    def unheard(self, context: dict[str, Any]) -> None:
        """An exception that nobody has asked for."""


class FlowHandle(partial[object]):
    """What is called soon. asyncio's own also keeps what nobody asks of a run: where it was made, how it is shown."""

    is_ours = False
    _cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Ours(partial[None]):
    """A callback that reaches none of the author's code: nobody need watch it."""


class OurHandle(FlowHandle):
    is_ours = True


class FlowFuture(asyncio.Future[T]):
    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class AwaitFuture(FlowFuture[T]):
    """What an await of the run waits for. Whoever cancels it wants it no more, which is told before anything that
    follows from the cancel. It knows its await by number: whoever held on to each other would be left to the
    collector, with every step."""

    __slots__ = ("of",)
    of: int

    def cancel(self, msg: Any = None) -> bool:
        if not self.done():
            loop = cast("Loop", self.get_loop())
            loop.call_soon(loop.run.unwanted, self.of)
        return super().cancel(msg)


class FlowTask(asyncio.Task[T]):
    __slots__ = ("number",)
    _log_destroy_pending: bool  # asyncio's own switch, and
    _fut_waiter: object  # what it waits for

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        number: int,
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        # asyncio registers the task among those of all loops, where the numbers of ten thousand runs would collide.
        self.number = object.__hash__(self)
        super().__init__(coro, loop=loop, name=name or f"task-{number}", context=context)
        self.number = number

    def __hash__(self) -> int:
        return self.number


class Loop(asyncio.AbstractEventLoop):
    __slots__ = ("_ended", "_look_at", "_numbers", "_ready", "generators", "run", "tasks")

    def __init__(self, run: Numbered) -> None:
        self.run = run
        # Those that are not done, and some that are: looked through when there are twice as many as were left last.
        self.tasks: list[FlowTask[Any]] = []
        self._look_at = TASKS_LOOKED_AT
        self.generators: list[Any] = []
        self._ready: list[FlowHandle] = []
        self._numbers = 0
        self._ended = False

    # --- one decision ---

    def drive(self, turn: Turn) -> None:
        """Runs whatever is ready, and what becomes ready by it. Only that is watched."""
        outer = asyncio._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        # An abandoned generator is ended with its run, never by the collector in the middle of another one.
        sys.set_asyncgen_hooks(self.generators.append, _left)
        try:
            self._run_ready(turn)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)
        if len(self.tasks) > self._look_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._look_at = max(TASKS_LOOKED_AT, 2 * len(self.tasks))

    def _run_ready(self, turn: Turn) -> None:
        """A run with an offence goes no further: nothing of what it had ready is wanted any more."""
        while self._ready:
            ready, self._ready = self._ready, []
            for handle in ready:
                if self.run.offence is not None:
                    return
                if handle._cancelled:
                    continue
                try:
                    if handle.is_ours:
                        handle()
                        continue
                    turn.is_on = True
                    turn.on()
                    try:
                        handle()
                    finally:
                        turn.off()
                        turn.is_on = False
                except (SystemExit, KeyboardInterrupt) as error:
                    if is_stop(error):
                        raise
                    # else the task that raised it has it for its outcome
                except BaseException as error:
                    self.run.unheard({"message": f"Exception in callback {handle!r}", "exception": error})

    def left(self) -> list[FlowTask[Any]]:
        """The tasks that are not done, but for the one that asks. What the others raised is heard: nobody need be
        warned of it."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.exception()
        me = asyncio.current_task(self)
        return [task for task in self.tasks if task is not me and not task.done()]

    def put(self, handle: asyncio.TimerHandle) -> None:
        self._ready.append(FlowHandle(_fire, handle))

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def is_idle(self) -> bool:
        """Whether nothing of the function is left to be ended."""
        return not self.generators and all(task.done() for task in self.tasks)

    def let_go(self) -> None:
        self._ended = True
        self.run = _NOBODY
        self.tasks.clear()
        self._ready.clear()

    def end(self, turn: Turn) -> None:
        """Ends every task where it stands, in reverse order; nothing of it is scheduled any more. We are the running
        loop meanwhile: what a `finally` asks for must reach us, who are cut off, and nobody else."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            self._end(turn)
        finally:
            asyncio._set_running_loop(outer)
            self.let_go()

    def _end(self, turn: Turn) -> None:
        while self.tasks:  # a `finally` may make more of them: they never begin
            task = self.tasks.pop()
            if not task.done():
                task._log_destroy_pending = False
                waits_for = task._fut_waiter
                _close(task.get_coro(), turn)
                # A task, what it waits for and who waits for it hold on to each other, and on to the run, by what they
                # call when they are done. They let go of that, and it is never called.
                asyncio.Future.cancel(task)
                if isinstance(waits_for, asyncio.Future):
                    asyncio.Future.cancel(waits_for)
        for generator in reversed(self.generators):
            if not generator.ag_running and generator.ag_frame is not None:
                _close(generator.aclose(), turn)
        self.generators.clear()

    # --- what asyncio asks of a loop ---

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Any:
        within = contextvars.copy_context() if context is None else context
        kind = OurHandle if type(callback) is Ours else FlowHandle
        handle = kind(within.run, callback, *args)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        due_ns = self.run.started_ns + round(when * 10**9)
        if due_ns <= self.run.now_ns:
            self.put(handle)
        else:
            self.run.at(due_ns, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.run.not_at(handle)

    def time(self) -> float:
        """Seconds since the run began: of the record that is being decided."""
        return (self.run.now_ns - self.run.started_ns) / 10**9

    def create_future(self) -> FlowFuture[Any]:
        future: FlowFuture[Any] = FlowFuture(loop=self)
        future.number = self.number()
        return future

    def await_future(self, of: int) -> AwaitFuture[Any]:
        """What the await of that number is waited for with."""
        future: AwaitFuture[Any] = AwaitFuture(loop=self)
        future.number, future.of = self.number(), of
        return future

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **more: Any,
    ) -> FlowTask[Any]:
        if self._ended:
            coro.close()
            raise Dropped
        if _is_as_completed(sys._getframe(1)):
            coro.close()
            raise self.run.refuse(
                "asyncio.as_completed(coroutines)", "make tasks of them first: asyncio.create_task"
            )
        task: FlowTask[Any] = FlowTask(coro, self.number(), self, name, context)
        self.tasks.append(task)
        return task

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    # Never: asked for each future and task, so without a call of ours.
    get_debug = staticmethod(bool)

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.run.unheard(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.run.unheard(context)

    async def shutdown_asyncgens(self) -> None:
        """Nothing is left to the end of the loop: generators end with their run."""


class _Nobody:
    """Stands for a run that is over: it and its loop would hold on to each other until the collector comes."""

    now_ns = started_ns = 0
    offence: Undecidable | None = None

    def at(self, due_ns: int, handle: asyncio.TimerHandle) -> None:
        raise Dropped

    def not_at(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is timed any more."""

    def unwanted(self, number: int) -> None:
        """Nothing is waited for any more."""

    def refuse(self, what: str, instead: str) -> NotDeterministic:
        return NotDeterministic(f"{what}() reaches outside of the run; {instead}", details={"call": what})

    def unheard(self, context: dict[str, Any]) -> None:
        """Nobody is left to hear of it."""


_NOBODY: Final = _Nobody()


def _fire(handle: asyncio.TimerHandle) -> None:
    if not handle.cancelled():
        handle._run()


def _left(generator: object) -> None:
    """It is ended with its run."""


def _is_as_completed(frame: FrameType | None) -> bool:
    """Whether coroutines are begun out of a set of them, whose order is that of their addresses."""
    while frame is not None and frame.f_code.co_filename == _TASKS:
        if frame.f_code.co_name in ("<setcomp>", "as_completed", "__init__"):  # of Python 3.11, 3.12, 3.13
            return True
        frame = frame.f_back
    return False


_INSTEAD: Final = "do that in a step: @flow.step"
_OUTSIDE: Final = (
    "call_soon_threadsafe", "run_in_executor", "set_default_executor", "getaddrinfo", "getnameinfo",
    "create_connection", "create_server", "create_unix_connection", "create_unix_server", "sendfile", "start_tls",
    "create_datagram_endpoint", "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec",
    "connect_accepted_socket", "add_reader", "remove_reader", "add_writer", "remove_writer", "sock_recv",
    "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect",
    "sock_accept", "sock_sendfile", "add_signal_handler", "remove_signal_handler", "run_forever",
    "run_until_complete", "stop", "close", "set_task_factory", "set_exception_handler", "set_debug",
    "shutdown_default_executor", "get_exception_handler",
)  # fmt: skip


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: Loop, *args: Any, **more: Any) -> Any:
        for given in args:  # a coroutine that will not be awaited says so otherwise
            if asyncio.iscoroutine(given):
                given.close()
        raise self.run.refuse(f"loop.{name}", _INSTEAD)

    return refuse


for _name in _OUTSIDE:
    setattr(Loop, _name, _refused(_name))


# The abstract members are filled in above, which a type checker does not see.
make_loop: Final[Callable[[Numbered], Loop]] = Loop


def _close(coroutine: Any, turn: Turn) -> None:
    """Ends a coroutine where it stands. What it awaits in a `finally` ends the same way, for `throw` reaches the
    innermost of a chain of awaits; `close` would leave that one to the collector."""
    for _ in range(THROWS_MAX):
        try:
            seen(turn, partial(coroutine.throw, Dropped))
        except BaseException:
            return
