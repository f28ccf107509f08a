"""Those who do the work of a simulated process, driven by hand: with leases, or as its resident (`resident.py`).

SimWorkers run the workload's own performers. What they send travels through the world's unreliable network; a resident hands
it to its own core.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.bus.data import DEFAULT_POOL
from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import Receipt, put_away
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.runtime.commands import CheckpointSaved, Deliver, FrameSent
from treadle.runtime.ports import Work
from treadle.work.job import Done, StaysOpen

from .resident import SimResident
from .weather import MS

if TYPE_CHECKING:
    from .process import SimProcess

LEASE_MS = 2_000
Doing = Coroutine[Any, Any, Done]


class Waiting:
    """What a simulated job awaits: it is resumed when its checkpoint is durable, or never."""

    def __init__(self, command: CheckpointSaved | None) -> None:
        self.command = command

    def __await__(self) -> Generator[Waiting, None, None]:
        yield self


class SimJob:
    """One intent in a simulated worker's hands; see `treadle.work.job.Job`."""

    def __init__(self, process: SimProcess, work: Work) -> None:
        self._process = process
        self._work = work
        self._frames = 0
        self._blobs: dict[str, bytes] = {}
        self.run, self.workflow, self.definition = work.run, work.workflow, work.definition
        self.intent, self.options, self.checkpoint = work.intent, work.options, work.checkpoint
        self.span = None

    @property
    def idempotency_key(self) -> str:
        return self.intent.idempotency_key or self.intent.id

    def clean(self, text: str) -> str:
        return text

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None:
        self._frames += 1
        sent = data if value is None else value
        self._process.world.network.send(FrameSent(self.run, self.intent.id, self._frames, type, sent))

    async def save(
        self, checkpoint: Value, *, durable: bool = False, events: list[dict[str, Any]] | None = None
    ) -> None:
        saved = CheckpointSaved(
            self.run, self.intent.id, checkpoint, events or [], dict(self._blobs), ack=None
        )
        if durable:
            await Waiting(saved)
        else:
            self._process.world.network.send(saved)

    async def load_blob(self, reference: Mapping[str, Any]) -> Value:
        digest = str(reference["checksum"])
        return decode_trusted(self._blobs.get(digest) or self._process.world.store.blob(digest))

    async def store_blob(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        return put_away(encode(value), self._blobs, schema_hint=schema_hint)

    async def load_definition(self) -> Any:
        # A worker's own way to the store: what fails the core's connection does not fail this one.
        return self._process.registry_of(self._process.world.store).load(self.definition).definition

    async def definition_file(self) -> str | None:
        return None

    async def secret(self, name: str) -> str | dict[str, str]:
        return f"secret-{name}"

    def late(self) -> None:
        """Nothing runs on a thread here."""

    async def never(self) -> None:
        """For performers that must not end before their deadline or cancellation."""
        await Waiting(None)

    def pay(self, what: str) -> int:
        """Calls somebody outside who heeds keys."""
        return self._process.world.outside.pay(what, self.idempotency_key)

    def call(self) -> None:
        """Calls somebody outside who heeds none. Who has a lease may call although another has it by now: that is
        looked at elsewhere (`bus/hatch.py`), and here they all heed it."""
        if self._process.world.places:
            self._process.world.outside.call(self.intent.id)

    def finish(self, done: Done) -> Deliver:
        value = done.value
        if len(body := encode(value)) > PAYLOAD_INLINE_BYTES_MAX:
            value = put_away(body, self._blobs)
        receipt = Receipt(
            intent=self.intent.id,
            status=done.status,
            value=value,
            error=done.error,
            attempts=done.attempts,
            events=done.events,
        )
        return Deliver(self.run, receipt, blobs=self._blobs)


class SimWorkers:
    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._world = world = process.world
        self._jobs: dict[str, Doing] = {}
        self._resident: SimResident | None = None
        if world.places:
            self._resident = SimResident(process.bus, world.places, self._take_up, self.drop, self._soon)

    def close(self) -> None:
        self.drop(list(self._jobs))

    def drop(self, intents: Iterable[str]) -> None:
        """Their work is not wanted any more."""
        for intent in intents:
            if (job := self._jobs.pop(intent, None)) is not None:
                job.close()

    def done(self, intent: str) -> None:
        """Its receipt is with the core."""
        if self._resident is None:
            self._process.bus.done(intent)
            return
        self._resident.done(intent)
        self._soon()

    def expire(self) -> None:
        if not self._process.dead:
            if self._process.bus.expire():
                self.pump()
            self._world.after(LEASE_MS * MS // 2, self.expire)

    def _soon(self) -> None:
        self._world.after(self._world.rng.randrange(MS), self.pump)

    def pump(self) -> None:
        if self._process.dead:
            return
        if self._resident is not None:
            self._resident.pump()
            return
        for handed in self._process.bus.take("worker", (DEFAULT_POOL,), 16):
            self._take_up(handed.work)

    def _take_up(self, work: Work) -> None:
        world = self._world
        quick = self._process.core.held_open and world.rng.random() < 0.7
        pause_ns = world.rng.randrange(MS) if quick else world.network.work_ns(LEASE_MS)
        world.after(pause_ns, partial(self._begin, work))

    def _begin(self, work: Work) -> None:
        world, intent = self._world, work.intent.id
        performer = world.workload.performers.get(work.intent.kind)
        if self._process.dead or performer is None or not self._has(intent):
            return
        if not world.is_pure(intent):
            world.journals.assert_opened(work)
        job = SimJob(self._process, work)
        world.performed[intent] = world.performed.get(intent, 0) + 1
        self._drive(job, performer(job))  # type: ignore[arg-type]  # a simulated job has what a performer asks of it

    def _has(self, intent: str) -> bool:
        """Whether it is still in hand here; those with leases do not know that."""
        return self._resident is None or intent in self._resident.in_hand

    def _drive(self, job: SimJob, work: Doing) -> None:
        if self._process.dead:
            work.close()
            return
        try:
            waiting = work.send(None)
        except StopIteration as stop:
            self._replace(job, None, work)
            self._finish(job.finish(stop.value))
        except StaysOpen:
            return
        except TreadleError as error:
            self._finish(job.finish(Done(status="error", error=error.to_value())))
        else:
            self._replace(job, work, work)
            self._suspend(job, work, waiting)

    def _finish(self, item: Deliver) -> None:
        if self._resident is None:
            self._world.network.send(item, worker=self._process)
            return
        self._world.step(self._process, lambda: self._process.hand_in(item))

    def _replace(self, job: SimJob, kept: Doing | None, work: Doing) -> None:
        """What was suspended for the same intent is given up here and now. Left to the collector it would
        clean up at any moment, in the middle of an import too."""
        former = self._jobs.pop(job.intent.id, None)
        if former is not None and former is not work:
            former.close()
        if kept is not None:
            self._jobs[job.intent.id] = kept

    def _resume(self, job: SimJob, work: Doing) -> None:
        if self._jobs.get(job.intent.id) is work:
            self._drive(job, work)

    def _give_up(self, job: SimJob, work: Doing) -> None:
        """As `WorkQueues.let_go` does; the leases of others run out."""
        if self._jobs.get(job.intent.id) is work:
            self.drop([job.intent.id])
            if self._resident is not None:
                self._resident.done(job.intent.id)
                self._process.offer_again({job.intent.id: job.run})
                self._soon()

    def _suspend(self, job: SimJob, work: Doing, waiting: Waiting) -> None:
        saved = waiting.command
        if saved is None:
            return

        def ack(value: Any, error: TreadleError | None) -> None:
            if error is not None or value.get("stale"):
                # What was to follow must not: others may have it by now (`WorkerJob.save`).
                self._world.after(self._world.rng.randrange(MS), lambda: self._give_up(job, work))
                return
            self._world.journals.saved(saved)
            self._world.after(self._world.rng.randrange(MS), lambda: self._resume(job, work))

        saving = msgspec.structs.replace(saved, ack=ack)
        if self._resident is None:
            self._world.network.send(saving)
        else:
            self._process.core.submit(saving)
