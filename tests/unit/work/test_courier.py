"""How much a worker elsewhere takes on, and how it leaves (`work/courier.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from treadle.bus.carrier import Away
from treadle.bus.data import Handed, Noted, Settled, Settling, Taken, Told
from treadle.bus.http import Refused
from treadle.bus.local import LocalBus
from treadle.kernel.model import OpenIntent, Receipt
from treadle.runtime.commands import LATE, CheckpointSaved, Deliver, FrameSent
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


class Leaving:
    """An owner with one piece of work, who is away once somebody leaves; payloads do not reach it at all then."""

    def __init__(self) -> None:
        self.is_away = False
        self.gave = False
        self.sent: list[str] = []
        self.released: list[str] = []
        self.slow = asyncio.Event()

    def _meet(self) -> None:
        if self.is_away:
            raise Away

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        if self.gave:
            await asyncio.sleep(0.01)
            return Taken([], [])
        self.gave = True
        return Taken([Handed(Work("r", "w", "process", "d", {}, INTENT), 1, "lease", 60.0)], [])

    async def register(self, **more: Any) -> None:
        self._meet()

    async def put_blob(self, digest: str, body: bytes) -> None:
        raise Away

    async def progress(self, told: Sequence[Told]) -> Noted:
        self._meet()
        await self.slow.wait()
        return Noted(durable=[one.intent for one in told], lost=[])

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        self._meet()
        self.sent += [one.receipt.intent for one in receipts]
        return Settled(settled=[one.receipt.intent for one in receipts])

    async def release(self, leases: Sequence[str], *, reason: str = "") -> None:
        self.released += leases

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks for {name} here")


INTENT = OpenIntent(id="i", kind="call", params={})
SAVED = {"begun": True}


async def begin(far: Leaving) -> tuple[Courier, LocalBus, asyncio.Task[None]]:
    near = LocalBus(VirtualClock())
    courier = Courier(far, far, near, pools=["default"], concurrency=1)
    running = asyncio.ensure_future(courier.run())
    await until(lambda: near.find("i") is not None, "it has work")
    return courier, near, running


@pytest.mark.parametrize("blobs", [{}, {"sha256:1": b"1"}], ids=["no server", "no way for its payloads"])
async def test_a_mark_of_which_nobody_says_that_it_is_kept_is_not(blobs: dict[str, bytes]) -> None:
    far = Leaving()
    far.slow.set()
    courier, _, running = await begin(far)
    far.is_away = not blobs
    await courier.leave()
    told: list[Any] = []
    courier.submit(CheckpointSaved("r", "i", SAVED, [], blobs, lambda value, error: told.append(value)))
    await until(lambda: bool(told), "whoever waits for it is told")
    assert told == [{"stale": True}], "what was to follow must not: the next worker would see no mark"
    await courier.give_back()
    assert far.released == ["lease"]
    await running


async def test_a_receipt_does_not_go_without_its_payloads() -> None:
    far = Leaving()
    courier, _, running = await begin(far)
    await courier.leave()
    courier.submit(Deliver("r", Receipt(intent="i", status="ok", value=1), blobs={"sha256:1": b"1"}))
    await asyncio.sleep(0)
    await courier.flush()
    assert far.sent == [], "it would name what is not there"
    await courier.give_back()
    assert far.released == ["lease"], "others do it again, at once"
    await running


async def test_who_leaves_does_not_wait_for_what_nobody_sends_any_more() -> None:
    """What was taken out of its hands comes to its end, and its owner is slow to hear of that."""
    far = Leaving()
    courier, _, running = await begin(far)
    courier._drop(["lease"])
    courier.submit(FrameSent("r", "i", 0, LATE, None))
    await courier.leave()
    async with asyncio.timeout(10):
        await running
        await courier.flush()


class Late(Leaving):
    """Its answer with work is on its way when the worker leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        await self.told.wait()
        return await super().take(pools, limit, wait_s=wait_s)

    async def register(self, **more: Any) -> None:
        self.told.set()


async def test_work_that_comes_when_its_worker_has_left_is_for_others_at_once() -> None:
    far, near = Late(), LocalBus(VirtualClock())
    courier = Courier(far, far, near, pools=["default"], concurrency=1)
    running = asyncio.ensure_future(courier.run())
    await asyncio.sleep(0)
    await courier.leave()
    await courier.give_back()
    async with asyncio.timeout(10):
        await running
    assert far.gave
    assert far.released == ["lease"]
    assert near.find("i") is None, "nobody begins it here"


class Narrow(Leaving):
    """What stands before this owner takes one receipt at a time, and nothing large."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[object] = []

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        if len(receipts) > 1 or receipts[0].receipt.value == "large":
            raise Refused(413, "SERVER_REFUSED", "the server answered 413")
        self.errors += [one.receipt.error and one.receipt.error["code"] for one in receipts]
        return await super().settle(receipts)

    async def progress(self, told: Sequence[Told]) -> Noted:
        raise Refused(413, "SERVER_REFUSED", "the server answered 413")

    async def put_blob(self, digest: str, body: bytes) -> None:
        raise Refused(413, "SERVER_REFUSED", "the server answered 413")


async def test_what_is_too_large_for_the_way_to_its_owner_does_not_end_its_worker() -> None:
    """The next one would end by it, too, and with each all the other work that it has in hand."""
    far = Narrow()
    courier, _, running = await begin(far)
    for intent in ("j", "k"):
        courier._held[intent] = Handed(Work("r", "w", "process", "d", {}, INTENT), 1, intent, 60.0)
    told: list[Any] = []
    courier.submit(FrameSent("r", "i", 1, "large", None))
    courier.submit(CheckpointSaved("r", "i", SAVED, [], {}, lambda value, error: told.append(error)))
    courier.submit(Deliver("r", Receipt(intent="i", status="ok", value=1)))
    courier.submit(Deliver("r", Receipt(intent="j", status="ok", value="large")))
    courier.submit(Deliver("r", Receipt(intent="k", status="ok", value=1), blobs={"sha256:1": b"1"}))
    await until(lambda: len(far.sent) == 3 or running.done(), "all receipts arrive")
    assert (far.sent, far.errors) == (["i", "j", "k"], [None, "RECEIPT_UNUSABLE", "RECEIPT_UNUSABLE"])
    assert [error.code for error in told] == ["SERVER_REFUSED"], "whoever waits for it goes no further"
    await courier.leave()
    await running
