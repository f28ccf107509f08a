"""Steps: functions whose calls are recorded. Within a run a call is an await of the run; elsewhere it is a call.

A step is known by its name, process-wide, from its decoration on: a worker finds it there.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from types import FunctionType
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar

from treadle.kernel.errors import DefinitionError, ValueRefused
from treadle.kernel.values import Value
from treadle.lang.duration import parse_duration

from .errors import StepFailed, StepTimeout
from .guard import FlowRandom
from .life import Life, Settled
from .loop import Loop
from .shapes import EMPTY, hints_of, plain, problem_of, typed
from .source import place_of

P = ParamSpec("P")
R = TypeVar("R")
Backoff = Literal["none", "linear", "exponential"]
_RETRY_FIELDS: Final = frozenset({"attempts", "backoff", "delay", "max_delay", "jitter", "on"})


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, how long apart, and after which failures a step is tried again."""

    attempts: int = 1
    backoff: Backoff = "none"
    delay_ns: int = 0
    max_delay_ns: int | None = None
    jitter: float = 0.0
    on: tuple[str, ...] = ()

    @staticmethod
    def read(given: Mapping[str, Any] | None, where: str) -> Retry:
        if given is None:
            return Retry()
        problems = [f"retry has no {name!r}" for name in given if name not in _RETRY_FIELDS]
        attempts, backoff = given.get("attempts", 1), given.get("backoff", "none")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            problems.append(f"retry.attempts is a whole number from 1 on, not {attempts!r}")
        if backoff not in ("none", "linear", "exponential"):
            problems.append(f"retry.backoff is none, linear or exponential, not {backoff!r}")
        jitter = given.get("jitter", 0.0)
        jitter = (0.5 if jitter else 0.0) if isinstance(jitter, bool) else jitter
        if not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            problems.append(f"retry.jitter is a share between 0 and 1, not {jitter!r}")
        on = given.get("on", ())
        on = [on] if isinstance(on, str | type) else on
        delays = {}
        for name in ("delay", "max_delay"):
            try:
                delays[name] = None if given.get(name) is None else parse_duration(given[name])
            except DefinitionError as error:
                problems.append(f"retry.{name}: {error.message}")
        if problems:
            raise DefinitionError(f"{where}: {'; '.join(problems)}", where=where)
        names = tuple(kind.__name__ if isinstance(kind, type) else str(kind) for kind in on)
        return Retry(attempts, backoff, delays["delay"] or 0, delays["max_delay"], float(jitter), names)

    def takes(self, failure: StepFailed) -> bool:
        """Whether a failure is one that trying again may help."""
        if failure.code in ("IN_DOUBT",) or failure.details.get("fatal"):
            return False
        kinds = failure.details.get("kinds") or []
        return not self.on or any(
            word in self.on for word in (failure.cls, failure.code, failure.type, *kinds)
        )

    def delay_after(self, attempt: int, random: FlowRandom) -> int:
        match self.backoff:
            case "linear":
                wait = self.delay_ns * attempt
            case "exponential":
                wait = self.delay_ns * 2 ** min(attempt - 1, 62)
            case _:
                wait = self.delay_ns
        if self.max_delay_ns is not None:
            wait = min(wait, self.max_delay_ns)
        return int(wait * (1 + self.jitter * (random.random() - 0.5))) if self.jitter else wait


@dataclass(frozen=True, slots=True)
class Settings:
    retry: Retry = field(default_factory=Retry)
    timeout_ns: int | None = None
    idempotent: bool = True
    process: bool = False
    secrets: tuple[str, ...] = ()
    pool: str | None = None

    def params(self) -> dict[str, Any]:
        """What of it a worker has to know."""
        told: dict[str, Any] = {}
        if not self.idempotent:
            told["idempotent"] = False
        if self.process:
            told["process"] = True
        if self.secrets:
            told["secrets"] = list(self.secrets)
        if self.pool is not None:
            told["pool"] = self.pool
        return told


