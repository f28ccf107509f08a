"""A durable function as an object: what `@flow.workflow` makes of an `async def`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property, update_wrapper
from types import FunctionType
from typing import Any, Final, Generic, TypeVar

from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.problems import Problem
from treadle.lang.refusing import refuse

from . import source as sources
from .complaints import SHAPE, TYPE, Complaints, annotated
from .guard import offence
from .shapes import EMPTY, hints_of, plain, typed

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

DIALECT_NAME: Final = "function"


class Workflow(Generic[I, R]):
    """`engine.start(order, Order(…))` runs it; `await order(ctx, x)` is a plain call within another run."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        *,
        name: str | None = None,
        version: str = "1",
        timeout: str | float | None = None,
        guard: bool = True,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        complaints = Complaints(function)
        self.name = complaints.text("name", name) or str(getattr(function, "__name__", "workflow"))
        self.version = str(version)
        self.timeout_ns = complaints.duration("timeout", timeout)
        self.guard = guard
        self.limits = complaints.limits(limits)
        self._definitions: dict[str | None, Definition] = {}
        self._look(complaints)
        # Some only while its file is being checked: it is no definition then.
        self.complaints = tuple(complaints.found)
        if self.complaints:
            refuse(self.name, self.complaints)
        update_wrapper(self, function)

    def __call__(self, *args: Any) -> Coroutine[Any, Any, R]:
        return self.function(*args)

    # --- what it is ---

    @cached_property
    def source(self) -> sources.Source:
        assert isinstance(self.function, FunctionType)
        return sources.read(self.function)

    @cached_property
    def code(self) -> str:
        """The digest of its source, with what it names."""
        return sources.digest_of(self.source)

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @cached_property
    def hints(self) -> dict[str, Any]:
        return hints_of(self.function)

    @cached_property
    def takes(self) -> Any:
        """The type of its input; None if it takes none."""
        parameters = list(inspect.signature(self.function).parameters)
        return self.hints.get(parameters[1], EMPTY) if len(parameters) > 1 else None

    @cached_property
    def has_input(self) -> bool:
        return len(inspect.signature(self.function).parameters) > 1

    @property
    def gives(self) -> Any:
        return self.hints.get("return", EMPTY)

    def input(self, given: I) -> Value:
        """An input for the journal. Raises InputInvalid if it does not fit."""
        return self.taken(plain(given))

    def taken(self, value: Value) -> Value:
        """A plain input, if it fits. Raises InputInvalid if not."""
        if self.has_input:
            typed(value, self.takes)
        return value

    def result(self, value: Value) -> R:
        """A stored result as the annotation promises it."""
        given: R = typed(value, self.gives)
        return given

    # --- problems ---

    def _look(self, complaints: Complaints) -> None:
        """What keeps it from being durable, all of it."""
        function = self.function
        if not isinstance(function, FunctionType):
            complaints.add(SHAPE, "a workflow is a function", "async def f(ctx) or async def f(ctx, input)")
            return
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            complaints.add(
                SHAPE, "a workflow is no generator: it returns one value", "return instead of yield"
            )
        elif not inspect.iscoroutinefunction(function):
            complaints.add(SHAPE, "a workflow is an `async def`", "plain functions are steps: @flow.step")
        parameters = list(inspect.signature(function).parameters.values())
        plain_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if parameters and parameters[0].name == "self":
            complaints.add(SHAPE, "a workflow is no method", "define it at the top of its module")
        elif not 1 <= len(parameters) <= 2 or any(item.kind not in plain_kinds for item in parameters):
            complaints.add(SHAPE, "a workflow takes (ctx) or (ctx, input)", "one input, perhaps a dataclass")
        for name, problem in annotated(function):
            if not parameters or name != parameters[0].name:
                complaints.add(TYPE, problem, "a dataclass, or another type that msgspec converts")
        if self.guard:
            # Read anew by whoever asks later: functions that come further down are not known yet.
            complaints.found += self._offences(sources.read(function))

    def _offences(self, made: sources.Source) -> list[Problem]:
        return [
            Problem(
                "error",
                "NOT_DETERMINISTIC",
                f"{name} is not recorded, so a replay would differ",
                rule="FLOW Guard",
                file=file,
                line=line,
                hint=instead,
            )
            for file, line, name, instead in sources.offences(made, offence)
        ]

    def problems(self) -> list[Problem]:
        """What `check` tells besides: warnings, and what was not known yet at the decoration."""
        made = self.source
        found = self._offences(made) if self.guard else []
        found += [
            Problem(
                "warning",
                "SET_ORDER",
                "the order of a set differs from process to process",
                rule="FLOW Guard",
                file=file,
                line=line,
                hint="go through sorted(…)",
            )
            for file, line in sources.walks_over_a_set(made)
        ]
        return found

    # --- as the engine sees it ---

    def definition(self, file: str | None = None) -> Definition:
        """The same one each time: each start of the function asks for it."""
        if (known := self._definitions.get(file)) is not None:
            return known
        body: dict[str, Value] = {"name": self.name, "version": self.version, "code": self.code}
        if self.limits is not None:
            body["limits"] = self.limits.to_value()
        problems = self.problems()
        errors = [problem for problem in problems if problem.severity == "error"]
        if errors:
            refuse(self.name, errors)
        made = Definition(
            DIALECT_NAME,
            self.name,
            self.version,
            body,
            file=file or self.file,
            line=sources.line_of(self.source.function),
            warnings=tuple(problem for problem in problems if problem.severity != "error"),
            code=self,
            along=self.children,
        )
        if not errors:  # else its file is being checked, and they are told each time
            self._definitions[file] = made
        return made

    def children(self) -> list[Definition]:
        """The durable functions that it names, which it may run as children."""
        found = {
            id(value): value
            for _, value, _, _ in self.source.named
            if isinstance(value, Workflow) and value is not self and not value.complaints
        }
        return [workflow.definition() for workflow in found.values()]

    def __treadle_definitions__(self, file: str | None = None) -> list[Definition]:
        if self.complaints:
            further = self.problems() if isinstance(self.function, FunctionType) else []
            refuse(self.name, [*self.complaints, *further])
            return []
        return [self.definition(file)]
