"""`flow.gather` and `flow.race` by themselves: what they cost, and who comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from treadle import flow


class Watched(asyncio.Future[int]):
    """A future that counts how often it is looked at."""

    looks = 0

    def done(self) -> bool:
        Watched.looks += 1
        return super().done()

    def cancelled(self) -> bool:
        Watched.looks += 1
        return super().cancelled()

    def add_done_callback(self, callback: Callable[..., object], **more: Any) -> None:  # type: ignore[override] # counted
        Watched.looks += 1
        super().add_done_callback(callback, **more)

    def remove_done_callback(self, callback: Callable[..., object], /) -> int:
        Watched.looks += 1
        return super().remove_done_callback(callback)


async def looks(count: int, limit: int | None) -> int:
    """How often a gather looks at its branches, which are done one by one."""
    futures = [Watched() for _ in range(count)]
    Watched.looks = 0
    gathered = asyncio.ensure_future(flow.gather(*futures, limit=limit))
    for index, future in enumerate(futures):
        for _ in range(4):
            await asyncio.sleep(0)
        future.set_result(index)
    assert await gathered == list(range(count))
    return Watched.looks


@pytest.mark.parametrize("limit", [None, 7])
async def test_a_branch_costs_the_same_however_many_others_there_are(limit: int | None) -> None:
    few, many = await looks(20, limit), await looks(400, limit)
    assert many / 400 == few / 20


async def test_branches_that_are_done_at_once_count_in_the_order_of_the_arguments() -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(3)]
    raced = asyncio.ensure_future(flow.race(*futures))
    gathered = asyncio.ensure_future(flow.gather(*futures))
    await asyncio.sleep(0)
    futures[2].set_exception(ValueError("third"))
    futures[1].set_exception(ValueError("second"))
    with pytest.raises(ValueError, match="second"):
        await raced
    with pytest.raises(ValueError, match="second"):
        await gathered
    assert futures[0].cancelled()


async def test_an_awaitable_that_stands_twice_counts_twice() -> None:
    future = asyncio.get_running_loop().create_future()
    gathered = asyncio.ensure_future(flow.gather(future, future))
    await asyncio.sleep(0)
    future.set_result(1)
    assert await gathered == [1, 1]