class Step(Generic[P, R]):
    """`await charge(order, 500)`: recorded within a run, a plain call elsewhere."""

    def __init__(self, function: Callable[..., Any], name: str, settings: Settings) -> None:
        self.function = function
        self.name = name
        self.settings = settings
        self.signature = inspect.signature(function)
        self._hints: dict[str, Any] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        life = current_life()
        if life is None:
            return _called(self.function, args, kwargs)
        return self.in_run(life, args, kwargs)

    def options(
        self,
        *,
        retry: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,
        idempotent: bool | None = None,
        process: bool | None = None,
        secrets: Sequence[str] | None = None,
        pool: str | None = None,
    ) -> Step[P, R]:
        """The same step with other settings, for one call."""
        changed: dict[str, Any] = {
            "retry": None if retry is None else Retry.read(retry, self.name),
            "timeout_ns": None if timeout is None else parse_duration(timeout),
            "idempotent": idempotent,
            "process": process,
            "secrets": None if secrets is None else tuple(secrets),
            "pool": pool,
        }
        if process and (problems := _problems(self.function, process)):
            raise DefinitionError(f"{self.name}: {'; '.join(problems)}", where=self.name)
        settings = replace(self.settings, **{key: to for key, to in changed.items() if to is not None})
        return Step(self.function, self.name, settings)

    @property
    def hints(self) -> dict[str, Any]:
        if self._hints is None:
            self._hints = hints_of(self.function)
        return self._hints

    def in_run(self, life: Life, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Coroutine[Any, Any, R]:
        """The call as an await of a run. The arguments are encoded now: what happens to them later does not count."""
        life.check()
        bound = self.signature.bind(*args, **kwargs)
        try:
            arguments: dict[str, Value] = {name: plain(value) for name, value in bound.arguments.items()}
        except ValueRefused as error:
            raise TypeError(f"{self.name}: {error.message}") from None
        return self._attempts(life, arguments, place_of(sys._getframe(1)))

    async def _attempts(self, life: Life, arguments: dict[str, Value], place: str | None) -> R:
        settings, attempt = self.settings, 1
        key: str | None = None
        random: FlowRandom | None = None
        while True:
            params = {"step": self.name, "args": arguments, **settings.params()}
            if attempt > 1:
                params["attempt"] = attempt
            due = None if settings.timeout_ns is None else life.now_ns + settings.timeout_ns
            key = key or f"{life.run}/{life.generation}.{life.count}"
            result = await life.settled("step", self.name, params, due_ns=due, key=key, place=place)
            if result.status == "ok":
                value: R = typed(life.loaded(result.value), self.hints.get("return", EMPTY))
                return value
            failure = failure_of(self.name, result, attempt)
            if attempt >= settings.retry.attempts or not settings.retry.takes(failure):
                raise failure
            random = random or FlowRandom(f"{life.seed.hex()}/{key}")
            if wait := settings.retry.delay_after(attempt, random):
                await life.settled(
                    "timer", f"retry of {self.name}", {}, due_ns=life.now_ns + wait, place=place
                )
            attempt += 1


def failure_of(step: str, result: Settled, attempts: int) -> StepFailed:
    error = result.error or {}
    details = dict(error.get("details") or {})
    kind = StepTimeout if result.status == "timeout" else StepFailed
    return kind(
        str(error.get("message") or f"{step} did not succeed"),
        step=step,
        cls="timeout" if result.status == "timeout" else str(error.get("class") or "transport"),
        code=str(error.get("code") or "STEP_FAILED"),
        type=details.get("exception"),
        attempts=attempts,
        details=details,
    )


def current_life() -> Life | None:
    """The run whose decision this thread is making, if it makes one."""
    loop = asyncio._get_running_loop()
    return loop.run if isinstance(loop, Loop) and isinstance(loop.run, Life) else None


async def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


STEPS: Final[dict[str, Step[..., Any]]] = {}


def register(step: Step[..., Any]) -> None:
    """Makes a step known. Its file may be loaded again; another file may not take its name."""
    function = step.function
    taken = STEPS.get(step.name)
    if taken is not None and _home(taken.function) != _home(function):
        raise DefinitionError(
            f"the step {step.name!r} is defined in {_home(taken.function)} already; give this one a name of its own: "
            '@flow.step(name="…")',
            code="NAME_TAKEN",
            where=_home(function),
        )
    STEPS[step.name] = step


def _home(function: Callable[..., Any]) -> str:
    return str(inspect.unwrap(function).__code__.co_filename)


def make_step(
    function: Callable[..., Any],
    *,
    name: str | None,
    retry: Mapping[str, Any] | None,
    timeout: str | float | None,
    idempotent: bool,
    process: bool,
    secrets: Sequence[str],
    pool: str | None,
) -> Step[..., Any]:
    named = name or str(getattr(function, "__name__", "step"))
    problems = _problems(function, process)
    if problems:
        raise DefinitionError(f"{named}: {'; '.join(problems)}", where=named)
    settings = Settings(
        Retry.read(retry, named),
        None if timeout is None else parse_duration(timeout),
        idempotent,
        process,
        tuple(secrets),
        pool,
    )
    step: Step[..., Any] = Step(function, named, settings)
    register(step)
    return step


def _problems(function: Any, process: bool) -> list[str]:
    if not isinstance(function, FunctionType):
        return ["a step is a function (def or async def)"]
    found = []
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        found.append("a step is no generator: it returns one value")
    if process and "<locals>" in function.__qualname__:
        found.append("process=True finds a step by file and name: define it at the top of its module")
    try:
        hints = hints_of(function)
    except NameError:
        return found  # names that come later; they are looked at when the step is first called
    found += [problem for hint in hints.values() if (problem := problem_of(hint)) is not None]
    return found
