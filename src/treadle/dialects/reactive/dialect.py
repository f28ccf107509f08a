"""The reactive dialect as the engine sees it."""

from __future__ import annotations

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect, Surroundings
from treadle.lang.graph import Graph
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from .app import DIALECT_NAME, App
from .decide import Bound
from .governance import Books
from .machine import ReactiveDefinition, ReactiveMachine, draw


class ReactiveDialect(Dialect):
    name = DIALECT_NAME
    has_code = True

    machine: ReactiveMachine

    def __init__(self) -> None:
        self.machine = ReactiveMachine()

    def within(self, surroundings: Surroundings) -> ReactiveDialect:
        """An instance for each engine, because the machine holds live code."""
        return ReactiveDialect()

    def attach(self, code: App) -> None:
        self.machine.attach(code)

    def recognises(self, value: Value) -> bool:
        return isinstance(value, dict) and value.get("$kind") == "manifest"

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        """A manifest alone does not run: the code behind it has to be named."""
        problems = Problems(document)
        problems.error(
            "CODE_MISSING",
            (),
            "a manifest needs the code of its workflows",
            hint="name the application as FILE.py:ATTR; check a manifest against it with rx.App(..., manifest=...)",
        )
        return None, problems

    def check_input(self, definition: ReactiveDefinition, input: Value, options: dict[str, Value]) -> Value:
        """The first event of a run that is started by hand: {schema, value}, or the bare value where the
        workflow takes only one schema."""
        if isinstance(definition, Books):
            return None
        if not isinstance(definition, Bound):
            raise InputInvalid("the code of this workflow is not here; deploy its application")
        workflow = definition.workflow
        if input is None:
            return None
        if isinstance(input, dict) and input.keys() == {"schema", "value"}:
            schema, value = input["schema"], input["value"]
        elif len(workflow.events) == 1:
            schema, value = workflow.events[0].name, input
        else:
            taken = ", ".join(event.name for event in workflow.events)
            raise InputInvalid(f"{workflow.name} takes {taken}: give {{schema, value}}")
        if schema not in workflow.by_schema:
            raise InputInvalid(f"{workflow.name} does not take {schema}")
        schema, value = definition.app.event(schema, value)
        return {"schema": schema, "value": value}

    def graph(self, definition: ReactiveDefinition, view: dict[str, Value] | None = None) -> Graph:
        return draw(definition)


DIALECT = ReactiveDialect()
