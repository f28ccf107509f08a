"""A lease of loop iterations (`exec: local`): one worker runs them, one intent pays for them.

One after the other, or side by side as coroutines up to the loop's `max_in_flight`. The checkpoint
holds what has ended and the frames of what is under way, so that another worker goes on after the
last finished task. The receipt reports the iterations in the order in which they ended and says
which one comes next: those that were not begun (another failed, one waits for something, enough
was gathered) go back to the machine. The machine alone counts them and writes ctx.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from treadle.dialects.playbook import errands, loops
from treadle.dialects.playbook.failures import failure, worker_failure
from treadle.dialects.playbook.model import Playbook, Step
from treadle.dialects.playbook.pipeline import Pipeline, write
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.work.job import Done, Job, StaysOpen
from treadle.work.raised import named

from .keychain import KeychainReader
from .pipeline import EVENTS_MAX, PipelineRun, Tools
from .places import FileOf
from .saving import Saving

if TYPE_CHECKING:
    from treadle.dialects.playbook.states import WrittenState

# A lease begins no further iteration after this, so that results are seen while a long loop runs.
BEGIN_S_MAX: Final = 2.0
REPORT_BYTES_MAX: Final = 32 * 1024


class LeaseRun(Saving):
    tells_at_once = True

    def __init__(
        self,
        tools: Tools,
        job: Job,
        playbook: Playbook,
        keychain: KeychainReader | None,
        errand: errands.Lease,
        *,
        file_of: FileOf | None = None,
    ) -> None:
        super().__init__(job)
        self.file_of = file_of
        self.tools, self.playbook, self.keychain = tools, playbook, keychain
        self.params = {key: value for key, value in job.intent.params.items() if key != "lease"}
        self.lease = errand.lease
        self.step: Step = playbook.steps[errand.step]
        self.slots = int(self.lease["slots"])
        self.began_at = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.retries = 0
        self.bytes = 0
        self.failed = False
        # What earlier iterations wrote, as the machine will see it: later ones read it in ctx.
        self.ctx: dict[str, Any] = dict(self.params.get("ctx") or {})
        known = {"writes": self.lease.get("writes") or {}, "appends": self.lease.get("appends") or {}}
        self.known: WrittenState = decode_trusted(encode(known))
        saved = decode_trusted(encode(job.checkpoint or {}))
        self.next = int(saved.get("next", self.lease["first"]))
        # Iterations under way: their last saved frame, None for one that has just begun.
        self.under_way: dict[int, Value] = {int(key): frame for key, frame in (saved.get("frames") or [])}
        self.live: dict[int, tuple[Pipeline, Saving]] = {}
        self.reports: list[list[Any]] = []
        for index, report in saved.get("ended") or ():
            self._count(index, report)
        self.interrupted = sorted(self.under_way)

    async def run(self) -> Done:
        try:
            if self.slots > 1 and _in_a_loop():
                await self._side_by_side()
            else:
                while not self.failed and (index := self._begin()) is not None:
                    await self._iteration(index)
        except StaysOpen:
            await self.write(durable=False)
            raise
        for index in sorted(self.under_way):
            wrong = failure("cancelled", "another iteration failed", code="CANCELLED")
            self.reports.append([index, {"status": "error", "error": wrong}])
        value = {"iterations": self.reports, "next": self.next}
        return Done(value=value, attempts=1 + self.retries, events=self.drain())

    async def _side_by_side(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while not self.failed:
                while len(running) < self.slots and (index := self._begin()) is not None:
                    running.add(asyncio.create_task(self._iteration(index)))
                if not running:
                    break
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _begin(self) -> int | None:
        """The iteration to run next, if any may begin: first those that a killed worker left."""
        if self.interrupted:
            return self.interrupted.pop(0)
        enough = self.bytes > REPORT_BYTES_MAX or time.monotonic() - self.began_at > BEGIN_S_MAX
        if enough or self.slots < 1 or self.next >= self.lease["first"] + len(self.lease["items"]):
            return None
        index = self.next
        self.next = index + 1
        self.under_way[index] = None
        self.events.append({"type": "loop.iteration.started", "step": self.step.name, "iteration": index})
        return index

    async def _iteration(self, index: int) -> None:
        assert self.step.loop is not None
        item = self.lease["items"][index - self.lease["first"]]
        params = {
            **self.params,
            "ctx": self.ctx,
            "iteration": index,
            "total": self.lease["total"],
            "iter": {**(self.params.get("iter") or {}), self.step.loop.iterator: item, "index": index},
        }
        own = f"{self.job.intent.id}.{index}"
        run = PipelineRun(
            self.tools,
            self.job,
            self.playbook,
            self.keychain,
            params=params,
            id=own,
            frame=self.under_way[index],
            saving=_Share(self, index),
            file_of=self.file_of,
        )
        try:
            done = await run.run()
        except StaysOpen:
            raise
        except TreadleError as error:
            done = _worker_failed(error)
        except Exception as error:  # as a worker does with an intent: the others go on
            done = _worker_failed(TreadleError(named(error), code="PERFORMER_FAILED"))
        self.live.pop(index, None)
        del self.under_way[index]
        self.events += done.events
        self.retries += done.attempts - 1
        self.dirty = True
        self._count(index, done.value)
        if len(self.events) >= EVENTS_MAX:
            await self.write(durable=False)

    def _count(self, index: int, report: dict[str, Any]) -> None:
        """One iteration has ended, or waits for something and keeps its place among those in flight."""
        self.reports.append([index, report])
        self.bytes += len(encode(report))
        if "suspended" in report:
            self.slots -= 1
            return
        writes = report.get("ctx") or []
        error = report.get("error")
        wrong = error or loops.conflict(self.step, self.known, writes)
        if wrong is None or wrong is error:
            for path, value in loops.patches(self.step, self.known, index, writes):
                write(self.ctx, path, value)
        assert self.step.loop is not None
        self.failed = self.failed or (wrong is not None and not self.step.loop.best_effort)

    # --- what is saved -------------------------------------------------------------------------

    def pipes(self) -> list[Pipeline]:
        return [pipe for pipe, _ in self.live.values()]

    async def state(self) -> Value:
        frames: list[Value] = []
        for index, frame in list(self.under_way.items()):
            if (running := self.live.get(index)) is not None:
                pipe, saving = running
                frame = await saving.saved(pipe.frame)
            frames.append([index, frame])
        return decode_trusted(encode({"ended": self.reports, "next": self.next, "frames": frames}))

    def drain(self) -> list[dict[str, Any]]:
        events, self.events = self.events, []
        return events + super().drain()


class _Share(Saving):
    """One iteration's part in its lease: whatever it has saved saves the whole lease."""

    tells_at_once = True

    def __init__(self, lease: LeaseRun, index: int) -> None:
        super().__init__(lease.job)
        self.lease, self.index = lease, index

    def begin(self, pipe: Pipeline) -> None:
        self.lease.live[self.index] = (pipe, self)

    async def before(self, pipe: Pipeline, *, durable: bool, outside: bool) -> None:
        self.lease.dirty = self.lease.dirty or self.dirty
        self.dirty = False
        await self.lease.before(pipe, durable=durable, outside=outside)

    async def write(self, *, durable: bool) -> None:
        await self.lease.write(durable=durable)


def _worker_failed(error: TreadleError) -> Done:
    return Done(value={"status": "error", "error": worker_failure("error", error.to_value())})


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
