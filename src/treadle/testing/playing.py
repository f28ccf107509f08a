"""Plays a durable function without an engine, a store or an event loop: steps are scripted or called, time is moved
by hand, people and signals are calls. Everything is journaled as in the engine, so it can crash and replay."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any, Generic, TypeVar

from treadle.dialects.function.errors import Fatal
from treadle.dialects.function.machine import FunctionMachine
from treadle.dialects.function.shapes import plain, typed
from treadle.dialects.function.steps import STEPS, Step
from treadle.dialects.function.workflow import Workflow
from treadle.kernel.errors import NotWaiting, TreadleError
from treadle.kernel.history import restore, snapshot_of
from treadle.kernel.model import OpenIntent, addressed, is_reference
from treadle.kernel.values import Value
from treadle.lang.duration import parse_duration

from .driver import Driver

R = TypeVar("R")
Script = Mapping[Any, Any]


def play(
    workflow: Workflow[Any, R],
    input: Any = None,
    *,
    steps: Script | None = None,
    id: str = "play",
    by_hand: bool = False,
    machine: FunctionMachine | None = None,
) -> Play[R]:
    """Starts a function. `steps` gives, for a step (or a child, by its name), the results of its calls in order: a
    list, whose last is repeated, or one value; an exception is raised. Other steps are really called. With
    `by_hand`, nothing is performed until `.perform()` says so. Plays on one `machine` share its room for functions that
    are kept alive."""
    return Play(workflow, input, steps or {}, id, by_hand, machine or FunctionMachine())


class Play(Generic[R]):
    def __init__(
        self,
        workflow: Workflow[Any, R],
        input: Any,
        steps: Script,
        id: str,
        by_hand: bool,
        machine: FunctionMachine,
    ) -> None:
        self.workflow = workflow
        self.machine = machine
        self.machine.attach(workflow)
        self._script = {_name(step): _listed(given) for step, given in steps.items()}
        self._calls: list[tuple[str, dict[str, Value]]] = []
        self._by_hand = by_hand
        self.driver = Driver(self.machine, workflow.definition().body, name=workflow.name, id=id)
        self.driver.start(workflow.input(input))
        self._settle()

    # --- looking ---

    @property
    def status(self) -> str:
        return self.driver.status

    @property
    def result(self) -> R:
        """The typed result. A run that did not complete raises what became of it."""
        if self.status != "completed":
            raise TreadleError.from_value(
                self.error or {"message": f"it is {self.status}", "code": "NOT_WAITING"}
            )
        value: R = typed(self.driver.run.result, self.workflow.gives)
        return value

    @property
    def error(self) -> dict[str, Any] | None:
        return self.driver.run.error

    @property
    def state(self) -> dict[str, Any]:
        """`ctx.state`."""
        return dict(self.driver.view()["state"])

    @property
    def waiting(self) -> list[str]:
        """What the run waits for: names, in the order in which they were opened."""
        return [intent.name for intent in self.driver.run.open.values()]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.driver.events

    def calls(self, step: Step[..., Any] | str) -> list[dict[str, Value]]:
        """The arguments of each call of a step, by name."""
        name = _name(step)
        return [arguments for called, arguments in self._calls if called == name]

    # --- doing ---

    def signal(self, name: str, data: Any = None) -> Play[R]:
        self.driver.signal(name, plain(data))
        return self._settle()

    def answer(self, task: str, data: Any = None) -> Play[R]:
        """Completes a human task."""
        self.driver.ok(self._open("task", task), plain(data))
        return self._settle()

    def advance(self, duration: str | float) -> Play[R]:
        """Moves the time; timers fire and deadlines pass, in order."""
        driver = self.driver
        until = driver.now_ns + parse_duration(duration)
        while due := [i for i in driver.run.open.values() if i.due_ns is not None and i.due_ns <= until]:
            first = min(due, key=lambda intent: (intent.due_ns or 0, intent.seq, intent.id))
            driver.now_ns = max(driver.now_ns, first.due_ns or 0)
            if first.kind == "timer":
                driver.ok(first)
            else:
                driver.timeout(first)
            self._settle()
        driver.now_ns = until
        return self

    def cancel(self, reason: str = "") -> Play[R]:
        self.driver.cancel(reason)
        return self._settle()

    def retry(self, **how: Any) -> Play[R]:
        self.driver.retry(**how)
        return self._settle()

    def crash(self) -> Play[R]:
        """The process ends, and another one takes the run on."""
        was = self.driver.run
        self.driver.run = restore(snapshot_of(was))
        self.machine.forget(was.state)
        return self

    def assert_replays(self) -> None:
        self.driver.assert_replays()

    def perform(self, intent: OpenIntent) -> Play[R]:
        """One step that is open, now."""
        self._perform(intent)
        return self if self._by_hand else self._settle()

    @property
    def open(self) -> list[OpenIntent]:
        """The steps that are open, in order."""
        return [
            i
            for i in self.driver.run.open.values()
            if i.kind in ("step", "child", "start", "send", "publish")
        ]

    # --- within ---

    def _settle(self) -> Play[R]:
        """Performs what is scripted, or can be called, until nothing moves by itself."""
        while not self._by_hand:
            ready = next((intent for intent in self.open if self._performable(intent)), None)
            if ready is None:
                break
            self._perform(ready)
        return self

    def _performable(self, intent: OpenIntent) -> bool:
        return bool(self._script.get(intent.name)) or (intent.kind == "step" and intent.name in STEPS)

    def _perform(self, intent: OpenIntent) -> None:
        arguments = self._at_hand(
            intent.params.get("args")
            or {key: value for key, value in intent.params.items() if key not in ("name", "workflow")}
        )
        self._calls.append((intent.name, plain(arguments)))
        try:
            value = self._value(intent)
        except TimeoutError:
            self.driver.timeout(intent)
        except Exception as error:
            self.driver.feed(_failed(intent, error))
        else:
            if intent.kind in ("child", "start"):
                value = {"run": f"{self.driver.id}.{intent.id[:12]}", "result": value}
            self.driver.ok(intent, plain(value))

    def _at_hand(self, value: Value) -> Any:
        """What was too large for the journal comes from where it is kept."""
        if is_reference(value):
            return addressed(value, self.driver.blobs[value["checksum"]])
        return {key: self._at_hand(part) for key, part in value.items()} if isinstance(value, dict) else value

    def _value(self, intent: OpenIntent) -> Any:
        script = self._script.get(intent.name)
        if script:
            value = script.pop(0) if len(script) > 1 else script[0]
        else:
            value = _called(STEPS[intent.name], self._at_hand(intent.params["args"]))
        if isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException)):
            raise value
        return value

    def _open(self, kind: str, name: str) -> OpenIntent:
        for intent in self.driver.run.open.values():
            if intent.kind == kind and intent.name == name:
                return intent
        raise NotWaiting(f"no {kind} {name!r} is open; the run waits for {self.waiting}")


def _name(step: Any) -> str:
    if isinstance(step, Workflow):
        return f"{step.name}@{step.version}"
    return step.name if isinstance(step, Step) else str(step)


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]


def _failed(intent: OpenIntent, error: Exception) -> Any:
    from treadle.kernel.model import Receipt

    kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in (object, BaseException)]
    details: dict[str, Any] = {"exception": type(error).__name__, "kinds": kinds}
    cls, code = "transport", "STEP_FAILED"
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, Fatal):
        cls, code, message, details = "user", error.code, error.message, {"fatal": True, **details}
    elif isinstance(error, TreadleError):
        cls, code, message, details = error.cls, error.code, error.message, error.details
    told = {"class": cls, "code": code, "message": message, "where": None, "details": details}
    return Receipt(intent=intent.id, status="error", error=told)


def _called(step: Step[..., Any], arguments: dict[str, Value]) -> Any:
    """A step for real; on an event loop of its own, whatever runs around us."""
    from treadle.performers.function.calling import bound

    args, kwargs = bound(step, arguments)
    function: Callable[..., Any] = step.function
    if not inspect.iscoroutinefunction(function):
        return function(*args, **kwargs)
    box: list[Any] = []

    def aside() -> None:
        try:
            box.append((asyncio.run(function(*args, **kwargs)), None))
        except BaseException as error:
            box.append((None, error))

    thread = Thread(target=aside, name=f"step {step.name}")
    thread.start()
    thread.join()
    value, raised = box[0]
    if raised is not None:
        raise raised
    return value
