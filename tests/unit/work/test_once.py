"""What jobs need before they begin, and is made on a thread: once for all who wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle.bus.local import LocalBus
from treadle.kernel.errors import DefinitionError
from treadle.kernel.model import OpenIntent, Receipt
from treadle.runtime.commands import Deliver, FrameSent
from treadle.runtime.ports import SystemClock, Work
from treadle.runtime.registry import Loaded
from treadle.work.job import Done, Job
from treadle.work.worker import Worker

from .test_handed_again import Door, Nothing

JOBS = 50


class Ready:
    """A definition, once it is loaded."""

    definition = "ready"


class Cold:
    """Definitions none of which is at hand, as after a start."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def peek(self, digest: str) -> Loaded | None:
        return None

    def load(self, digest: str) -> Any:
        self.asked.append(digest)
        assert self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        return Ready


def work(number: int) -> Work:
    intent = OpenIntent(id=f"i{number}", kind="call", params={})
    return Work(f"run-{number}", "flow", "toy", "sha256:0", {}, intent)


class House:
    def __init__(self) -> None:
        self.bus, self.door, self.cold = LocalBus(SystemClock()), Door(), Cold()
        self.worker = Worker(self.bus, self.door, Nothing(), self.cold)
        self.begun = 0
        self.all_begun, self.one_left = asyncio.Event(), asyncio.Event()

    async def perform(self, job: Job) -> Done:
        self.begun += 1
        if self.begun == JOBS:
            self.all_begun.set()
        try:
            return Done(value=await job.load_definition())
        except asyncio.CancelledError:
            self.one_left.set()
            raise

    async def all_wait(self) -> None:
        self.worker.register("call", self.perform)
        self.worker.start(asyncio.get_running_loop())
        self.bus.offer([work(number) for number in range(JOBS)])
        await asyncio.wait_for(self.all_begun.wait(), 10)

    async def told(self, count: int) -> list[Any]:
        return [await asyncio.wait_for(self.door.items.get(), 10) for _ in range(count)]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    house.cold.go_on.set()
    await house.worker.stop()


async def test_a_definition_is_loaded_once_for_all_jobs_that_wait_for_it(house: House) -> None:
    await house.all_wait()
    house.cold.go_on.set()
    receipts = [item.event for item in await house.told(JOBS) if isinstance(item, Deliver)]
    assert [receipt.value for receipt in receipts if isinstance(receipt, Receipt)] == ["ready"] * JOBS
    assert house.cold.asked == ["sha256:0"], "hundreds come at once after a crash"


async def test_a_job_that_is_taken_back_meanwhile_takes_nothing_from_the_others(house: House) -> None:
    await house.all_wait()
    house.bus.revoke(["i0"])
    await asyncio.wait_for(house.one_left.wait(), 10)
    house.cold.go_on.set()
    assert {item.run for item in await house.told(JOBS - 1)} == {f"run-{n}" for n in range(1, JOBS)}


async def test_what_cannot_be_loaded_is_said_of_each_and_tried_again_by_those_who_come_later(
    house: House,
) -> None:
    house.cold.error = DefinitionError("it is damaged")
    await house.all_wait()
    house.cold.go_on.set()
    frames = [item for item in await house.told(JOBS) if isinstance(item, FrameSent)]
    assert {frame.type for frame in frames} == {"work.unavailable"}
    assert {frame.run for frame in frames} == {f"run-{n}" for n in range(JOBS)}
    house.cold.error = None
    house.bus.offer([work(JOBS)])
    (item,) = await house.told(1)
    assert item.event.value == "ready"
    assert house.cold.asked == ["sha256:0"] * 2
