"""One pipeline in a worker's hands: drives the pure pipeline interpreter with real tools.

Templates are rendered here, at the worker, with
keychain values resolved at the moment of use. After each finished task the pipeline's frame is
saved, durably before a task that must not be repeated, so that another worker goes on after the
last finished task. A pipeline that must wait long gives its lease back by a receipt
`{"suspended": frame, "on": …}`; the machine resumes it with a new intent.

It awaits nothing but tools and the job, so a pipeline of plain functions never suspends and a
worker thread may drive it without an event loop (`never_waits`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from treadle.dialects.playbook.failures import failure, template_failure
from treadle.dialects.playbook.handles import PayloadNeeded, loader
from treadle.dialects.playbook.model import SUSPENDING, Playbook, Step, Task
from treadle.dialects.playbook.pipeline import (
    Ended,
    Perform,
    Pipeline,
    Sleep,
    new_frame,
    task_key,
)
from treadle.dialects.playbook.suspension import request
from treadle.kernel.brief import brief
from treadle.kernel.errors import BlobMissing, DefinitionError, ExpressionError, SecretMissing, TreadleError
from treadle.kernel.limits import INT_MAX, INT_MIN, PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import INERT, addressed, disarmed, is_reference, may_look_like_ours
from treadle.kernel.values import Value, copied, decode_trusted, encode
from treadle.tools.functions import FunctionTool, exception_outcome
from treadle.tools.protocol import Outcome, Tool, ToolCall
from treadle.tools.registry import UnknownTool
from treadle.work.job import Done, Job, StaysOpen, is_revoked

from .frames import Frames
from .keychain import KeychainReader
from .places import FileOf, relocate, say_line
from .results import externalise, find_reference, store_large

# A retry that waits less than this keeps its lease and waits in its coroutine.
SLEEP_S_MAX: Final = 1.0
# Pipelines of plain functions write few checkpoints: most end before one would be of use.
SAVE_EVERY_S: Final = 0.02
# More events than this do not ride in the receipt; they are written on the way.
EVENTS_MAX: Final = 128

T = TypeVar("T")
# Numbers and truths take so few bytes, written out.
_TINY: Final = frozenset({int, float, bool})
_TINY_BYTES: Final = 9
_NOOP_BYTES: Final = len(encode({"status": "noop"}))
# Parts of an envelope that says nothing but its status, our own meta and the result.
_BARE: Final = 3
# A report that says nothing but its status and a result; and what such a result may take.
_BARE_REPORT: Final = 2
_REPORTED_BYTES_MAX: Final = PAYLOAD_INLINE_BYTES_MAX - 64
# For functions that do not look at it.
_NO_CALL: Final = ToolCall()


class ReferenceGone(TreadleError):
    """The payload behind a reference is not there any more: it expired, or was removed."""

    cls = "consistency"
    code = "REFERENCE_NOT_AVAILABLE"


class Tools(Protocol):
    """Tools by kind, as the pipeline asks for them (see `registry.ToolRegistry`)."""

    @property
    def changes(self) -> int:
        """Another number once a tool may be another."""
        ...

    def get(self, kind: str, config: Mapping[str, Any] | None = None) -> Tool: ...

    def is_idempotent(self, kind: str, config: Mapping[str, Any]) -> bool: ...

    def is_pure(self, kind: str, config: Mapping[str, Any]) -> bool: ...


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


class StepRun:
    """One pipeline: of a step-run, or of one iteration. An iteration of a lease brings its own
    parameters, id, frame and way of saving; alone these are the job's."""

    def __init__(
        self,
        tools: Tools,
        job: Job,
        playbook: Playbook,
        keychain: KeychainReader | None,
        *,
        params: Mapping[str, Any] | None = None,
        id: str | None = None,
        frame: Value = None,
        saving: Saving | None = None,
        file_of: FileOf | None = None,
    ) -> None:
        self.file_of = file_of
        self.tools, self.job, self.playbook, self.keychain = tools, job, playbook, keychain
        self.params = job.intent.params if params is None else params
        self.step: Step = playbook.steps[self.params["step"]]
        self.id = id or job.intent.id
        self.first = str(self.params.get("first") or self.id)
        self.saved: Value = job.checkpoint if saving is None else frame
        self.saving = saving or Saving(job)
        self.payloads: dict[str, Value] = {}
        # The last result with parts, and how large it is written out.
        self._measured: tuple[Value, int] = (None, 0)

    async def run(self) -> Done:
        token = loader.set(self._payload)
        try:
            pipe = await self._restore()
            while True:
                try:
                    action = pipe.next()
                except PayloadNeeded as need:
                    await self._fetch(need)
                    continue
                if isinstance(action, Ended):
                    return await self._done(pipe, action)
                if isinstance(action, Sleep):
                    if not await self._slept(action.seconds):
                        after_ns = int(action.seconds * 10**9)
                        on = {"kind": "timer", "name": "retry", "after_ns": after_ns, "retry": True}
                        return await self._suspended(pipe, on)
                    pipe.woke()
                    continue
                if len(pipe.events) >= EVENTS_MAX:
                    await self.saving.write(durable=False)
                outcome = await self._outcome(pipe, action)
                if isinstance(outcome, Done):
                    return outcome
                await self._settle(pipe, outcome)
        finally:
            loader.reset(token)

    def _payload(self, reference: Mapping[str, Any]) -> Value:
        try:
            return self.payloads[str(reference["checksum"])]
        except KeyError:
            raise PayloadNeeded(reference) from None

    async def _with_payloads(self, call: Callable[..., T], *args: Any) -> T:
        """Evaluates, loading the payloads that turn out to be looked into."""
        while True:
            try:
                return call(*args)
            except PayloadNeeded as need:
                await self._fetch(need)

    async def _fetch(self, need: PayloadNeeded) -> None:
        try:
            payload = await self.job.load_blob(need.reference)
        except (BlobMissing, KeyError) as error:
            address = need.reference.get("ref") or need.reference["checksum"]
            raise ReferenceGone(f"blob expired: the payload of {address} is gone") from error
        self.payloads[str(need.reference["checksum"])] = payload

    async def _settle(self, pipe: Pipeline, outcome: dict[str, Any]) -> None:
        try:
            pipe.settle(outcome)
        except PayloadNeeded as need:
            await self._fetch(need)
            await self._with_payloads(pipe.decide)

    async def _restore(self) -> Pipeline:
        params, job = self.params, self.job
        names = self.step.needs.keychain
        keychain = {} if names == [] or self.keychain is None else await self.keychain.read(names)
        resume = params.get("resume")
        frame, answer = self.saved, None
        if frame is None and resume is not None:
            frame, answer = resume["frame"], resume.get("outcome")
            if is_reference(frame):
                frame = await job.load_blob(frame)
        fresh = frame is None
        if frame is None:
            frame = new_frame(dict(params.get("iter") or {}))
        else:
            # A copy: what the intent holds is the core's, and the pipeline changes its frame in place.
            frame = await self.saving.frames.whole(frame)
            # A fork may have given the step other tasks since it failed.
            if frame.pop("labels", None) not in (None, list(self.step.labels)):
                frame = new_frame(dict(params.get("iter") or {}))
        pipe = Pipeline(self.step, params, frame, run=job.run, keychain=keychain)
        self.saving.begin(pipe)
        if fresh and "iteration" not in params:
            pipe.events.append(self.step.told.started)
        if "sleep" in frame:
            pipe.woke()
        if answer is not None:
            await self._with_payloads(pipe.next)
            await self._settle(pipe, answer)
        return pipe

    # --- one task ------------------------------------------------------------------------------

    async def _outcome(self, pipe: Pipeline, action: Perform) -> dict[str, Any] | Done:
        """The outcome of one task, or the receipt with which the pipeline gives its lease back."""
        task = action.task
        suspending = task.kind in SUSPENDING
        try:
            try:
                config = pipe.config(task, load=not suspending)
            except PayloadNeeded as need:
                await self._fetch(need)
                config = await self._with_payloads(lambda: pipe.config(task, load=not suspending))
        except ExpressionError as error:
            return {"status": "error", "error": template_failure(error)}
        except ReferenceGone as error:
            return {"status": "error", "error": failure("storage_access", error.message, code=error.code)}
        if task.kind == "noop":
            if "result" in config:
                return {"status": "ok", "result": self._taken(config["result"])[0]}
            self._measured = {"status": "noop"}, _NOOP_BYTES
            return {"status": "ok", "result": self._measured[0]}
        if suspending:
            try:
                on = request(task.kind, {"name": task.name, **config}, pipe.frame["iter"])
            except DefinitionError as error:
                return {
                    "status": "error",
                    "error": failure("schema", f"{task.where}: {error.message}", code=error.code),
                }
            return await self._suspended(pipe, on)
        return await self._call(pipe, action, {"name": task.name, "kind": task.kind, **config})

    async def _call(self, pipe: Pipeline, action: Perform, config: dict[str, Any]) -> dict[str, Any]:
        task, job = action.task, self.job
        try:
            tool = self.tools.get(task.kind, config)
        except UnknownTool as error:
            raise StaysOpen(error.message) from error
        outside = not getattr(tool, "sync", False)
        if self.saving.dirty or outside:
            repeatable = self.tools.is_idempotent(task.kind, config)
            await self.saving.before(pipe, durable=not repeatable, outside=outside)
        ours: set[str] = set()
        # Most functions look at their arguments only.
        asks = not isinstance(tool, FunctionTool) or tool.takes_call
        call = self._tool_call(pipe, action, config, ours) if asks else _NO_CALL
        started, armed = time.monotonic(), False
        try:
            outcome = await tool.run(config, call)
            if isinstance(outcome.result, dict | list):
                result, armed = self._taken(outcome.result)
                outcome = msgspec.structs.replace(outcome, result=result)
        except StaysOpen:
            raise
        except BaseException as error:  # a tool that raises where it should report
            if is_revoked(error):
                raise
            outcome = _raised(error)
        self.saving.dirty = True
        if outcome.error is not None and self.file_of is not None:
            if task.kind == "python":
                file = await self.file_of(job)
                await relocate(outcome, self.step.name, task, file, job.options.get("base"))
            elif outcome.error.get("code") == SecretMissing.code:
                await say_line(outcome.error, self.step.name, job, self.file_of)
        envelope = _envelope(outcome, task, action.attempt, time.monotonic() - started)
        if armed or outcome.meta or len(envelope) > _BARE:
            # What a tool gives is data, but for references to what it stored here itself.
            envelope = disarmed(envelope, ours=ours)
        if (wrong := envelope.get("error")) is not None:
            envelope["error"] = brief(wrong, clean=job.clean)
        return envelope

    def _taken(self, result: Value) -> tuple[Value, bool]:
        """A result whose keys stand as a frame would bring them back, so that a worker that dies changes nothing; and
        whether anything in it may be taken for a reference."""
        if not isinstance(result, dict | list):
            return result, False
        result, body = copied(result)
        self._measured = result, len(body)
        return result, may_look_like_ours(body)

    def _tool_call(
        self, pipe: Pipeline, action: Perform, config: Mapping[str, Any], ours: set[str]
    ) -> ToolCall:
        """What a tool may know; `ours` will have the checksums of what it stores."""
        task, job = action.task, self.job

        async def store_blob(value: Value, **how: Any) -> dict[str, Any]:
            reference: dict[str, Any] = await job.store_blob(value, **how)
            ours.add(str(reference["checksum"]))
            return reference

        async def progress(type: str, value: Value = None, /, **data: Value) -> None:
            told = {**data, **pipe.stamp, "task": task.name, "attempt": action.attempt}
            await job.progress(type, value, **(told if value is None else {}))

        return ToolCall(
            run=job.run,
            idempotency_key=task_key(self.first, task.name, action.entry, action.item),
            attempt=action.attempt,
            timeout_s=_timeout_s(config),
            base=job.options.get("base"),
            progress=progress,
            # Names that no keychain declares are plain secrets.
            secret=job.secret if self.keychain is None else self.keychain.secret,
            load_blob=lambda reference: self._load(pipe, reference),
            store_blob=store_blob,
            options=job.options,
        )

    async def _load(self, pipe: Pipeline, reference: Mapping[str, Any]) -> Value:
        """A payload, by its reference or by the address of one that this step was given. KeyError: none."""
        found: Mapping[str, Any] | None = reference
        if "checksum" not in reference:
            found = find_reference([self.params, pipe.frame], str(reference["ref"]))
        if found is None or INERT in found:
            raise KeyError(str(reference.get("ref") or reference.get("checksum")))
        return addressed(found, await self.job.load_blob(found))

    async def _slept(self, seconds: float) -> bool:
        """Waits here if it is short and there is an event loop to wait in."""
        if seconds >= SLEEP_S_MAX:
            return False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        await asyncio.sleep(seconds)
        return True

    # --- the receipt ---------------------------------------------------------------------------

    async def _suspended(self, pipe: Pipeline, on: dict[str, Any]) -> Done:
        value = {"suspended": await self._kept(pipe.frame), "on": on, "first": self.first}
        return Done(value=value, attempts=1 + pipe.retries, events=pipe.events)

    async def _kept(self, frame: dict[str, Any]) -> Value:
        frame = await self.saving.saved(frame)
        if len(encode(frame)) <= self.playbook.inline_bytes_max:
            return frame
        return await self.job.store_blob(frame, schema_hint="pipeline frame")

    def _stays(self, result: Value, task: Task) -> bool:
        """Whether a result is known to be small, and nobody has asked for it to be stored."""
        if task.spec.get("result"):
            return False
        if type(result) in _TINY:
            return self.playbook.inline_bytes_max >= _TINY_BYTES
        known, size = self._measured
        return known is result and size <= self.playbook.inline_bytes_max

    async def _done(self, pipe: Pipeline, end: Ended) -> Done:
        limit, result = self.playbook.inline_bytes_max, end.result
        value: dict[str, Any] = {"status": end.status}
        index, attempt = pipe.frame.get("by") or (-1, 1)
        stays = result is not None and self._stays(result, self.step.tasks[index])
        if stays:
            value = {"result": result, "status": end.status}  # in canonical order
        elif result is not None:
            task = self.step.tasks[index]
            value["result"] = await externalise(
                self.job, self.step, task, result, limit, run=self.id, attempt=attempt
            )
        if (tried := attempt if end.error is None else pipe.frame["attempt"]) > 1:
            value["attempt"] = tried
        if end.error is not None:
            value["error"] = end.error
            if (frame := pipe.frame_again()) is not None and "iteration" not in self.params:
                value["again"] = {"frame": await self._kept(frame), "first": self.first}
        if pipe.frame["ctx"]:
            value["ctx"] = [
                [path, await store_large(self.job, item, limit)] for path, item in pipe.frame["ctx"]
            ]
        if self.step.reads_iter and self.step.loop is None:
            value["iter"] = pipe.frame["iter"]
        alone = stays and len(value) == _BARE_REPORT and pipe.tells_known
        canonical = alone and self._is_canonical(result)
        return Done(value=value, attempts=1 + pipe.retries, events=pipe.events, is_canonical=canonical)

    def _is_canonical(self, result: Value) -> bool:
        """Of a result that stays: whether the journal has it just as it stands here. A float may be -0.0."""
        if type(result) is int:
            return INT_MIN <= result <= INT_MAX
        known, size = self._measured
        return type(result) is bool or (known is result and size <= _REPORTED_BYTES_MAX)


