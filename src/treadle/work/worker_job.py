"""One intent in the hands of the worker inside the engine's process, until it is a receipt.

Whatever becomes of it, there is a receipt: redacted, by reference where it is large, and written down
also where what was raised cannot be.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from treadle.kernel.brief import brief, shaped
from treadle.kernel.errors import PASSING, EngineStopped, SecretMissing, TreadleError, ValueRefused
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import Receipt, put_away
from treadle.kernel.tracing import OPTION
from treadle.kernel.values import Value, copied, decode_trusted, encode, to_value
from treadle.lang.handed import check_written
from treadle.runtime.commands import CheckpointSaved, Deliver, FrameSent, Progress
from treadle.runtime.ports import Work
from treadle.runtime.registry import Loaded

from .job import Done, StaysOpen
from .raised import named, plain, trace

if TYPE_CHECKING:
    from .worker import Worker

log = logging.getLogger("treadle.worker")

# What nobody waits for may wait so long for what follows: of a call that is quick it goes with the receipt, in one commit.
GATHER_S: Final = 0.01
GATHERED_MAX: Final = 64


if TYPE_CHECKING:

    class ValueRedactor(Protocol):
        @property
        def knows(self) -> bool:
            """Whether there is any secret that a value could quote."""
            ...

        def value(self, value: Value) -> Value:
            """The value without the secrets that it quotes; the same object if it quotes none."""
            ...

    class Vault(Protocol):
        """Secrets, as the worker needs them."""

        async def resolve(self, name: str, options: Mapping[str, Any]) -> str | dict[str, str]: ...

        @property
        def redactor(self) -> ValueRedactor: ...

        def learn(self, name: str, value: str | dict[str, str]) -> str | dict[str, str]:
            """From now on it is redacted."""
            ...

    class Definitions(Protocol):
        """Definitions by digest, each made ready by its machine."""

        def peek(self, digest: str) -> Loaded | None:
            """What is at hand; never waits."""
            ...

        def load(self, digest: str) -> Loaded:
            """From any thread but the core's; raises what keeps it from being loaded."""
            ...


class Unanswered:
    """Those of a worker who wait until something is durable. Where its core is over no answer comes, and a thread that
    waits cannot be cancelled: it is told."""

    def __init__(self) -> None:
        self._waiting: set[tuple[str, concurrent.futures.Future[Any]]] = set()
        self._is_over = False

    @contextmanager
    def waiting(self, intent: str) -> Iterator[concurrent.futures.Future[Any]]:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting.add((intent, done))
        try:
            if self._is_over:
                raise EngineStopped()
            yield done
        finally:
            self._waiting.discard((intent, done))

    def leave(self, intents: Collection[str]) -> None:
        """Nobody wants their work any more."""
        for intent, done in list(self._waiting):
            if intent in intents:
                _settle(done)(None, EngineStopped())

    def end(self) -> None:
        self._is_over = True
        self.leave([intent for intent, _ in list(self._waiting)])


