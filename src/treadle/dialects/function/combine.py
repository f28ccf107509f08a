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
    branches = _Branches(awaitables, limit)
    failure: BaseException | None = None
    try:
        while failure is None:
            if branches.waiting:
                branches.ask(branches.begin)
            if not branches.going:
                results: list[Any] = branches.ask(branches.results)
                return results
            await branches.ask(branches.next_done)
            found: BaseException | None = branches.ask(branches.failed)
            if not return_exceptions:
                failure = found
    except asyncio.CancelledError:
        await settle(branches.tasks)
        raise
    finally:
        branches.close()
    await settle(branches.tasks)
    raise failure


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

    def __init__(self, awaitables: Iterable[Awaitable[Any]], limit: int | None = None) -> None:
        self.waiting = deque(awaitables)
        self._limit = limit
        self.tasks: list[asyncio.Future[Any]] = []
        self.going = 0
        self._done: list[int] = []
        self._woken: asyncio.Future[None] | None = None
        # How we are asked. A coroutine becomes a task of the loop's own making, and no code of the author's is asked how
        # that stands: nobody need watch it. Whatever else can be awaited may have a word in it.
        self.ask: Callable[..., Any] = _watched
        if type(limit) in _NUMBERS and _COROUTINES.issuperset(map(type, self.waiting)):
            self.ask = unwatched

    def begin(self) -> None:
        """Those that have not begun, as tasks, while there is room."""
        while self.waiting and (self._limit is None or self.going < self._limit):
            task = asyncio.ensure_future(self.waiting.popleft())
            task.add_done_callback(partial(self.ask, self._finished, len(self.tasks)))
            self.tasks.append(task)
            self.going += 1

    def next_done(self) -> asyncio.Future[None]:
        """What to wait for until one is done that was not taken yet."""
        self._woken = asyncio.get_running_loop().create_future()
        return self._woken

    def taken(self) -> list[int]:
        """Those done since this was last asked: in the order of the arguments, which decides among equals."""
        found, self._done = sorted(self._done), []
        self.going -= len(found)
        return found

    def failed(self) -> BaseException | None:
        """The first failure among those done since this was last asked."""
        failures = [_failure(self.tasks[index]) for index in self.taken()]
        return next((failure for failure in failures if failure is not None), None)

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