def _timeout_s(config: Mapping[str, Any]) -> float | None:
    limit = config.get("timeout", (config.get("spec") or {}).get("timeout"))
    return float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _envelope(outcome: Outcome, task: Task, attempt: int, duration_s: float) -> dict[str, Any]:
    """The outcome as policies see it: absent parts are undefined, not null."""
    status, error = outcome.status, outcome.error
    result = outcome.result
    says_error = isinstance(result, dict) and result.get("status") == "error"
    if status == "ok" and says_error and (task.spec.get("result") or {}).get("error_status") != "ignore":
        status, error = "error", _error_in(result)
    meta = {"attempt": attempt, "duration_ms": round(duration_s * 1000, 3), **outcome.meta}
    envelope: dict[str, Any] = {"status": status, "meta": meta}
    if result is not None or status == "ok":
        envelope["result"] = result
    if error is not None:
        envelope["error"] = error
    if outcome.http is not None:
        envelope["http"] = outcome.http
    if outcome.pg is not None:
        envelope["pg"] = outcome.pg
    if outcome.py is not None:
        envelope["py"] = outcome.py
    return envelope


def _raised(error: BaseException) -> Outcome:
    """What a tool raised, as the outcome it should have given."""
    if isinstance(error, TreadleError):
        kind = {"authorization": "auth", "timeout": "timeout", "transport": "connection"}.get(
            error.cls, "unknown"
        )
        return Outcome.failed(kind, error.message, code=error.code, details=error.details)
    outcome = exception_outcome(error)
    assert outcome.error is not None
    outcome.error["kind"] = "unknown"
    return outcome


def _error_in(result: Mapping[str, Any]) -> dict[str, Any]:
    given = result.get("error")
    if isinstance(given, dict):
        return {**failure("unknown", str(given.get("message", given))), **given}
    return failure("unknown", str(given or result.get("message") or "the result says status: error"))
