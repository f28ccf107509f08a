"""The playbook dialect as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import RETENTION, STANDING, Definition, Dialect, Surroundings
from treadle.lang.problems import Problems
from treadle.lang.standing import Said
from treadle.lang.text import Document

from . import inputs
from .analysis import analyse
from .compile import compile_playbook
from .fields import check_fields
from .kinds import unknown_kinds
from .machine import PlaybookMachine
from .model import Playbook

if TYPE_CHECKING:
    from treadle.lang.graph import Graph

# Kinds of tasks that call another workflow, and the fields that may name it.
_CALLS: Final = ("playbook", "workflow")
_NAMED_BY: Final = ("path", "workflow", "name")
# What a playbook asks of the house; its limits stand with the executor.
_IN_METADATA: Final = (*(field for field in STANDING if field != "limits"), RETENTION)


class PlaybookDialect(Dialect):
    name = "playbook"
    machine = PlaybookMachine()

    def __init__(self, surroundings: Surroundings | None = None) -> None:
        self._surroundings = surroundings or Surroundings()

    def within(self, surroundings: Surroundings) -> PlaybookDialect:
        """For an engine with tools of its own: tasks are held to the fields that these declare."""
        return PlaybookDialect(surroundings)

    def recognises(self, value: Value) -> bool:
        return isinstance(value, dict) and (
            isinstance(value.get("workflow"), list) or value.get("kind") == "Playbook"
        )

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        definition, problems, reader = compile_playbook(document, strict=strict)
        if definition is None:
            return None, problems
        analyse(reader, definition.body)
        unknown_kinds(reader, definition.body, self._surroundings.callables)
        check_fields(reader, definition.body, self._surroundings.declared)
        if problems.errors:
            return None, problems
        return replace(definition, warnings=tuple(problems)), problems

    def json_schema(self) -> dict[str, Value]:
        """For editors: what a file of this dialect may hold, with the tools that are known here."""
        from .schema import json_schema  # for editors; no run needs it

        return json_schema(self._surroundings.callables(), self._surroundings.declared)

    def names(self, body: Value) -> Iterator[str]:
        for step in body["workflow"]:
            for task in step.get("tool") or ():
                if task["kind"] in _CALLS:
                    named = (task.get(key) for key in _NAMED_BY)
                    yield from [name for name in named if isinstance(name, str)][:1]

    def about(self, body: Value) -> tuple[str | None, Value]:
        return (body.get("metadata") or {}).get("description"), body.get("workload")

    def input_schema(self, body: Value) -> dict[str, Value] | None:
        """A workload says by its values what may be given in their place."""
        workload = body.get("workload")
        if not isinstance(workload, dict):
            return None
        return {"type": "object", "properties": {name: _like(value) for name, value in workload.items()}}

    def standing(self, body: Value) -> Said:
        metadata = body.get("metadata") or {}
        said = {field: (("metadata", field), metadata[field]) for field in _IN_METADATA if field in metadata}
        spec = (body.get("executor") or {}).get("spec") or {}
        return (
            {**said, "limits": (("executor", "spec", "limits"), spec["limits"])} if "limits" in spec else said
        )

    def measured(self, kind: str, params: Mapping[str, Value], value: Value) -> dict[str, str | int]:
        """A step that failed comes back with its error as a value."""
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict):
            return {}
        return {"error.type": str(error.get("code") or error.get("kind") or "error")}

    def check_input(self, definition: Playbook, input: Value, options: dict[str, Value]) -> Value:
        if input is None:
            input = {}
        if not isinstance(input, dict):
            message = "a playbook's input is a mapping that is merged over its workload"
            raise InputInvalid(message, details={"errors": [{"path": "$", "message": message}]})
        if "input_schema" in definition.metadata:
            inputs.check_input(definition, input)
        return input

    def graph(self, definition: Playbook, view: dict[str, Value] | None = None) -> Graph:
        from .picture import picture  # for people; no run needs it

        return picture(definition, view)


# bool before int: True is both.
_TYPES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"),
)  # fmt: skip


def _like(value: Value) -> dict[str, Value]:
    """The schema of what stands in the place of a value."""
    type_ = next((name for kind, name in _TYPES if isinstance(value, kind)), None)
    # A template is text that may become anything.
    open_ = type_ is None or (isinstance(value, str) and "{{" in value)
    return {"default": value} if open_ else {"type": type_, "default": value}


DIALECT = PlaybookDialect()
