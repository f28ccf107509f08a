"""A durable function as an object: what `@flow.workflow` makes of an `async def`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import cached_property, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Generic, TypeVar

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.duration import parse_duration
from treadle.lang.problems import Problem

from . import source as sources
from .guard import offence
from .shapes import EMPTY, hints_of, plain, problem_of, typed

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
    ) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", "workflow"))
        self.version = str(version)
        self.timeout_ns = None if timeout is None else parse_duration(timeout)
        self.guard = guard
        self._check()
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

    @property
    def has_input(self) -> bool:
        return len(inspect.signature(self.function).parameters) > 1

    @property
    def gives(self) -> Any:
        return self.hints.get("return", EMPTY)

    def input(self, given: I) -> Value:
        """An input for the journal. Raises InputInvalid if it does not fit."""
        value = plain(given)
        if self.has_input:
            typed(value, self.takes)
        return value

    def result(self, value: Value) -> R:
        """A stored result as the annotation promises it."""
        given: R = typed(value, self.gives)
        return given

    # --- problems ---

    def _check(self) -> None:
        """Refuses what cannot be durable, all problems at once."""
        found, function = self._shape_problems(), self.function
        if not found and self.guard and isinstance(function, FunctionType):
            # Read anew by whoever asks later: functions that come further down are not known yet.
            found += [
                f"{Path(file).name}:{line}: {name}() is not recorded, so a replay would differ; {instead}"
                for file, line, name, instead in sources.offences(sources.read(function), offence)
            ]
        if found:
            raise DefinitionError(
                f"{self.name}: {'; '.join(found)}", where=self.name, details={"problems": _listed(found)}
            )

    def _shape_problems(self) -> list[str]:
        function = self.function
        if not isinstance(function, FunctionType):
            return ["a workflow is a function: async def f(ctx) or async def f(ctx, input)"]
        found = []
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            found.append("a workflow is no generator: it returns one value")
        elif not inspect.iscoroutinefunction(function):
            found.append("a workflow is an `async def`; plain functions are steps")
        parameters = list(inspect.signature(function).parameters.values())
        plain_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if parameters and parameters[0].name == "self":
            found.append("a workflow is no method: define it at the top of its module")
        elif not 1 <= len(parameters) <= 2 or any(item.kind not in plain_kinds for item in parameters):
            found.append("a workflow takes (ctx) or (ctx, input): one input, perhaps a dataclass")
        if found:
            return found
        try:
            hints = hints_of(function)
        except NameError:
            return found
        for name, hint in hints.items():
            if name != parameters[0].name and (problem := problem_of(hint)) is not None:
                found.append(problem)
        return found

    def problems(self) -> list[Problem]:
        """What `check` tells besides: warnings, and what was not known yet at the decoration."""
        made = self.source
        found = [
            Problem(
                "error",
                "NOT_DETERMINISTIC",
                f"{name}() is not recorded, so a replay would differ",
                file=file,
                line=line,
                hint=instead,
            )
            for file, line, name, instead in (sources.offences(made, offence) if self.guard else ())
        ]
        found += [
            Problem(
                "warning",
                "SET_ORDER",
                "the order of a set differs from process to process",
                file=file,
                line=line,
                hint="go through sorted(…)",
            )
            for file, line in sources.walks_over_a_set(made)
        ]
        return found

    # --- as the engine sees it ---

    def definition(self, file: str | None = None) -> Definition:
        body = {"name": self.name, "version": self.version, "code": self.code}
        problems = self.problems()
        errors = [problem for problem in problems if problem.severity == "error"]
        if errors:
            first = errors[0]
            raise DefinitionError(
                f"{self.name}: {first.message}; {first.hint}",
                where=f"{first.file}:{first.line}",
                details={"problems": _listed([f"{p.file}:{p.line}: {p.message}; {p.hint}" for p in errors])},
            )
        return Definition(
            DIALECT_NAME,
            self.name,
            self.version,
            body,
            file=file or self.file,
            warnings=tuple(problems),
            code=self,
            along=self.children,
        )

    def children(self) -> list[Definition]:
        """The durable functions that it names, which it may run as children."""
        found = {
            id(value): value
            for _, value, _, _ in self.source.named
            if isinstance(value, Workflow) and value is not self
        }
        return [workflow.definition() for workflow in found.values()]

    def __treadle_definitions__(self, file: str | None = None) -> list[Definition]:
        return [self.definition(file)]


def _listed(found: list[str]) -> list[dict[str, Any]]:
    return [{"severity": "error", "code": "DEFINITION_INVALID", "message": text} for text in found]
