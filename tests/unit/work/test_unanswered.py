"""Work that waits until something is durable, and whose core is over by then: nobody is left to answer it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from treadle.bus.local import LocalBus
from treadle.kernel.errors import EngineStopped
from treadle.runtime.commands import CheckpointSaved, Command
from treadle.runtime.ports import SystemClock
from treadle.testing.bus_conformance import works
from treadle.work.job import Done, Job
from treadle.work.worker import Worker

from .test_handed_again import Door, Nothing


class SilentDoor(Door):
    """Takes what is to be saved, and answers nobody."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.saved: asyncio.Queue[CheckpointSaved] = asyncio.Queue()

    def submit(self, command: Command) -> None:
        if isinstance(command, CheckpointSaved):
            self._loop.call_soon_threadsafe(self.saved.put_nowait, command)
        else:
            super().submit(command)


def _stop(worker: Worker, bus: LocalBus) -> object:
    return asyncio.ensure_future(worker.stop())


def _revoke(worker: Worker, bus: LocalBus) -> None:
    """As a member does with all that is in hand when its core ends and another comes."""
    bus.revoke(["a"])


@pytest.mark.parametrize("leave", [_stop, _revoke], ids=["its worker stops", "its work is revoked"])
async def test_a_thread_that_waits_for_what_it_saves_is_told(
    leave: Callable[[Worker, LocalBus], object],
) -> None:
    """It would wait for ever, and the thread with it: threads cannot be cancelled."""
    bus, door = LocalBus(SystemClock()), SilentDoor(asyncio.get_running_loop())
    worker = Worker(bus, door, Nothing(), Nothing(), threads=1)
    ended = threading.Event()
    told: list[BaseException] = []

    async def perform(job: Job) -> Done:
        try:
            await job.save({"begun": True}, durable=True)
        except BaseException as error:
            told.append(error)
            raise
        finally:
            ended.set()
        return Done()

    worker.register("call", perform, threaded=lambda intent, definition: True)
    worker.performers.prepare("toy")
    worker.start(asyncio.get_running_loop())
    try:
        bus.offer(works("a"))
        saved = await asyncio.wait_for(door.saved.get(), 10)
        _leaving = leave(worker, bus)
        assert await asyncio.to_thread(ended.wait, 5)
        assert [type(error) for error in told] == [EngineStopped]
        assert saved.ack is not None
        saved.ack({}, None)  # an answer that comes after all hurts nobody
        assert door.items.empty(), "no receipt: it is done again"
    finally:
        await worker.stop()
