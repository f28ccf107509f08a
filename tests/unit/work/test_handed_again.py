"""Work that is taken away from a worker and given to it again, before it has let go: it is done all the same."""

from __future__ import annotations

import asyncio

from treadle.bus.local import LocalBus
from treadle.kernel.model import OpenIntent, Receipt
from treadle.runtime.commands import Command, Deliver
from treadle.runtime.ports import SystemClock, Work
from treadle.secrets.redact import Redactor
from treadle.work.job import Done, Job
from treadle.work.worker import Worker


class Door:
    """What the worker hands in."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Command] = asyncio.Queue()

    def submit(self, command: Command) -> None:
        self.items.put_nowait(command)

    def fetch_blob(self, digest: str) -> bytes:
        raise AssertionError("there are no blobs")

    def turn_with(self, item: Deliver) -> bool:
        return False

    def sign(self, receipt: Receipt) -> bytes:
        return b""


class Nothing:
    async def resolve(self, name, options):
        raise AssertionError("there are no secrets")

    redactor = Redactor()

    def peek(self, digest):
        return None

    def load(self, digest):
        raise AssertionError("there are no definitions")


async def test_work_that_comes_again_while_its_first_attempt_ends_is_done_afterwards() -> None:
    bus, door = LocalBus(SystemClock()), Door()
    worker = Worker(bus, door, Nothing(), Nothing())
    begun, let_go = asyncio.Queue[int](), asyncio.Event()
    attempts = 0

    async def perform(job: Job) -> Done:
        nonlocal attempts
        attempts += 1
        begun.put_nowait(attempts)
        if attempts == 1:
            try:
                await asyncio.Event().wait()
            finally:
                await let_go.wait()  # as a process that takes its time to end
        return Done(value=attempts)

    worker.register("call", perform)
    worker.start(asyncio.get_running_loop())
    work = Work("run", "flow", "toy", "sha256:0", {}, OpenIntent(id="i", kind="call", params={}))
    try:
        bus.offer([work])
        assert await asyncio.wait_for(begun.get(), 10) == 1
        bus.revoke(["i"])
        bus.offer([work])
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun.empty(), "not beside the first"
        let_go.set()
        assert await asyncio.wait_for(begun.get(), 10) == 2
        item = await asyncio.wait_for(door.items.get(), 10)
        assert isinstance(item, Deliver)
        assert isinstance(item.event, Receipt)
        assert item.event.value == 2
    finally:
        let_go.set()
        await worker.stop()
