"""How much a worker elsewhere takes on (`work/courier.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from treadle.bus.data import Handed, Settled, Settling, Taken
from treadle.bus.local import LocalBus
from treadle.kernel.model import OpenIntent, Receipt
from treadle.runtime.commands import Deliver
from treadle.runtime.ports import Work
from treadle.testing.clock import VirtualClock
from treadle.work.courier import Courier


async def until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 (what is awaited has no event)
            await asyncio.sleep(0.001)
    assert holds(), what


class Far:
    """An owner with as much work as one likes, who answers receipts when it is let."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.given = 0
        self.settled: list[str] = []

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        if limit <= 0:
            await asyncio.sleep(wait_s)
        items = []
        for _ in range(limit):
            intent = OpenIntent(id=f"i{self.given}", kind="call", params={})
            work = Work("r", "w", "process", "d", {}, intent)
            items.append(Handed(work, 1, f"lease-{self.given}", 60.0))
            self.given += 1
        return Taken(items, [])

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        await self.may.wait()
        self.settled += [one.receipt.intent for one in receipts]
        return Settled(settled=[one.receipt.intent for one in receipts], stale=[], refused=[])

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks for {name} here")


async def test_while_a_receipt_is_on_its_way_there_is_room_but_not_for_ever_more() -> None:
    far = Far()
    near = LocalBus(VirtualClock())
    courier = Courier(far, far, near, pools=["default"], concurrency=2)
    running = asyncio.ensure_future(courier.run())

    def finish(number: int) -> None:
        near.done(f"i{number}")
        courier.submit(Deliver("r", Receipt(intent=f"i{number}", status="ok", value=1)))

    try:
        await until(lambda: far.given == 2, "as much as it can do")
        finish(0)
        await until(lambda: far.given == 3, "room, though the receipt has not arrived")
        finish(1)
        await until(lambda: far.given == 4, "room again")
        finish(2)
        finish(3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert far.given == 4, "as many receipts are on their way as there are places"
        far.may.set()
        await until(lambda: far.given == 6, "room when they have arrived")
        assert far.settled == ["i0", "i1", "i2", "i3"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
