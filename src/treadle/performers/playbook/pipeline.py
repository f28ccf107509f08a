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
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from treadle.dialects.playbook.failures import failure, template_failure
from treadle.dialects.playbook.given import config_of, scope_of
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
from treadle.kernel.errors import (
    BlobMissing,
    DefinitionError,
    ExpressionError,
    SecretMissing,
    TreadleError,
)
from treadle.kernel.limits import INT_MAX, INT_MIN, PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import INERT, addressed, disarmed, is_reference, may_look_like_ours
from treadle.kernel.values import Value, copied, encode
from treadle.tools.functions import FunctionTool, in_a_loop
from treadle.tools.protocol import Outcome, Tool, ToolCall, is_sync
from treadle.tools.registry import UnknownTool
from treadle.work.job import Done, Job, StaysOpen, is_revoked

from .envelopes import envelope_of, raised, says_error, timeout_s
from .keychain import KeychainReader
from .places import FileOf, relocate, say_line
from .results import externalise, find_reference, store_large
from .saving import Lookout, Saving

# A retry that waits less than this keeps its lease and waits in its coroutine.
SLEEP_S_MAX: Final = 1.0
# More events than this do not ride in the receipt; they are written on the way.
EVENTS_MAX: Final = 128

T = TypeVar("T")
# Numbers and truths take so few bytes, written out.
_TINY: Final = frozenset({int, float, bool})
_TINY_BYTES: Final = 9
_NOOP_BYTES: Final = len(encode({"status": "noop"}))
# Parts of an envelope that says nothing but its status, our own meta and the result.
_BARE: Final = 3
# What a result may take that is reported alone.
_REPORTED_BYTES_MAX: Final = PAYLOAD_INLINE_BYTES_MAX - 64
# Of a step-run that was begun before, or renders its own arguments.
_ELSEWHERE: Final = frozenset({"resume", "per_item"})
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


