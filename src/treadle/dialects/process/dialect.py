"""The process dialect as the engine sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.graph import Graph
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from . import export as exporting
from .drawing import draw
from .machine import ProcessMachine
from .normalise import normalise
from .program import Program
from .schemas import mismatches
from .transports import TOOLS


class ProcessDialect:
    """Business processes: human tasks, timers, signals, sub-workflows."""

    name = "process"

    def __init__(self) -> None:
        self.machine = ProcessMachine()

    def recognises(self, value: Value) -> bool:
        if not isinstance(value, dict):
            return False
        if "dialect" in value:
            return bool(value["dialect"] == self.name)
        return isinstance(value.get("steps"), list) and "tasks" in value

    def compile(
        self, document: Document, *, strict: bool = False, transports: Collection[str] = ()
    ) -> tuple[Definition | None, Problems]:
        """`transports` are those that the engine has besides the built-in ones. Nothing here is
        lenient, so `strict` changes nothing."""
        body, problems = normalise(document, frozenset({*TOOLS, *transports}))
        if body is None:
            return None, problems
        warnings = tuple(problems)
        definition = Definition(
            self.name, body["name"], body.get("version"), body, file=document.file, warnings=warnings
        )
        return definition, problems

    def check_input(self, definition: Program, input: Value, options: dict[str, Any]) -> Value:
        if definition.schema is None:
            return input
        if errors := mismatches(definition.schema, input):
            first = errors[0]
            raise InputInvalid(
                f"the start payload of {definition.name} does not fit: {first['path']}: {first['message']}",
                details={"errors": errors},
            )
        return input

    def graph(self, definition: Program, view: dict[str, Any] | None = None) -> Graph:
        return draw(definition, view)

    def export(self, definition: Definition, format: str = "yaml", *, canonical: bool = False) -> str:
        """The definition as text that compiles to the same digest: yaml, json or python."""
        return exporting.export(definition.body, format, canonical=canonical)

    def requires(self, definition: Definition) -> dict[str, list[str]]:
        """What must be there to run it: `transports`, `children`, `functions`, `signals`."""
        requires: dict[str, list[str]] = definition.body["requires"]
        return requires
