"""Performs the steps of durable functions: one attempt each, the function called with typed arguments.

A step is found by its name among those that this process has loaded; one that is not here stays open for a worker
that has it. Retries are the run's business (each attempt is an intent of its own, under the key of the first), and
so is the time limit, which cancels the coroutine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from treadle.dialects.function.errors import Fatal
from treadle.dialects.function.shapes import EMPTY, plain, typed
from treadle.dialects.function.steps import STEPS, Step
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import addressed, disarmed, is_reference
from treadle.kernel.values import Value
from treadle.tools.functions import aside
from treadle.work.job import Done, Job, StaysOpen, is_revoked
from treadle.work.raised import named, trace, words

if TYPE_CHECKING:
    from treadle.performers import House

MARK: Final = "started"
SAVED: Final = "saved"


class StepRaised(TreadleError):
    """A step raised an exception."""

    cls = "transport"
    code = "STEP_FAILED"


@dataclass(slots=True)
class Current:
    """`flow.current()`: what a step may know of its call."""

    run: str
    step: str
    attempt: int
    idempotency_key: str
    secrets: dict[str, str | dict[str, str]]
    saved: Value
    _job: Job
    _mark: bool

    async def progress(self, type: str, value: Value = None, **data: Value) -> None:
        """Shows people how far the step is."""
        await self._job.progress(type, value, **data)

    async def save(self, value: Any) -> None:
        """Keeps a value for the next attempt at this very call: `flow.current().saved`, after a crash."""
        self.saved = plain(value)
        await self._job.save({MARK: self._mark, SAVED: self.saved}, durable=True)


_CURRENT: ContextVar[Current] = ContextVar("treadle_step")


def current() -> Current:
    """The step that is being performed."""
    found = _CURRENT.get(None)
    if found is None:
        raise TreadleError("flow.current() is for steps, while they run", cls="user", code="UNSUPPORTED")
    return found


class StepPerformer:
    def __init__(self, outside: House) -> None:
        self._outside = outside

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
        now = Current(
            job.run,
            step.name,
            int(params.get("attempt", 1)),
            job.idempotency_key,
            secrets,
            saved,
            job,
            not idempotent,
        )
        return await self._called(step, await _at_hand(params["args"], job), now)

    async def _called(self, step: Step[..., Any], arguments: dict[str, Value], now: Current) -> Done:
        token = _CURRENT.set(now)
        try:
            value = await _call(step, arguments)
            return Done(value=disarmed(plain(value)))
        except Fatal as error:
            details = {"fatal": True, "exception": "Fatal", "details": plain(error.details)}
            told = TreadleError(
                words(error) or "the step gave up", cls="user", code=error.code, details=details
            )
            return Done(status="error", error=told.to_value())
        except TreadleError as error:
            return Done(status="error", error=error.to_value())
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # `sys.exit()` too: it ends the call, not the worker
            if is_revoked(error):
                raise
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in (object, BaseException)]
            details = {
                "exception": type(error).__name__,
                "kinds": kinds,
                "traceback": trace(error, hidden=(__file__,)),
            }
            return Done(status="error", error=StepRaised(named(error), details=details).to_value())
        finally:
            _CURRENT.reset(token)


async def _call(step: Step[..., Any], arguments: dict[str, Value]) -> Any:
    args, kwargs = bound(step, arguments)
    function: Callable[..., Any] = step.function
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    here = copy_context()  # a thread has a context of its own
    return await aside(lambda: here.run(function, *args, **kwargs), None, step.name)


def bound(step: Step[..., Any], arguments: dict[str, Value]) -> tuple[list[Any], dict[str, Any]]:
    """Recorded arguments as the step's annotations promise them."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in step.signature.parameters.items():
        if name not in arguments:
            continue
        hint, given = step.hints.get(name, EMPTY), arguments[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [typed(item, hint) for item in given]
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update({key: typed(item, hint) for key, item in given.items()})
        elif parameter.kind is parameter.KEYWORD_ONLY or len(args) < _position(step, name):
            kwargs[name] = typed(given, hint)
        else:
            args.append(typed(given, hint))
    return args, kwargs


def _position(step: Step[..., Any], name: str) -> int:
    return list(step.signature.parameters).index(name)


async def _at_hand(value: Value, job: Job) -> Value:
    """The value with every reference in it loaded: outside, nobody knows our blobs."""
    if is_reference(value):
        return addressed(value, await job.load_blob(value))
    if isinstance(value, dict):
        return {key: await _at_hand(part, job) for key, part in value.items()}
    if isinstance(value, list):
        return [await _at_hand(part, job) for part in value]
    return value