class WorkerJob:
    """One intent in this worker's hands; see `job.Job`."""

    # What a coroutine has said and is not sent yet, in order; and who sends it in time.
    _said: tuple[list[Progress], asyncio.TimerHandle] | None = None
    # The payloads that are in the store: few jobs have some.
    _durable: frozenset[str] = frozenset()

    def __init__(self, worker: Worker, work: Work, *, threaded: bool) -> None:
        self._worker = worker
        self.work = work
        self._threaded = threaded
        # On which its coroutine is; a part of it may be done on a loop of its own, in a thread.
        self._loop = None if threaded else asyncio.get_running_loop()
        self._frames = 0
        self._blobs: dict[str, bytes] = {}
        self.worker = worker.name
        self.run = work.run
        self.workflow = work.workflow
        self.dialect = work.dialect
        self.definition = work.definition
        # A copy: what performers and tools are given is theirs to change, the run's own state is not. Its keys stand as
        # the journal brings them back, whether or not this is the first attempt.
        intent = work.intent
        row = worker.performers[work.dialect, intent.kind]
        if row is None or not row.reads:
            intent = msgspec.structs.replace(intent, params=to_value(intent.params))
        self.intent = intent
        self.options = work.options
        self.checkpoint = work.checkpoint
        self.span = None if worker.tracer is None else worker.tracer.begin(work)

    @property
    def traceparent(self) -> str | None:
        if self.span is not None:
            return str(self.span.context)
        return self.work.traceparent or self.options.get(OPTION)

    @property
    def idempotency_key(self) -> str:
        return self.intent.idempotency_key or self.intent.id

    def clean(self, text: str) -> str:
        return str(self._worker.vault.redactor.value(text))

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None:
        shown = data if value is None else value
        check_written(shown)
        frame, redactor = to_value([str(type), shown]), self._worker.vault.redactor
        kind, clean = redactor.value(frame) if redactor.knows else frame
        self._frames += 1
        self._say(FrameSent(self.run, self.intent.id, self._frames, kind, clean))

    def _say(self, progress: Progress) -> None:
        """Sends something for whose arrival nobody waits."""
        if (loop := self._loop) is None:
            self._worker.submit(progress)
        elif loop is not asyncio.get_running_loop():
            loop.call_soon_threadsafe(self._say, progress)
        elif self._said is None:
            self._said = [progress], loop.call_later(GATHER_S, self.send_said)
        else:
            gathered, _ = self._said
            gathered.append(progress)
            if len(gathered) >= GATHERED_MAX:
                self.send_said()

    def send_said(self) -> None:
        """What was said so far is on its way after this."""
        if self._said is None:
            return
        (gathered, timer), self._said = self._said, None
        timer.cancel()
        with suppress(EngineStopped):  # nobody is there to be told
            for progress in gathered:
                self._worker.submit(progress)

    async def save(
        self, checkpoint: Value, *, durable: bool = False, events: list[dict[str, Any]] | None = None
    ) -> None:
        redactor = self._worker.vault.redactor
        body, shown = to_value(checkpoint), to_value(events) if events else []
        if redactor.knows:
            body, shown = redactor.value(body), redactor.value(shown)
        blobs = self._unsaved() if self._blobs else {}
        self._worker.bus.saved(self.intent.id, body)
        if not durable:
            ack = self._noting(blobs) if blobs else None
            self._say(CheckpointSaved(self.run, self.intent.id, body, shown, blobs, ack))
            return
        self.send_said()
        with self._worker.unanswered.waiting(self.intent.id) as done:
            self._worker.submit(CheckpointSaved(self.run, self.intent.id, body, shown, blobs, _settle(done)))
            told = done.result() if self._threaded else await asyncio.wrap_future(done)
        if isinstance(told, dict) and told.get("stale"):
            # Nothing was saved, and others may do this work already: what was to follow must not.
            self._worker.bus.let_go(self.run, self.intent.id, body)
            raise EngineStopped(
                f"the work of {self.run} at {self.intent.name!r} is not in these hands any more"
            )
        self._durable = self._durable.union(blobs)

    def _unsaved(self) -> dict[str, bytes]:
        """The payloads that are not in the store yet: each goes there once, however many checkpoints follow."""
        return {digest: body for digest, body in self._blobs.items() if digest not in self._durable}

    def _noting(self, blobs: dict[str, bytes]) -> Callable[[Any, TreadleError | None], None]:
        def ack(value: Any, error: TreadleError | None) -> None:
            if error is None:
                self._durable = self._durable.union(blobs)

        return ack

    async def load_blob(self, reference: Mapping[str, Any]) -> Value:
        digest = str(reference["checksum"])
        body = self._blobs.get(digest)
        if body is None and self._threaded:
            body = self._worker.core.fetch_blob(digest)
        elif body is None:
            body = await asyncio.to_thread(self._worker.core.fetch_blob, digest)
        return decode_trusted(body)

    async def store_blob(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        write = partial(self._written, value, schema_hint)
        reference, blobs = write() if self._threaded else await asyncio.to_thread(write)
        self._blobs |= blobs
        return reference

    def _written(self, value: Value, schema_hint: str | None) -> tuple[dict[str, Any], dict[str, bytes]]:
        blobs: dict[str, bytes] = {}
        redactor = self._worker.vault.redactor
        body = encode(redactor.value(value) if redactor.knows else value)
        return put_away(body, blobs, schema_hint=schema_hint), blobs

    async def load_definition(self) -> Any:
        found = self._worker.definitions.peek(self.definition) or await self._loaded()
        return found.definition

    async def definition_file(self) -> str | None:
        return (await self._loaded()).row.file

    async def _loaded(self) -> Loaded:
        found = self._worker.definitions.peek(self.definition)
        if found is not None:
            return found
        load = self._worker.definitions.load
        try:
            return load(self.definition) if self._threaded else await self._worker.once(self.definition, load)
        except PASSING:
            raise
        except TreadleError as error:
            raise StaysOpen(f"the code of {self.workflow} is not loaded here") from error

    async def secret(self, name: str) -> str | dict[str, str]:
        try:
            return await self._worker.vault.resolve(name, self.options)
        except SecretMissing:
            found = await self._worker.core.secret(self.intent.id, name)
            if found is None:
                raise
            return self._worker.vault.learn(name, found)

    def late(self) -> None:
        self._worker.late(self.run, self.intent.id)

    def finish(self, done: Done) -> Deliver:
        """The receipt: redacted, and by reference where it is large."""
        redactor = self._worker.vault.redactor
        told: list[dict[str, Any]] = []
        if done.is_canonical:
            given, told, body = done.value, done.events, b""
        elif done.body is not None:
            given, body = done.value, done.body
            if done.events:
                told = to_value(done.events)
        elif done.events:
            # Copied together; where that is much, the value may be.
            (given, told), body = copied([done.value, done.events])
            if len(body) > PAYLOAD_INLINE_BYTES_MAX:
                body = encode(given)
        elif (given := done.value) is None or given is True or given is False:
            body = b""  # nothing to copy, nothing to measure
        else:
            given, body = copied(given)
        value = given
        if redactor.knows and (value := redactor.value(given)) is not given:
            body = encode(value)
        if len(body) > PAYLOAD_INLINE_BYTES_MAX:
            value = put_away(body, self._blobs)
        receipt = Receipt(
            intent=self.intent.id,
            status=done.status,
            value=value,
            error=brief(redactor.value(shaped(_writable(done.error)))) if done.error is not None else None,
            attempts=done.attempts,
            by=done.by,
            events=redactor.value(told) if redactor.knows else told,
        )
        row = self._worker.performers[self.dialect, self.intent.kind]
        if row is not None and row.signed:
            receipt = msgspec.structs.replace(receipt, signature=self._worker.core.sign(receipt))
        return Deliver(self.run, receipt, blobs=self._unsaved() if self._blobs else {})


def failed(job: WorkerJob, error: BaseException) -> Deliver:
    """The receipt for what a performer raised. It must be possible to write one, whatever that was."""
    try:
        # Not `exc_info`: a traceback may quote a secret.
        told = job.clean(trace(error))
        log.error("the performer of %s failed\n%s", job.intent.kind, told)
        wrapped = TreadleError(named(error), code="PERFORMER_FAILED", details={"traceback": told})
        return job.finish(Done(status="error", error=wrapped.to_value()))
    except BaseException as second:
        message = f"{type(error).__name__}, and then {type(second).__name__} while that was written down"
        bare = TreadleError(message, code="PERFORMER_FAILED")
        return Deliver(job.run, Receipt(intent=job.intent.id, status="error", error=bare.to_value()))


def _writable(error: dict[str, Any]) -> Value:
    """An error that can be recorded, whatever texts it quotes."""
    try:
        return to_value(error)
    except ValueRefused:
        return _escaped(error)


def _escaped(value: object) -> Value:
    if isinstance(value, dict):
        return {plain(str(key)): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return plain(value)
    try:
        return to_value(value)
    except ValueRefused:
        return plain(f"({type(value).__name__})")


def _settle(future: concurrent.futures.Future[Any]) -> Callable[[Any, TreadleError | None], None]:
    def ack(value: Any, error: TreadleError | None) -> None:
        with suppress(concurrent.futures.InvalidStateError):  # nobody waits any more
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

    return ack
