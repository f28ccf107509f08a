"""Steps: functions whose calls are recorded. Within a run a call is an await of the run; elsewhere it is a call.

A step is known by its name, process-wide, from its decoration on: a worker finds it there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import update_wrapper
from types import FunctionType
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.kernel.errors import ValueRefused
from treadle.kernel.values import Value
from treadle.lang.refusing import refuse

from .awaits import Settled
from .complaints import SETTING, SHAPE, TYPE, Complaints, annotated
from .errors import StepFailed, StepTimeout
from .guard import FlowRandom, here, unwatched
from .life import Life
from .loop import FlowFuture
from .shapes import EMPTY, are_simple, as_is, hints_of, kept, plain, reads_simply, typed
from .source import place_of

P = ParamSpec("P")
R = TypeVar("R")
Backoff = Literal["none", "linear", "exponential"]
_RETRY_FIELDS: Final = frozenset({"attempts", "backoff", "delay", "max_delay", "jitter", "on"})


class Retry(msgspec.Struct, frozen=True):
    """How often, how long apart, and after which failures a step is tried again."""

    attempts: int = 1
    backoff: Backoff = "none"
    delay_ns: int = 0
    max_delay_ns: int | None = None
    jitter: float = 0.0
    on: tuple[str, ...] = ()

    @staticmethod
    def read(given: object, complaints: Complaints) -> Retry:
        """Notes what makes no sense; it counts only if nothing is noted."""
        if given is None:
            return Retry()
        if not isinstance(given, Mapping):
            complaints.add(
                SETTING, f"retry is a mapping, not {given!r}", 'retry={"attempts": 3, "delay": "1s"}'
            )
            return Retry()
        for name in given:
            if name not in _RETRY_FIELDS:
                complaints.add(
                    SETTING, f"retry has no {name!r}", f"it has {', '.join(sorted(_RETRY_FIELDS))}"
                )
        attempts, backoff = given.get("attempts", 1), given.get("backoff", "none")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            complaints.add(
                SETTING, f"retry.attempts is a whole number from 1 on, not {attempts!r}", "1: no retry"
            )
        if backoff not in ("none", "linear", "exponential"):
            complaints.add(SETTING, f"retry.backoff is not {backoff!r}", "none, linear or exponential")
        jitter = given.get("jitter", 0.0)
        jitter = (0.5 if jitter else 0.0) if isinstance(jitter, bool) else jitter
        if not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            complaints.add(SETTING, f"retry.jitter is a share, not {jitter!r}", "a number between 0 and 1")
            jitter = 0.0
        on = given.get("on", ())
        on = [on] if isinstance(on, str | type) else on
        if not isinstance(on, list | tuple | set | frozenset) or not all(
            isinstance(kind, str | type) for kind in on
        ):
            complaints.add(
                SETTING, f"retry.on is not {on!r}", "a list of classes, codes or names of exceptions"
            )
            on = ()
        delay = complaints.duration("retry.delay", given.get("delay")) or 0
        max_delay = complaints.duration("retry.max_delay", given.get("max_delay"))
        names = tuple(kind.__name__ if isinstance(kind, type) else str(kind) for kind in on)
        return Retry(attempts, backoff, delay, max_delay, float(jitter), names)

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


class Settings(msgspec.Struct, frozen=True):
    retry: Retry = msgspec.field(default_factory=Retry)
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
        # The names of its parameters, where all of them may be given in order.
        self.plain_names = _plain_names(self.signature)
        self.is_async = inspect.iscoroutinefunction(function)
        self._about = {"step": name, **settings.params()}
        self._hints: dict[str, Any] | None = None
        # Whether what it gives is read without asking anybody's code; None: not looked at yet.
        self._returns_simply: bool | None = None
        # The types of what is handed on as it was recorded.
        self._returns_as_is: frozenset[type] = frozenset()
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        turn = here.turn
        life = turn.life
        if type(life) is not Life:
            return _called(self.function, args, kwargs)
        turn.off()
        try:
            call = self._simply(life, args, kwargs)
        finally:
            turn.on()
        return self.in_run(life, args, kwargs) if call is None else call

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
        complaints = Complaints(self.function)
        changed: dict[str, Any] = {
            "retry": None if retry is None else Retry.read(retry, complaints),
            "timeout_ns": complaints.duration("timeout", timeout),
            "idempotent": idempotent,
            "process": process,
            "secrets": None if secrets is None else complaints.names("secrets", secrets),
            "pool": complaints.text("pool", pool),
        }
        if process:
            _look(self.function, process, complaints)
        if complaints.found:
            refuse(self.name, complaints.found)
            return self
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
        arguments = self._encoded(args, kwargs, plain)
        return self._attempts(life, arguments, unwatched(place_of, sys._getframe(1)))

    def _simply(
        self, life: Life, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, R] | None:
        """A call for which none of the author's code is asked, so that nobody need watch it; None for any other."""
        if not are_simple(args) or (kwargs and not are_simple(kwargs.values())):
            return None
        life.check()
        return self._attempts(life, self._encoded(args, kwargs, kept), place_of(sys._getframe(2)))

    def _encoded(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], written: Callable[[Any], Value]
    ) -> dict[str, Value]:
        """The arguments by name. Where all are given, in order, the names need no looking for."""
        names = self.plain_names
        try:
            if not kwargs and names is not None and len(args) == len(names):
                return dict(zip(names, map(written, args), strict=True))
            given = self.signature.bind(*args, **kwargs).arguments
            return {name: written(value) for name, value in given.items()}
        except ValueRefused as error:
            raise TypeError(f"{self.name}: {error.message}") from None

    async def _attempts(self, life: Life, arguments: dict[str, Value], place: str | None) -> R:
        """Each call in here that is not kept from the watch is one that the watch is told of."""
        attempt = 1
        key: str | None = None
        random: FlowRandom | None = None
        while True:
            # No name for the turn: whoever waits would keep it, and its watch, from one decision to the next.
            here.turn.off()
            try:
                key = key or f"{life.run}/{life.generation}.{life.count}"
                asked = self._asked(life, arguments, attempt, key, place)
            finally:
                here.turn.on()
            result = await asked
            if result.status == "ok":
                given: Value = result.value
                if type(given) in self._returns_as_is:
                    as_it_was: R = given
                    return as_it_was
                if self._returns_simply is None:
                    self._look_at_what_it_gives()
                if self._returns_simply:
                    return unwatched(self._value, life, given)
                return self._value(life, given)
            failure = failure_of(self.name, result, attempt)
            retry = self.settings.retry
            if attempt >= retry.attempts or not retry.takes(failure):
                raise failure
            random = random or FlowRandom(f"{life.seed.hex()}/{key}")
            if wait := retry.delay_after(attempt, random):
                again_ns = life.now_ns + wait
                await unwatched(
                    life.awaited, "timer", f"retry of {self.name}", {}, due_ns=again_ns, place=place
                )
            attempt += 1

    def _asked(
        self, life: Life, arguments: dict[str, Value], attempt: int, key: str, place: str | None
    ) -> FlowFuture[Settled]:
        params = {**self._about, "args": arguments}
        if attempt > 1:
            params["attempt"] = attempt
        timeout_ns = self.settings.timeout_ns
        due = None if timeout_ns is None else life.now_ns + timeout_ns
        return life.awaited("step", self.name, params, due, key, place)

    def _look_at_what_it_gives(self) -> None:
        gives = self.hints.get("return", EMPTY)
        self._returns_simply, self._returns_as_is = reads_simply(gives), as_is(gives)

    def _value(self, life: Life, value: Value) -> R:
        made: R = typed(life.loaded(value), self.hints.get("return", EMPTY))
        return made


