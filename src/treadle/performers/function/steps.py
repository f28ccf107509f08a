"""Performs the steps of durable functions: one attempt each, the function called with typed arguments.

A step is found by its name among those that this process has loaded; one that is not here stays open for a worker
that has it. Retries are the run's business (each attempt is an intent of its own, under the key of the first), and
so is the time limit, which cancels the coroutine.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treadle.dialects.function.shapes import are_simple
from treadle.dialects.function.steps import STEPS, Step
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import OpenIntent, addressed, is_reference
from treadle.kernel.values import Value
from treadle.work.job import Done, Job, StaysOpen

from .calling import attempt
from .current import Current
from .pace import StepPace

if TYPE_CHECKING:
    from treadle.performers import House

    from .apart import Apart

MARK: Final = "started"
SAVED: Final = "saved"
# The first attempt at a step without settings has these parameters: name, step, args.
BARE_PARAMS: Final = 3


class _Near(msgspec.Struct, frozen=True):
    """A step's own job, told by the step itself."""

    job: Job
    mark: bool

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None:
        await self.job.progress(type, value, **data)

    async def keep(self, value: Value) -> None:
        await self.job.save({MARK: self.mark, SAVED: value}, durable=True)


class StepPerformer:
    def __init__(self, outside: House) -> None:
        self._outside = outside
        self._pace = StepPace()

    @cached_property
    def _apart(self) -> Apart:
        """Steps in processes, imported when the first of them is called."""
        from .apart import Apart

        return Apart()

    async def close(self) -> None:
        if "_apart" in self.__dict__:
            await self._apart.close()

    def threaded(self, intent: OpenIntent, definition: Any) -> bool:
        """Whether a thread of the lane does it, which needs no event loop and goes on with the next at once: a plain
        function that was quick the last time, and waits for nothing before it is called."""
        params = intent.params
        waits = len(params) > BARE_PARAMS and (
            params.get("process") or params.get("secrets") or not params.get("idempotent", True)
        )
        return not waits and self._pace.is_quick(str(params["step"]))

    async def send(self, job: Job) -> Done:
        """A signal to another run; sent twice it is one."""
        params = await _at_hand(job.intent.params, job)
        await self._outside.signal(params["run"], params["signal"], params["data"], key=job.idempotency_key)
        return Done()

    async def publish(self, job: Job) -> Done:
        params = await _at_hand(job.intent.params, job)
        key = job.idempotency_key
        await self._outside.publish(params["schema"], params["value"], submission_id=key)
        return Done()

    async def __call__(self, job: Job) -> Done:
        params = job.intent.params
        step = STEPS.get(str(params["step"]))
        if step is None:
            raise StaysOpen(
                f"the step {params['step']!r} is not loaded here; load its file with --app FILE.py"
            )
        is_bare = len(params) == BARE_PARAMS and job.checkpoint is None
        if is_bare:
            now = Current(job.run, step.name, 1, job.idempotency_key, {}, None, _Near(job, False))
        elif isinstance(begun := await self._begun(step, job), Done):
            return begun
        else:
            now = begun
        arguments = params["args"]
        if is_reference(arguments) or not are_simple(arguments.values()):
            arguments = await _at_hand(arguments, job)
        if not is_bare and params.get("process"):
            return await self._apart.attempt(step, arguments, now)
        return await attempt(step, arguments, now, self._pace)

    async def _begun(self, step: Step[..., Any], job: Job) -> Current | Done:
        """What a step may know of its call, by its settings and what was saved; or why it is not called."""
        params = job.intent.params
        checkpoint = job.checkpoint if isinstance(job.checkpoint, dict) else {}
        idempotent = params.get("idempotent", True)
        if not idempotent and checkpoint.get(MARK):
            doubt = TreadleError(
                f"{step.name} had begun when its worker ended; whether it was done is not known",
                cls="transport",
                code="IN_DOUBT",
            )
            return Done(status="error", error=doubt.to_value())
        secrets = {name: await job.secret(name) for name in params.get("secrets", ())}
        saved = checkpoint.get(SAVED)
        if not idempotent:
            await job.save({MARK: True, SAVED: saved}, durable=True)
        tried, key = int(params.get("attempt", 1)), job.idempotency_key
        return Current(job.run, step.name, tried, key, secrets, saved, _Near(job, not idempotent))


async def _at_hand(value: Value, job: Job) -> Value:
    """The value with every reference in it loaded: outside, nobody knows our blobs."""
    if is_reference(value):
        return addressed(value, await job.load_blob(value))
    if isinstance(value, dict):
        return {key: await _at_hand(part, job) for key, part in value.items()}
    if isinstance(value, list):
        return [await _at_hand(part, job) for part in value]
    return value
