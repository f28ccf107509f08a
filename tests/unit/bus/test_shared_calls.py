"""Those who ask a carrier at the same time share the way there and back (`bus/waiting.py: SharedCalls`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from treadle.bus.carrier import Away
from treadle.bus.waiting import SharedCalls


class Server:
    """Doubles numbers, when it is let."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.may = asyncio.Event()
        self.away = False

    async def ask(self, numbers: Sequence[int]) -> Sequence[int]:
        self.asked.append(list(numbers))
        await self.may.wait()
        if self.away:
            raise Away
        return [2 * number for number in numbers]


async def asking(server: Server, together: SharedCalls[int, int], *numbers: int) -> list[asyncio.Task[int]]:
    """Asks for these, the first of which is under way when the others come."""
    tasks = []
    for number in numbers:
        tasks.append(asyncio.ensure_future(together(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return tasks


async def test_what_is_asked_while_a_call_is_under_way_goes_with_the_next() -> None:
    server = Server()
    together = SharedCalls(server.ask, at_once=2)
    tasks = await asking(server, together, 1, 2, 3, 4)
    server.may.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6, 8]
    assert server.asked == [[1], [2, 3], [4]]


async def test_a_call_that_fails_is_told_to_those_who_shared_it_and_the_next_is_made() -> None:
    server = Server()
    together = SharedCalls(server.ask, at_once=10)
    server.away = True
    tasks = await asking(server, together, 1, 2)
    server.may.set()
    for task in tasks:
        with pytest.raises(Away):
            await task
    server.away = False
    assert await together(3) == 6


async def test_who_is_cancelled_takes_nobody_with_it() -> None:
    server = Server()
    together = SharedCalls(server.ask, at_once=10)
    first, second, third = await asking(server, together, 1, 2, 3)
    first.cancel()
    second.cancel()
    server.may.set()
    assert await third == 6


async def test_at_the_end_nobody_is_left_waiting() -> None:
    server = Server()
    together = SharedCalls(server.ask, at_once=1)
    tasks = await asking(server, together, 1, 2)
    await together.end()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task
