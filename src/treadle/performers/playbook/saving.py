"""When the frame of a pipeline is written."""

from __future__ import annotations

import time
from typing import Any, Final

from treadle.dialects.playbook.pipeline import Pipeline
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.work.job import Job

from .frames import Frames

# Pipelines of plain functions write few checkpoints: most end before one would be of use.
SAVE_EVERY_S: Final = 0.02


class Saving:
    """When the frame of a pipeline is written: behind what was finished, and durably before a task
    that must not be repeated. A task that goes outside takes time, so what began is shown at once."""

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
        late = self.dirty and time.monotonic() - self.saved_at >= SAVE_EVERY_S
        if durable or late or (outside and pipe.events):
            await self.write(durable=durable)

    async def write(self, *, durable: bool) -> None:
        events = self.drain()
        checkpoint = await self.state()
        self.dirty, self.saved_at = False, time.monotonic()
        await self.job.save(checkpoint, durable=durable, events=events)
