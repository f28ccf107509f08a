"""The worker inside the engine's process.

Two lanes. Coroutines run as tasks on the engine's event loop; work that is known never to suspend
(plain functions) runs on threads, driven by hand, because a hop through the loop costs more than
the work. Either way one intent is one `perform(job)`, its result one receipt.

Promises: at most `concurrency` jobs at once in each lane; a revoked job is cancelled at once (a
thread cannot be killed: its late receipt is stale, and counted); nothing leaves the worker before
secrets are redacted; a value too large for the journal leaves as a reference.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from queue import SimpleQueue
from typing import Any, Protocol

import msgspec

from treadle.bus.local import LocalBus
from treadle.kernel.brief import brief
from treadle.kernel.errors import EngineStopped, TreadleError
from treadle.kernel.limits import LEASE_DURATION_MS, PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import Receipt, make_reference
from treadle.kernel.values import Value, copied, decode_trusted, digest_bytes, encode, to_value
from treadle.runtime.commands import CheckpointSaved, Command, FrameSent
from treadle.runtime.ports import Item, SystemClock, Work

from .job import Done, Performer, StaysOpen, Threaded, is_revoked

log = logging.getLogger("treadle.worker")

ANY = "*"
LOOP = "loop"
FINISH_POLL_S = 0.02


class Vault(Protocol):
    """Secrets, as the worker needs them."""

    async def resolve(self, name: str, options: Mapping[str, Any]) -> str | dict[str, str]: ...

    def redact(self, value: Value) -> Value: ...


class WorkerJob:
    """One intent in this worker's hands; see `job.Job`."""

    def __init__(self, worker: Worker, work: Work, *, threaded: bool) -> None:
        self._worker = worker
        self.work = work
        self._threaded = threaded
        self._frames = 0
        self._blobs: dict[str, bytes] = {}
        self.run = work.run
        self.workflow = work.workflow
        self.dialect = work.dialect
        self.definition = work.definition
        # A copy: what performers and tools are given is theirs to change, the run's own state is not.
        self.intent = msgspec.structs.replace(work.intent, params=to_value(work.intent.params))
        self.options = work.options
        self.checkpoint = work.checkpoint
        self._loaded = work.loaded

    @property
    def idempotency_key(self) -> str:
        return self.intent.idempotency_key or self.intent.id

    def clean(self, text: str) -> str:
        return str(self._worker.vault.redact(text))

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None:
        kind, clean = self._worker.vault.redact(to_value([str(type), data if value is None else value]))
        self._frames += 1
        self._worker.submit(FrameSent(self.run, self.intent.id, self._frames, kind, clean))

    async def save(
        self, checkpoint: Value, *, durable: bool = False, events: list[dict[str, Any]] | None = None
    ) -> None:
        redact = self._worker.vault.redact
        body, shown, blobs = redact(to_value(checkpoint)), redact(to_value(events or [])), dict(self._blobs)
        self._worker.saved(self.intent.id, body)
        if not durable:
            self._worker.submit(CheckpointSaved(self.run, self.intent.id, body, shown, blobs, None))
            return
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._worker.submit(CheckpointSaved(self.run, self.intent.id, body, shown, blobs, _settle(done)))
        if self._threaded:
            done.result()
        else:
            await asyncio.wrap_future(done)

    async def load_blob(self, reference: Mapping[str, Any]) -> Value:
        digest = str(reference["checksum"])
        body = self._blobs.get(digest)
        if body is None and self._threaded:
            body = self._worker.fetch_blob(digest)
        elif body is None:
            body = await asyncio.to_thread(self._worker.fetch_blob, digest)
        return decode_trusted(body)

    async def store_blob(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        body = encode(self._worker.vault.redact(value))
        digest = digest_bytes(body)
        self._blobs[digest] = body
        return make_reference(checksum=digest, size=len(body), schema_hint=schema_hint)

    async def load_definition(self) -> Any:
        if self._loaded is None:
            raise StaysOpen(f"the code of {self.workflow} is not loaded here")
        return self._loaded

    async def secret(self, name: str) -> str | dict[str, str]:
        return await self._worker.vault.resolve(name, self.options)

    def late(self) -> None:
        self._worker.late(self.run, self.intent.id)

    def finish(self, done: Done) -> Item:
        """The receipt: redacted, and by reference where it is large."""
        redact = self._worker.vault.redact
        given, body = copied(done.value)
        value = redact(given)
        if value is not given:
            body = encode(value)
        if len(body) > PAYLOAD_INLINE_BYTES_MAX:
            digest = digest_bytes(body)
            self._blobs[digest] = body
            value = make_reference(checksum=digest, size=len(body))
        receipt = Receipt(
            intent=self.intent.id,
            status=done.status,
            value=value,
            error=brief(redact(to_value(done.error))) if done.error is not None else None,
            attempts=done.attempts,
            by=done.by,
            events=redact(to_value(done.events)) if done.events else [],
        )
        if self._worker.sign is not None and self.dialect in self._worker.signing:
            receipt = msgspec.structs.replace(receipt, signature=self._worker.sign(receipt))
        return Item(self.run, receipt, blobs=self._blobs)


class Worker:
    def __init__(
        self,
        submit: Callable[[Command], None],
        vault: Vault,
        fetch_blob: Callable[[str], bytes],
        *,
        concurrency: int = 256,
        threads: int = 8,
    ) -> None:
        self.submit = submit
        self.vault = vault
        self.fetch_blob = fetch_blob
        self.unknown: dict[str, str] = {}
        # What could not be done here, in case what it needs is given later.
        self._parked: dict[str, Work] = {}
        # Set by the composition root: how receipts are signed, and those of which dialects.
        self.sign: Callable[[Receipt], bytes] | None = None
        self.signing: set[str] = set()
        self._concurrency = concurrency
        self._thread_count = threads
        self._performers: dict[tuple[str, str], tuple[Performer, Threaded | None]] = {}
        self._prepared: set[str] = set()
        # Set by the composition root: registers the performers of a dialect when its first work comes.
        self.prepare: Callable[[str], None] = lambda dialect: None
        clock = SystemClock()
        self._coroutines = LocalBus(clock)
        self._functions = LocalBus(clock)
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._here = threading.local()
        # Set by the bridge: turns the core with a receipt on the calling thread, if it is idle.
        self.turn_with: Callable[[Item], bool] = lambda item: False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heart: asyncio.Task[None] | None = None
        self._stopping = False
        self._leaving = False

    # --- what can be performed ---

    def register(
        self, kind: str, performer: Performer, *, dialect: str = ANY, threaded: Threaded | None = None
    ) -> None:
        """Who performs a kind of intent, of one dialect or of any. The kind `*` is every other kind."""
        self._performers[dialect, kind] = (performer, threaded)

    def _entry(self, dialect: str, kind: str) -> tuple[Performer, Threaded | None] | None:
        if dialect not in self._prepared:
            self.prepare(dialect)
            self._prepared.add(dialect)
        found = self._performers
        return found.get((dialect, kind)) or found.get((ANY, kind)) or found.get((dialect, ANY))

    # --- life ---

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        # An engine may be opened again: what was open then is handed out again by its recovery.
        self._stopping = self._leaving = False
        clock = SystemClock()
        self._coroutines, self._functions = LocalBus(clock), LocalBus(clock)
        self._tokens, self._threads = SimpleQueue(), []
        self.unknown.clear()
        self._parked.clear()
        self._loop = loop
        self._heart = loop.create_task(self._beat())

    def late(self, run: str, intent: str) -> None:
        """Of an intent that nobody holds any more: it is settled, so this receipt is stale."""
        held = any(
            work.intent.id == intent for bus in (self._coroutines, self._functions) for work in bus.held()
        )
        if not held and not self._stopping:
            self.submit(Item(run, Receipt(intent=intent, status="cancelled")))

    def take_no_more(self) -> list[Work]:
        """For whoever wants to leave: begins nothing new; what is in hand, and would be done again by
        the next one if it were dropped."""
        self._leaving = True
        return [*self._coroutines.held(), *self._functions.held()]

    async def finish(self, limit_s: float) -> bool:
        """Waits until what is in hand is done; False if that takes longer."""
        until = time.monotonic() + limit_s
        while self.take_no_more():
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(FINISH_POLL_S)
        return True

    async def stop(self) -> None:
        """Stops without settling anything: what is open stays open and is done again later."""
        self._stopping = True
        for _ in self._threads:
            self._tokens.put(False)
        waiting = list(self._tasks.values())
        if self._heart is not None:
            waiting.append(self._heart)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 1.0)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE_DURATION_MS / 3000)
            self._coroutines.renew(LOOP)
            for thread in self._threads:
                if thread.is_alive():
                    self._functions.renew(thread.name)
            if self._coroutines.expire():
                self._pump()
            for _ in range(self._functions.expire()):
                self._tokens.put(True)

    def saved(self, intent: str, checkpoint: Value) -> None:
        for bus in (self._coroutines, self._functions):
            bus.saved(intent, checkpoint)

    # --- called on the core thread ---

    def dispatch(self, works: list[Work]) -> None:
        if self._stopping or self._loop is None:
            return
        plain: list[Work] = []
        awaiting: list[Work] = []
        for work in works:
            (plain if self._is_threaded(work) else awaiting).append(work)
        if plain:
            self._functions.put(plain)
            if len(plain) == 1 and getattr(self._here, "turning", False):
                plain = []  # the thread that turned the core takes it itself
            while len(self._threads) < min(self._thread_count, self._functions.waiting):
                self._add_thread()
            for _ in plain:
                self._tokens.put(True)
        if awaiting:
            self._coroutines.put(awaiting)
            self._soon(self._pump)

    def revoke(self, intents: list[str]) -> None:
        for intent in intents:
            self._parked.pop(intent, None)
            self._functions.done(intent)
            self._coroutines.done(intent)
        if any(intent in self._tasks for intent in intents):
            self._soon(self._cancel, intents)

    def try_again(self, dialect: str) -> None:
        """Takes up what had to stay open: code of its dialect has come."""
        found = [work for work in [*self._parked.values()] if work.dialect == dialect]
        self.dispatch([work for work in found if self._parked.pop(work.intent.id, None) is not None])

    def _is_threaded(self, work: Work) -> bool:
        try:
            entry = self._entry(work.dialect, work.intent.kind)
            return entry is not None and entry[1] is not None and entry[1](work.intent, work.loaded)
        except Exception:  # the core must not stop for it; the performer finds the same, and says it
            return False

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closing: nothing is lost, it is all open
            self._loop.call_soon_threadsafe(call, *arguments)

    # --- the lane of coroutines ---

    def _pump(self) -> None:
        assert self._loop is not None
        room = self._concurrency - len(self._tasks)
        if room <= 0 or self._stopping:
            return
        for work in self._take(self._coroutines, LOOP, room):
            if work.intent.id in self._tasks:
                continue
            self._tasks[work.intent.id] = self._loop.create_task(self._run(work))

    def _cancel(self, intents: list[str]) -> None:
        for intent in intents:
            if task := self._tasks.get(intent):
                task.cancel()

    async def _run(self, work: Work) -> None:
        job = WorkerJob(self, work, threaded=False)
        try:
            try:
                item = await self._perform(job)
            except BaseException as error:
                if is_revoked(error):
                    raise
                item = _failed(job, error)
            if item is not None:
                self.submit(item)
        finally:
            self._coroutines.done(work.intent.id)
            self._tasks.pop(work.intent.id, None)
            self._pump()

    # --- the lane of plain functions ---

    def _add_thread(self) -> None:
        thread = threading.Thread(
            target=self._serve, name=f"treadle-worker-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while self._tokens.get():
            works = self._take(self._functions, threading.current_thread().name, 1)
            while works:
                (work,) = works
                job = WorkerJob(self, work, threaded=True)
                try:
                    item = _drive(self._perform(job))
                except BaseException as error:  # whatever a tool raises must not cost the thread
                    item = _failed(job, error)
                self._functions.done(work.intent.id)
                works = self._hand_in(item) if item is not None else []

    def _hand_in(self, item: Item) -> list[Work]:
        """Gives a receipt to the core. If this was all there was to do, the core is turned right here,
        and the work that follows is done by this thread too."""
        if self._stopping:
            with contextlib.suppress(EngineStopped):  # it took longer than the engine waits
                self.submit(item)
            return []
        alone = not self._functions.leased and not self._functions.waiting and not self._tasks
        if alone:
            self._here.turning = True
            turned = self.turn_with(item)
            self._here.turning = False
            if turned:
                return self._take(self._functions, threading.current_thread().name, 1)
        self.submit(item)
        return []

    # --- both ---

    def _take(self, bus: LocalBus, worker: str, limit: int) -> list[Work]:
        return [] if self._leaving else bus.take(worker, limit)

    async def _perform(self, job: WorkerJob) -> Item | None:
        entry = self._entry(job.dialect, job.intent.kind)
        if entry is None:
            return self._stays_open(job, f"nothing is registered for {job.intent.kind!r}")
        try:
            done = await entry[0](job)
            return job.finish(done)
        except StaysOpen as error:
            return self._stays_open(job, str(error))
        except TreadleError as error:
            return job.finish(Done(status="error", error=error.to_value()))
        except Exception as error:
            return _failed(job, error)

    def _stays_open(self, job: WorkerJob, why: str) -> Item | None:
        self.unknown[job.intent.id] = why
        self._parked[job.intent.id] = job.work
        log.warning("%s: %s (%s) stays open: %s", job.run, job.intent.kind, job.intent.name, why)
        data = {"intent": job.intent.id, "kind": job.intent.kind, "name": job.intent.name, "reason": why}
        self.submit(FrameSent(job.run, job.intent.id, 0, "work.unavailable", data))
        return None


def _failed(job: WorkerJob, error: BaseException) -> Item:
    # Not `exc_info`: a traceback may quote a secret.
    told = job.clean("".join(traceback.format_exception(error)))
    log.error("the performer of %s failed\n%s", job.intent.kind, told)
    wrapped = TreadleError(f"{type(error).__name__}: {error}", code="PERFORMER_FAILED")
    return job.finish(Done(status="error", error=wrapped.to_value()))


def _settle(future: concurrent.futures.Future[Any]) -> Callable[[Any, TreadleError | None], None]:
    def ack(value: Any, error: TreadleError | None) -> None:
        if future.set_running_or_notify_cancel():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

    return ack


def _drive(work: Coroutine[Any, Any, Item | None]) -> Item | None:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        found: Item | None = stop.value
        return found
    work.close()
    raise RuntimeError("work that was declared never to wait did wait")
