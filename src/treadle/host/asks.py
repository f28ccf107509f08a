"""Commands on their way to the core, and those here who wait for its answers: coroutines, and threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from treadle.kernel.errors import EngineStopped, TreadleError, Unsupported
from treadle.runtime.commands import Command, Deliver, Inspect, Operate, View
from treadle.runtime.ports import Ack

from .acting import NAMELESS, origin, stamped
from .home import HomeLoop
from .seat import Seat

log = logging.getLogger("treadle")
T = TypeVar("T")

# How long a guest waits for the owner's answer before it says whom it waits for, and how often again.
PATIENCE_S: Final = 5.0


class ThreadAck:
    """Answers a thread that waits."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        self.future = future

    def __call__(self, value: Any, error: TreadleError | None) -> None:
        if not self.future.done():  # else it waits no more, or was told that its core is over
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(value)


class LoopAck(ThreadAck):
    """Answers a coroutine; many of them travel to the event loop in one hop."""

    __slots__ = ()


class Asks:
    def __init__(self, home: HomeLoop, seat: Seat, *, readonly: bool) -> None:
        self._home = home
        self._seat = seat
        # An onlooker never owns the store, decides nothing and performs nothing.
        self._readonly = readonly
        self.patience_s, self._said_waiting = PATIENCE_S, -PATIENCE_S
        self._failure: BaseException | None = None
        self._unanswered: set[asyncio.Future[Any] | concurrent.futures.Future[Any]] = set()

    def submit(self, command: Command) -> None:
        """Any thread may."""
        if self._home.is_forked:
            self._home.check_process()
        if self._readonly:
            raise Unsupported("this engine only looks; open it without readonly to change something")
        if (thread := self._seat.thread) is None:
            raise EngineStopped()
        thread.submit(command)

    async def ask(self, make: Callable[[Ack], Command]) -> Any:
        """Hands a command over; returns its answer once that is durable."""
        loop = self._home.check()
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Any] = loop.create_future()
        self._unanswered.add(future)
        try:
            command = make(LoopAck(future))
            if origin() is not None or not (type(command) is Deliver and type(command.event) in NAMELESS):
                command = stamped(command)
            self.submit(command)
            if (thread := self._seat.thread) is not None and not thread.decides(command):
                await self._be_patient(future)
            return await future
        finally:
            self._unanswered.discard(future)
            future.cancel()

    async def _be_patient(self, future: asyncio.Future[Any]) -> None:
        """As a guest: waits for the owner, and says for whom if that takes long."""
        while not (await asyncio.wait([future], timeout=self.patience_s))[0]:
            if (whom := self._seat.waits_for()) is not None:
                self._say_waiting(whom)

    def _say_waiting(self, whom: str) -> None:
        """Once for all who wait: a thousand calls wait for one owner."""
        if (now := time.monotonic()) - self._said_waiting >= self.patience_s:
            self._said_waiting = now
            log.warning("waiting for an answer: %s", whom)

    def ask_blocking(self, make: Callable[[Ack], Command], *, timeout_s: float = 60) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._unanswered.add(done)
        try:
            if self._failure is not None:
                raise self._failure
            self.submit(stamped(make(ThreadAck(done))))
            return done.result(timeout=timeout_s)
        finally:
            self._unanswered.discard(done)

    async def look(self, question: Callable[[View], T]) -> T:
        """Asks on the core's thread, between two commits. Changes nothing."""
        found: T = await self.ask(lambda ack: Inspect(question, ack))
        return found

    def look_blocking(self, question: Callable[[View], T]) -> T:
        found: T = self.ask_blocking(lambda ack: Inspect(question, ack))
        return found

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        return await self.ask(lambda ack: Operate(home, name, body, ack))

    def operate_blocking(self, name: str, body: dict[str, Any]) -> Any:
        return self.ask_blocking(lambda ack: Operate("", name, body, ack))

    # --- the core goes ---

    def begin(self) -> None:
        """There is a core again."""
        self._failure = None

    def fail(self, failure: BaseException | None) -> None:
        """The core is gone: who asks from now on is told so."""
        self._failure = failure

    def leave_unanswered(self, failure: BaseException) -> None:
        """On the event loop: whoever waits is told that no answer comes."""
        self._leave_unanswered(failure, object)

    def leave_threads_unanswered(self, failure: BaseException) -> None:
        """The event loop's own thread may be one of those that wait: it could not tell itself."""
        self._leave_unanswered(failure, concurrent.futures.Future)

    def _leave_unanswered(self, failure: BaseException, only: type[Any]) -> None:
        for future in list(self._unanswered):
            if isinstance(future, only) and not future.done():
                with suppress(concurrent.futures.InvalidStateError):  # it was answered just now
                    future.set_exception(failure)
