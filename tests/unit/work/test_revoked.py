"""Work that is revoked after the worker took it and before it is begun; and work that is done and not handed in yet."""

from __future__ import annotations

import asyncio
import threading

import pytest

from treadle.bus.local import LocalBus
from treadle.runtime.commands import Command
from treadle.runtime.ports import SystemClock, Work
from treadle.testing.bus_conformance import works
from treadle.work.job import Done, Job
from treadle.work.worker import Worker

from .test_handed_again import Door, Nothing


class Hasty(LocalBus):
    """What is called `a` is not wanted any more the moment it was taken."""

    def take_here(self, lane: str, limit: int) -> list[Work]:
        taken = super().take_here(lane, limit)
        if any(work.intent.id == "a" for work in taken):
            self.revoke(["a"])
        return taken


@pytest.mark.parametrize("threaded", [False, True], ids=["a coroutine", "a thread"])
async def test_it_is_not_begun_and_keeps_no_place(threaded: bool) -> None:
    bus, door = Hasty(SystemClock()), Door()
    worker = Worker(bus, door, Nothing(), Nothing(), concurrency=1, threads=1)
    begun: list[str] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    async def perform(job: Job) -> Done:
        begun.append(job.intent.id)
        loop.call_soon_threadsafe(done.set)
        return Done()

    worker.register("call", perform, threaded=lambda intent, definition: threaded)
    worker.performers.prepare("toy")
    worker.start(loop)
    try:
        bus.offer(works("a", "b"))
        await asyncio.wait_for(done.wait(), 10)
        assert begun == ["b"]
    finally:
        await worker.stop()


class SlowDoor(Door):
    """To hand something in takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.may = threading.Event(), threading.Event()

    def submit(self, command: Command) -> None:
        self.entered.set()
        assert self.may.wait(10)
        super().submit(command)


async def test_who_finishes_hands_in_what_is_done() -> None:
    """Or it would be given back, and done again."""
    bus, door = LocalBus(SystemClock()), SlowDoor()
    worker = Worker(bus, door, Nothing(), Nothing(), threads=1)

    async def perform(job: Job) -> Done:
        return Done()

    worker.register("call", perform, threaded=lambda intent, definition: True)
    worker.performers.prepare("toy")
    worker.start(asyncio.get_running_loop())
    try:
        bus.offer(works("a"))
        assert await asyncio.to_thread(door.entered.wait, 10)
        assert bus.is_held("a"), "or its shard is given away, and it is done again elsewhere"
        assert not await worker.finish(0.1)
        door.may.set()
        assert await worker.finish(10)
        assert door.items.qsize() == 1
    finally:
        door.may.set()
        await worker.stop()
