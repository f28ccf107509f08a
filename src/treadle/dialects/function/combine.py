"""`flow.gather` and `flow.race`: several awaits at once. They work on any event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any, TypeVar, overload

from .ending import settle

T = TypeVar("T")


async def gather(
    *awaitables: Awaitable[T], return_exceptions: bool = False, limit: int | None = None
) -> list[Any]:
    """All results, in the order of the arguments. The first failure cancels the others, waits for their clean-up
    and is raised. `limit`: at most so many at once."""
    if limit is not None and limit < 1:
        raise ValueError("limit is a whole number from 1 on")
    branches = _Branches(awaitables)
    failure: BaseException | None = None
    try:
        while failure is None:
            while branches.waiting and (limit is None or branches.going < limit):
                branches.begin()
            if not branches.going:
                return [_value(task) if _failure(task) is None else _failure(task) for task in branches.tasks]
            failures = [_failure(branches.tasks[index]) for index in await branches.done()]
            if not return_exceptions:
                failure = next((found for found in failures if found is not None), None)
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
        while branches.waiting:
            branches.begin()
        winner = (await branches.done())[0]
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

    def __init__(self, awaitables: Iterable[Awaitable[Any]]) -> None:
        self.waiting = deque(awaitables)
        self.tasks: list[asyncio.Future[Any]] = []
        self.going = 0
        self._done: list[int] = []
        self._woken: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """The next one, as a task."""
        task = asyncio.ensure_future(self.waiting.popleft())
        task.add_done_callback(partial(self._finished, len(self.tasks)))
        self.tasks.append(task)
        self.going += 1

    async def done(self) -> list[int]:
        """Those done since this was last asked, at least one: in the order of the arguments, which decides among
        equals."""
        if not self._done:
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
        found, self._done = sorted(self._done), []
        self.going -= len(found)
        return found

    def close(self) -> None:
        """Nothing more is begun: a coroutine that nobody will await would say so."""
        for item in self.waiting:
            if asyncio.iscoroutine(item):
                item.close()

    def _finished(self, index: int, _: asyncio.Future[Any]) -> None:
        self._done.append(index)
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def _failure(task: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _value(task: asyncio.Future[Any]) -> Any:
    return task.result()
