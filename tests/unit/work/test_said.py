"""What a coroutine says while it works, and nobody waits for: with the receipt if that is soon, in time if not, always in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.bus.local import LocalBus
from treadle.kernel.model import OpenIntent
from treadle.runtime.commands import CheckpointSaved, Command, Deliver, FrameSent
from treadle.runtime.ports import SystemClock, Work
from treadle.work.job import Done, Job
from treadle.work.worker import Worker
from treadle.work.worker_job import GATHERED_MAX

from .test_handed_again import Door, Nothing

WORK = Work("run", "flow", "toy", "sha256:0", {}, OpenIntent(id="i", kind="call", params={}))


def told(command: Command) -> object:
    if isinstance(command, FrameSent):
        return command.type
    if isinstance(command, CheckpointSaved):
        return command.body
    assert isinstance(command, Deliver)
    return "receipt"


class House:
    def __init__(self) -> None:
        self.again: list[Mapping[str, str]] = []
        self.bus, self.door = LocalBus(SystemClock(), again=self.again.append), Door()
        self.worker = Worker(self.bus, self.door, Nothing(), Nothing())

    def work(self, perform: Callable[[Job], Awaitable[Done]]) -> None:
        self.worker.register("call", perform)
        self.worker.start(asyncio.get_running_loop())
        self.bus.offer([WORK])

    async def next(self) -> object:
        return told(await asyncio.wait_for(self.door.items.get(), 10))

    def so_far(self) -> list[object]:
        return [told(self.door.items.get_nowait()) for _ in range(self.door.items.qsize())]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.worker.stop()


async def test_it_comes_before_the_receipt_and_with_it(house: House) -> None:
    seen: list[object] = []

    async def perform(job: Job) -> Done:
        await job.progress("one")
        await job.save("two")
        await job.progress("three")
        seen.extend(house.so_far())
        return Done()

    house.work(perform)
    assert [await house.next() for _ in range(4)] == ["one", "two", "three", "receipt"]
    assert seen == [], "until then it was kept"


async def test_of_what_takes_long_it_comes_in_time(house: House) -> None:
    async def perform(job: Job) -> Done:
        await job.progress("one")
        await job.save("two")
        await asyncio.Event().wait()
        raise AssertionError

    house.work(perform)
    assert [await house.next() for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize("threaded", [False, True], ids=["a coroutine", "a thread"])
async def test_what_was_to_follow_a_mark_that_is_not_kept_does_not(house: House, threaded: bool) -> None:
    """Its run went on in other hands, which saw no mark: what must not be repeated would be done twice."""
    done: list[str] = []
    ended = threading.Event()

    async def perform(job: Job) -> Done:
        try:
            await job.save({"started": True}, durable=True)
            done.append(job.intent.id)
            return Done()
        finally:
            ended.set()

    house.worker.register("call", perform, threaded=lambda intent, definition: threaded)
    house.worker.start(asyncio.get_running_loop())
    house.bus.offer([WORK])
    saved = await asyncio.wait_for(house.door.items.get(), 10)
    assert isinstance(saved, CheckpointSaved)
    assert saved.ack is not None
    saved.ack({"stale": True}, None)
    assert await asyncio.to_thread(ended.wait, 10)
    assert done == []
    assert house.bus.find("i") is None, "it keeps no place"
    assert house.again == [{"i": "run"}], "and is handed out again, if it is still open"
    assert house.so_far() == [], "and nobody is told anything by who has it no more"


async def test_what_is_said_on_a_loop_of_its_own_in_a_thread_comes_in_time_and_in_order(house: House) -> None:
    async def perform(job: Job) -> Done:
        await asyncio.to_thread(lambda: asyncio.run(aside(job)))
        await job.progress("two")
        await asyncio.Event().wait()
        raise AssertionError

    async def aside(job: Job) -> None:
        await job.progress("one")

    house.work(perform)
    assert [await house.next() for _ in range(2)] == ["one", "two"]


async def test_what_somebody_waits_for_goes_at_once_and_keeps_its_place(house: House) -> None:
    async def perform(job: Job) -> Done:
        await job.progress("one")
        await job.save("two", durable=True)
        raise AssertionError("nobody says that it is durable")

    house.work(perform)
    assert await house.next() == "one"
    saved = await asyncio.wait_for(house.door.items.get(), 10)
    assert isinstance(saved, CheckpointSaved)
    assert saved.ack is not None


async def test_much_of_it_does_not_pile_up(house: House) -> None:
    seen: list[int] = []

    async def perform(job: Job) -> Done:
        for _ in range(2 * GATHERED_MAX):
            await job.progress("line")
            seen.append(house.door.items.qsize())
        return Done()

    house.work(perform)
    for _ in range(2 * GATHERED_MAX):
        assert await house.next() == "line"
    assert await house.next() == "receipt"
    assert max(at - so_far for at, so_far in enumerate(seen, 1)) < GATHERED_MAX


async def test_of_what_is_revoked_it_is_not_lost(house: House) -> None:
    begun = asyncio.Event()

    async def perform(job: Job) -> Done:
        await job.progress("one")
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    house.work(perform)
    await begun.wait()
    house.bus.revoke(["i"])
    assert await house.next() == "one"


PLAYBOOK = """
metadata: {name: said, path: said}
workflow:
  - step: start
    tool: {kind: quick}
"""


async def test_a_quick_call_is_one_commit_after_its_start(tmp_path: Path) -> None:
    """What a playbook notes before it goes outside is shown with the result of a call that is quick."""
    file = tmp_path / "said.yaml"
    file.write_text(PLAYBOOK)
    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:

        @engine.tool("quick")
        async def quick() -> int:
            await asyncio.sleep(0)
            return 1

        engine.deploy(str(file))
        fewest = 99
        for _ in range(5):  # on a busy machine even this may take longer than a moment
            run = await engine.start("said", {})
            before = commits(engine)
            await run.result(60)
            fewest = min(fewest, commits(engine) - before)
            events = [event["type"] async for event in run.events()]
            assert "task.started" in events
            assert events.index("task.started") < events.index("task.done")
        assert fewest == 1


def commits(engine: Engine) -> int:
    meter: Any = engine.meter
    return sum(meter.commit_seconds.counts)


async def test_while_a_slow_call_runs_people_see_that_it_began(tmp_path: Path) -> None:
    file = tmp_path / "said.yaml"
    file.write_text(PLAYBOOK)
    go = asyncio.Event()
    async with Engine(f"sqlite:///{tmp_path}/s.db") as engine:

        @engine.tool("quick")
        async def slow() -> int:
            await go.wait()
            return 1

        engine.deploy(str(file))
        run = await engine.start("said", {})
        until = time.monotonic() + 10
        while "task.started" not in {event["type"] async for event in run.events(follow=False)}:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        go.set()
        await run.result(60)
