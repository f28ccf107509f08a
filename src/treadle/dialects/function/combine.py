"""`flow.gather` and `flow.race`: several awaits at once. They work on any event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import CoroutineType
from typing import Any, Final, TypeVar, overload

from .ending import settle
from .guard import unwatched
from .loop import Ours

T = TypeVar("T")
_COROUTINES: Final[frozenset[type]] = frozenset({CoroutineType})
_NUMBERS: Final[frozenset[type]] = frozenset({int, type(None)})


async def gather(
    *awaitables: Awaitable[T], return_exceptions: bool = False, limit: int | None = None
) -> list[Any]:
    """All results, in the order of the arguments. The first failure cancels the others, waits for their clean-up
    and is raised. `limit`: at most so many at once."""
    if limit is not None and limit < 1:
        raise ValueError("limit is a whole number from 1 on")
    branches = _Branches(awaitables, limit, stops=not return_exceptions)
    try:
        while (woken := branches.ask(branches.go_on)) is not None:
            await woken
        if branches.failure is None:
            results: list[Any] = branches.ask(branches.results)
            return results
    except asyncio.CancelledError:
        await settle(branches.tasks)
        raise
    finally:
        branches.close()
    await settle(branches.tasks)
    raise branches.failure


@overload
async def race(*awaitables: Awaitable[T]) -> T: ...


@overload
async def race(**named: Awaitable[T]) -> tuple[str, T]: ...


async def race(*awaitables: Awaitable[Any], **named: Awaitable[Any]) -> Any:
    """The first value, or the first failure raised; the others are cancelled, and their clean-up awaited. With
    names: `(name, value)`."""
    if bool(awaitables) == bool(named):
        raise TypeError("flow.race takes awaitables, or awaitables by name")
    branches = _Branches(awaitables or tuple(named.values()))
    try:
        branches.ask(branches.begin)
        await branches.ask(branches.next_done)
        winner: int = branches.ask(branches.taken)[0]
    except asyncio.CancelledError:
        await settle(branches.tasks)
        raise
    finally:
        branches.close()
    await settle(branches.tasks)
    if (failure := _failure(branches.tasks[winner])) is not None:
        raise failure
    value = _value(branches.tasks[winner])
    return (list(named)[winner], value) if named else value


class _Branches:
    """What is awaited at once. Each branch tells once that it is done, so a branch costs the same however many others
    there are."""

    def __init__(
        self, awaitables: Iterable[Awaitable[Any]], limit: int | None = None, *, stops: bool = True
    ) -> None:
        self.waiting = deque(awaitables)
        self._limit = limit
        self._stops = stops  # at the first failure, which is then this
        self.failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Future[Any]] = []
        self.going = 0
        self._done: list[int] = []
        self._woken: asyncio.Future[None] | None = None
        # How we are asked. A coroutine becomes a task of the loop's own making, and no code of the author's is asked how
        # that stands: nobody need watch it. Whatever else can be awaited may have a word in it.
        self.ask: Callable[..., Any] = _watched
        self._telling: type[partial[None]] = partial
        if type(limit) in _NUMBERS and _COROUTINES.issuperset(map(type, self.waiting)):
            self.ask, self._telling = unwatched, Ours

    def begin(self) -> None:
        """Those that have not begun, as tasks, while there is room."""
        while self.waiting and (self._limit is None or self.going < self._limit):
            item = self.waiting.popleft()
            # As `ensure_future` does, which looks at each at length.
            task = (
                self._loop.create_task(item) if type(item) is CoroutineType else asyncio.ensure_future(item)
            )
            task.add_done_callback(self._telling(self._finished, len(self.tasks)))
            self.tasks.append(task)
            self.going += 1

    def next_done(self) -> asyncio.Future[None]:
        """What to wait for until one is done that was not taken yet."""
        self._woken = self._loop.create_future()
        return self._woken

    def go_on(self) -> asyncio.Future[None] | None:
        """What to wait for next; None if everything is done, or one has failed and the others need not go on."""
        failures = [failure for index in self.taken() if (failure := _failure(self.tasks[index])) is not None]
        if failures and self._stops:
            self.failure = failures[0]
            return None
        self.begin()
        return self.next_done() if self.going else None

    def taken(self) -> list[int]:
        """Those done since this was last asked: in the order of the arguments, which decides among equals."""
        found, self._done = sorted(self._done), []
        self.going -= len(found)
        return found

    def results(self) -> list[Any]:
        return [_value(task) if _failure(task) is None else _failure(task) for task in self.tasks]

    def close(self) -> None:
        """Nothing more is begun: a coroutine that nobody will await would say so."""
        for item in self.waiting:
            if asyncio.iscoroutine(item):
                item.close()

    def _finished(self, index: int, _: asyncio.Future[Any]) -> None:
        self._done.append(index)
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def _watched(call: Callable[..., T], *args: Any) -> T:
    """A call as any other."""
    return call(*args)


def _failure(task: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _value(task: asyncio.Future[Any]) -> Any:
    return task.result()
