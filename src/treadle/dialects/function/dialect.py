"""Durable functions as the engine sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect, Surroundings
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from .machine import Code, FunctionMachine
from .shapes import plain
from .workflow import DIALECT_NAME

if TYPE_CHECKING:
    from treadle.lang.graph import Graph


class FunctionDialect(Dialect):
    name = DIALECT_NAME
    machine: FunctionMachine
    has_code = True
    at_home = frozenset({"send", "publish"})

    def __init__(self) -> None:
        self.machine = FunctionMachine()

    def within(self, surroundings: Surroundings) -> FunctionDialect:
        """An instance for each engine, because the machine holds live code."""
        return FunctionDialect()

    def attach(self, code: Any) -> None:
        self.machine.attach(code)

    def about(self, body: Any) -> tuple[str | None, Value]:
        return body.get("description"), None

    def recognises(self, value: Value) -> bool:
        return False

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        """A function has no text but its source."""
        problems = Problems(document)
        problems.error("CODE_MISSING", (), "a durable function is named by its file", hint="FILE.py:NAME")
        return None, problems

    def given(self, input: object) -> Value:
        """An input as its caller has it: a dataclass, a model."""
        return plain(input)

    def check_input(self, definition: Code, input: Value, options: dict[str, Any]) -> Value:
        code = definition.live
        if code is None:
            return input  # whoever has the code decides; without it the run stalls
        if not code.has_input and input is not None:
            raise InputInvalid(f"{code.name} takes no input: async def {code.name}(ctx)")
        return code.taken(input)

    def result(self, definition: Code, value: Value) -> Any:
        """A result as its annotation promises it, where the code is at hand."""
        code = definition.live
        return value if code is None else code.result(value)

    def graph(self, definition: Code, view: dict[str, Any] | None = None) -> Graph:
        from .picture import draw  # for people; no run needs it

        return draw(definition, view)


DIALECT = FunctionDialect()
