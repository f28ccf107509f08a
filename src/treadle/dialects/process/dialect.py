"""The process dialect as the engine sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect, Surroundings
from treadle.lang.names import KnownNames
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from .machine import ProcessMachine
from .normalise import CHILD_NOT_DEPLOYED, normalise
from .program import Program
from .schemas import mismatches
from .transports import BUILT_IN, TOOLS

if TYPE_CHECKING:
    from treadle.lang.graph import Graph


class ProcessDialect(Dialect):
    """Business processes: human tasks, timers, signals, sub-workflows."""

    name = "process"

    def __init__(self, surroundings: Surroundings | None = None) -> None:
        self.machine = ProcessMachine()
        self._transports = (surroundings or Surroundings()).callables

    def within(self, surroundings: Surroundings) -> ProcessDialect:
        """For an engine with transports and tools of its own."""
        return ProcessDialect(surroundings)

    def recognises(self, value: Value) -> bool:
        if not isinstance(value, dict):
            return False
        if "dialect" in value:
            return bool(value["dialect"] == self.name)
        return isinstance(value.get("steps"), list) and "tasks" in value

    def compile(
        self, document: Document, *, strict: bool = False, transports: Collection[str] = ()
    ) -> tuple[Definition | None, Problems]:
        """There is one spelling only, so `strict` changes nothing."""
        body, problems = normalise(document, KnownNames(TOOLS, transports, self._transports()))
        if body is None:
            return None, problems
        # That a child must be deployed is for `check` to say; whoever deploys sees for himself.
        warnings = tuple(problem for problem in problems if problem.code != CHILD_NOT_DEPLOYED)
        definition = Definition(
            self.name, body["name"], body.get("version"), body, file=document.file, warnings=warnings
        )
        return definition, problems

    def verify(self, definition: Definition) -> None:
        """What a builder could not know: whether this engine has the transports it names."""
        problems = Problems()
        known = KnownNames(BUILT_IN, TOOLS, self._transports())
        for transport in self.requires(definition)["transports"]:
            if transport not in known:
                hint = f"register it with @engine.transport({transport!r}) first"
                problems.error(
                    "UNKNOWN_TRANSPORT", ("steps",), f"the transport {transport!r} is not known", hint=hint
                )
        problems.raise_errors()

    def check_input(self, definition: Program, input: Value, options: dict[str, Value]) -> Value:
        input = {} if input is None else input  # started without a payload: an empty one
        if definition.schema is None:
            return input
        if errors := mismatches(definition.schema, input):
            first = errors[0]
            raise InputInvalid(
                f"the start payload of {definition.name} does not fit: {first['path']}: {first['message']}",
                details={"errors": errors},
            )
        return input

    def graph(self, definition: Program, view: dict[str, Value] | None = None) -> Graph:
        from .drawing import draw  # for people; no run needs it

        return draw(definition, view)

    def export(self, definition: Definition, format: str, *, canonical: bool = False) -> str:
        """The definition as text that compiles to the same digest: yaml, json or python."""
        from .export import export  # for people; no run needs it

        return export(definition.body, format, canonical=canonical)

    def requires(self, definition: Definition) -> dict[str, list[str]]:
        """What must be there to run it: `transports`, `children`, `functions`, `signals`."""
        requires: dict[str, list[str]] = definition.body["requires"]
        return requires

    def names(self, body: Value) -> list[str]:
        return self.children(body)

    def about(self, body: Value) -> tuple[str | None, Value]:
        return body.get("description"), (body.get("start") or {}).get("schema")

    def input_schema(self, body: Value) -> dict[str, Value] | None:
        schema = (body.get("start") or {}).get("schema")
        return schema if isinstance(schema, dict) else None

    def children(self, body: Value) -> list[str]:
        """The workflows it starts."""
        children: list[str] = body["requires"]["children"]
        return children


DIALECT = ProcessDialect()