class PipelineRun:
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
        told: list[dict[str, Any]] | None = None,
        lookout: Lookout | None = None,
    ) -> None:
        self.file_of = file_of
        # Who sees to it that a task which takes long is shown; who shows it.
        self.lookout = lookout
        self._showing: asyncio.Task[None] | None = None
        # What is told of a step that is plain (`Step.is_plain`), once it is done.
        self.told = told
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
        first: dict[str, Any] | None = None
        if self.told is not None and self.saved is None and _ELSEWHERE.isdisjoint(self.params):
            found = await self._plainly(self.told)
            if isinstance(found, Done):
                return found
            first = found
        token = loader.set(self._payload)
        try:
            pipe = self.saving.pipe or await self._restore()
            if first is not None:
                pipe.next()
                await self._settle(pipe, first)
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

    async def _plainly(self, told: list[dict[str, Any]]) -> dict[str, Any] | Done | None:
        """A plain step without a pipeline around its task. If that is done, so is the step. Whatever else came of it is
        for a pipeline; so is all of it (None) where its tool is not a function, or its fields cannot be rendered."""
        (task,) = self.step.tasks
        if (given := self._given(task)) is None:
            return None
        tool, config = given
        started = time.monotonic()
        outcome, armed = await (self._called if tool.sync else self._awaited)(tool, config, _NO_CALL)
        result = outcome.result
        failed = isinstance(result, dict) and says_error(result, task)
        is_done = outcome.status == "ok" and not armed and not failed
        if not is_done or self.saving.pipe is not None or not self._stays(result, task):
            return await self._judged(task, 1, outcome, started, armed=armed)
        value = {"status": "ok"} if result is None else {"result": result, "status": "ok"}
        if (iteration := self.params.get("iteration")) is not None:
            told = [{**event, "iteration": iteration} for event in told]
        return Done(value=value, events=told, is_canonical=self._is_canonical(result))

    def _given(self, task: Task) -> tuple[FunctionTool, dict[str, Any]] | None:
        """Apart from the call, which may take long: the names that the task's templates see need not live as long."""
        step, params = self.step, self.params
        scope = scope_of(step, params, params.get("ctx") or {}, params.get("iter") or {}, run=self.job.run)
        scope.names["_task"], scope.names["_attempt"] = task.view, 1
        try:
            config = {"name": task.name, "kind": task.kind, **config_of(step, task, scope)}
            tool = self.tools.get(task.kind, config)
        except (PayloadNeeded, ExpressionError, UnknownTool):
            return None
        return (tool, config) if isinstance(tool, FunctionTool) and not tool.takes_call else None

    async def _call(self, pipe: Pipeline, action: Perform, config: dict[str, Any]) -> dict[str, Any]:
        task = action.task
        try:
            tool = self.tools.get(task.kind, config)
        except UnknownTool as error:
            raise StaysOpen(error.message) from error
        outside = not is_sync(tool)
        if self.saving.dirty or (outside and self.saving.tells_at_once):
            repeatable = self.tools.is_idempotent(task.kind, config)
            await self.saving.before(pipe, durable=not repeatable, outside=outside)
        ours: set[str] = set()
        # Most functions look at their arguments only.
        asks = not isinstance(tool, FunctionTool) or tool.takes_call
        call = self._tool_call(pipe, action, config, ours) if asks else _NO_CALL
        started = time.monotonic()
        outcome, armed = await (self._awaited if outside else self._called)(tool, config, call)
        return await self._judged(task, action.attempt, outcome, started, armed=armed, ours=ours)

    async def _awaited(self, tool: Tool, config: dict[str, Any], call: ToolCall) -> tuple[Outcome, bool]:
        """What a tool gives that goes outside, which may take long."""
        if self.lookout is None or not in_a_loop():
            return await self._called(tool, config, call)
        heeded = self.lookout.heed(self)
        try:
            found = await self._called(tool, config, call)
        finally:
            heeded.overdue = None
        if self._showing is not None:
            await self._showing
            self._showing = None
        return found

    def show(self) -> None:
        self._showing = asyncio.create_task(self._show())

    async def _show(self) -> None:
        if (pipe := self.saving.pipe) is None:
            pipe = await self._restore()
            pipe.next()
        if pipe.events:
            await self.saving.write(durable=False)

    async def _called(self, tool: Tool, config: dict[str, Any], call: ToolCall) -> tuple[Outcome, bool]:
        """What a tool gives, and whether anything in its result may be taken for a reference."""
        try:
            outcome = await tool.run(config, call)
            if not isinstance(outcome.result, dict | list):
                return outcome, False
            result, armed = self._taken(outcome.result)
            return msgspec.structs.replace(outcome, result=result), armed
        except StaysOpen:
            raise
        except BaseException as error:  # a tool that raises where it should report
            if is_revoked(error):
                raise
            return raised(error), False

    async def _judged(
        self,
        task: Task,
        attempt: int,
        outcome: Outcome,
        started: float,
        *,
        armed: bool,
        ours: Collection[str] = (),
    ) -> dict[str, Any]:
        """What came of a task, as its policy sees it."""
        job = self.job
        self.saving.dirty = True
        if outcome.error is not None and self.file_of is not None:
            if task.kind == "python":
                file = await self.file_of(job)
                await relocate(outcome, self.step.name, task, file, job.options.get("base"))
            elif outcome.error.get("code") == SecretMissing.code:
                await say_line(outcome.error, self.step.name, job, self.file_of)
        envelope = envelope_of(outcome, task, attempt, time.monotonic() - started)
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
            timeout_s=timeout_s(config),
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
        limit = self.playbook.inline_bytes_max
        if result is None or type(result) in _TINY:
            return limit >= _TINY_BYTES
        if type(result) is str:
            return limit >= 4 * len(result) + _TINY_BYTES
        known, size = self._measured
        return known is result and size <= limit

    async def _done(self, pipe: Pipeline, end: Ended) -> Done:
        limit = self.playbook.inline_bytes_max
        value: dict[str, Any] = {"status": end.status}
        index, attempt = pipe.frame.get("by") or (-1, 1)
        if end.result is not None:
            task = self.step.tasks[index]
            value["result"] = (
                end.result
                if self._stays(end.result, task)
                else await externalise(
                    self.job, self.step, task, end.result, limit, run=self.id, attempt=attempt
                )
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
        return Done(value=value, attempts=1 + pipe.retries, events=pipe.events)

    def _is_canonical(self, result: Value) -> bool:
        """Of what a function gave, which stays: whether the journal has it just as it stands here. A float may be -0.0."""
        if type(result) is int:
            return INT_MIN <= result <= INT_MAX
        if type(result) is str:
            return 4 * len(result) <= _REPORTED_BYTES_MAX
        known, size = self._measured
        return type(result) is bool or (known is result and size <= _REPORTED_BYTES_MAX)
