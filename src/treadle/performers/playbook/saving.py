"""When the frame of a pipeline is written, and when it is told that a task began which takes long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final, Protocol

import msgspec

from treadle.dialects.playbook.pipeline import Pipeline
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.work.job import Job

from .frames import Frames

# Pipelines of plain functions write few checkpoints: most end before one would be of use.
SAVE_EVERY_S: Final = 0.02
# A task that takes longer than this is seen to have begun; of one that takes less, people see it when it has ended.
SHOW_S: Final = 0.5


class Saving:
    """When the frame of a pipeline is written: behind what was finished, before a task that goes outside, and durably
    before one that must not be repeated."""

    # Whether what began is told before a task that goes outside, although nothing was finished.
    tells_at_once = False

    def __init__(self, job: Job) -> None:
        self.job = job
        self.dirty = False
        self.saved_at = time.monotonic()
        self.pipe: Pipeline | None = None
        self._frames: Frames | None = None

    @property
    def frames(self) -> Frames:
        """Few pipelines are restored, or go through a loop around one task."""
        if self._frames is None:
            self._frames = Frames(self.job)
        return self._frames

    async def saved(self, frame: dict[str, Any]) -> dict[str, Any]:
        """A copy of a frame, as it is saved."""
        return decode_trusted(encode(frame)) if "sub" not in frame else await self.frames.saved(frame)

    def begin(self, pipe: Pipeline) -> None:
        self.pipe = pipe

    def pipes(self) -> list[Pipeline]:
        """The pipelines whose events are still to be written."""
        return [self.pipe] if self.pipe is not None else []

    async def state(self) -> Value:
        """The checkpoint as of now: a copy, for the frame goes on changing while it is on its way."""
        assert self.pipe is not None
        return await self.saved(self.pipe.frame)

    def drain(self) -> list[dict[str, Any]]:
        """The events that were not written yet."""
        events: list[dict[str, Any]] = []
        for pipe in self.pipes():
            events += pipe.events
            pipe.events = []
        return events

    async def before(self, pipe: Pipeline, *, durable: bool, outside: bool) -> None:
        durable = durable and self.dirty
        late = self.dirty and (outside or time.monotonic() - self.saved_at >= SAVE_EVERY_S)
        if durable or late or (outside and self.tells_at_once and pipe.events):
            await self.write(durable=durable)

    async def write(self, *, durable: bool) -> None:
        events = self.drain()
        checkpoint = await self.state()
        self.dirty, self.saved_at = False, time.monotonic()
        await self.job.save(checkpoint, durable=durable, events=events)


class Overdue(Protocol):
    def show(self) -> None:
        """Tells that it began."""
        ...


class Heeded(msgspec.Struct, gc=False):
    """One who began something; None once that has ended, so that thousands of them are not kept until their time."""

    at_s: float
    overdue: Overdue | None


class Lookout:
    """Has those say that they began who take long, by one timer for all of them, however many begin in a second."""

    def __init__(self) -> None:
        # When it is their time, in this order.
        self._waiting: deque[Heeded] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def heed(self, overdue: Overdue) -> Heeded:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # an engine may be opened again, on another one
            self._waiting.clear()
        heeded = Heeded(loop.time() + SHOW_S, overdue)
        self._waiting.append(heeded)
        if len(self._waiting) == 1:
            self._loop = loop
            loop.call_later(SHOW_S, self._look)
        return heeded

    def _look(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        while self._waiting and self._waiting[0].at_s <= now:
            if (overdue := self._waiting.popleft().overdue) is not None:
                overdue.show()
        if self._waiting:
            self._loop.call_at(self._waiting[0].at_s, self._look)