def _plain_names(signature: inspect.Signature) -> tuple[str, ...] | None:
    """The names of parameters that may all be given in order; None if some may not."""
    parameters = signature.parameters.values()
    if any(one.kind is not one.POSITIONAL_OR_KEYWORD for one in parameters):
        return None
    return tuple(signature.parameters)


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
        record=result.record,
    )


async def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


STEPS: Final[dict[str, Step[..., Any]]] = {}


def register(step: Step[..., Any]) -> None:
    """Makes a step known. Its file may be loaded again; another file, or another function of its module, may not take
    its name."""
    taken = STEPS.get(step.name)
    if taken is not None and not _is_same(taken.function, step.function):
        complaints = Complaints(step.function)
        home = _home(taken.function)
        complaints.add(
            "NAME_TAKEN",
            f"the step {step.name!r} is defined in {home}:{taken.function.__code__.co_firstlineno} already",
            'give this one a name of its own: @flow.step(name="…")',
        )
        refuse(step.name, complaints.found, code="NAME_TAKEN")
        return
    STEPS[step.name] = step


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether a function is another one come again: loaded anew, or typed anew where it was (a notebook)."""
    assert isinstance(one, FunctionType)
    assert isinstance(other, FunctionType)
    if one.__globals__ is other.__globals__:
        return one.__qualname__ == other.__qualname__
    return _home(one) == _home(other)


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
    complaints = Complaints(function)
    named = complaints.text("name", name) or str(getattr(function, "__name__", "step"))
    _look(function, process, complaints)
    settings = Settings(
        Retry.read(retry, complaints),
        complaints.duration("timeout", timeout),
        idempotent,
        process,
        complaints.names("secrets", secrets),
        complaints.text("pool", pool),
    )
    if complaints.found:
        refuse(named, complaints.found)
        settings = Settings()
    if not isinstance(function, FunctionType):  # its file is being checked, and this is told there
        return Step(_nothing, named, settings)
    step: Step[..., Any] = Step(function, named, settings)
    if not complaints.found:
        register(step)
    return step


def _nothing() -> None:
    """Stands for what is no function while its file is checked."""


def _look(function: Any, process: bool, complaints: Complaints) -> None:
    if not isinstance(function, FunctionType):
        complaints.add(SHAPE, "a step is a function", "put @flow.step above a def or an async def")
        return
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        complaints.add(
            SHAPE, "a step is no generator: it returns one value", "return a list instead of yielding"
        )
    if process and "<locals>" in function.__qualname__:
        complaints.add(
            SHAPE,
            "process=True finds a step by file and name",
            "define it at the top of its module",
        )
    for _, problem in annotated(function):
        complaints.add(TYPE, problem, "a dataclass, or another type that msgspec converts")
