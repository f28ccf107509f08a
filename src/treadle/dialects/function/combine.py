"""`flow.gather` and `flow.race`: several awaits at once. They work on any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
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
    waiting = list(awaitables)
    tasks: list[asyncio.Future[Any]] = []
    failed: asyncio.Future[Any] | None = None
    try:
        while True:
            failed = next((task for task in tasks if task.done() and _failure(task) is not None), None)
            if failed is not None and not return_exceptions:
                break
            going = [task for task in tasks if not task.done()]
            while waiting and (limit is None or len(going) < limit):
                going.append(_begun(waiting))
                tasks.append(going[-1])
            if not going:
                return [_failure(task) or _value(task) for task in tasks]
            await _first(going)
    except asyncio.CancelledError:
        await settle(tasks)
        raise
    finally:
        _unused(waiting)
    await settle(tasks)
    raise _failure(failed) or AssertionError("a task failed")


@overload
async def race(*awaitables: Awaitable[T]) -> T: ...


@overload
async def race(**named: Awaitable[T]) -> tuple[str, T]: ...


async def race(*awaitables: Awaitable[Any], **named: Awaitable[Any]) -> Any:
    """The first value, or the first failure raised; the others are cancelled, and their clean-up awaited. With
    names: `(name, value)`."""
    if bool(awaitables) == bool(named):
        raise TypeError("flow.race takes awaitables, or awaitables by name")
    waiting = list(awaitables or named.values())
    tasks: list[asyncio.Future[Any]] = []
    try:
        while waiting:
            tasks.append(_begun(waiting))
        while not any(task.done() for task in tasks):
            await _first(tasks)
    except asyncio.CancelledError:
        await settle(tasks)
        raise
    finally:
        _unused(waiting)
    winner = next(index for index, task in enumerate(tasks) if task.done())
    await settle(tasks)
    if (failure := _failure(tasks[winner])) is not None:
        raise failure
    value = _value(tasks[winner])
    return (list(named)[winner], value) if named else value


def _begun(waiting: list[Awaitable[Any]]) -> asyncio.Future[Any]:
    """The next one as a task."""
    return asyncio.ensure_future(waiting.pop(0))


def _unused(awaitables: list[Awaitable[Any]]) -> None:
    for item in awaitables:
        if asyncio.iscoroutine(item):
            item.close()


def _failure(task: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _value(task: asyncio.Future[Any]) -> Any:
    return task.result()


async def _first(tasks: list[asyncio.Future[Any]]) -> None:
    """Waits until one of them is done, the order of arguments deciding among equals."""
    done = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not done.done():
            done.set_result(None)

    for task in tasks:
        task.add_done_callback(wake)
    try:
        await done
    finally:
        for task in tasks:
            task.remove_done_callback(wake)
