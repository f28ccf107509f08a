"""The playbook dialect as the engine sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.fields import Declared, nothing_declared
from treadle.lang.graph import Graph
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from . import inputs
from .analysis import analyse
from .compile import compile_playbook
from .fields import check_fields
from .kinds import Kinds, unknown_kinds
from .machine import PlaybookMachine
from .picture import picture
from .schema import json_schema


class PlaybookDialect:
    name = "playbook"
    machine = PlaybookMachine()

    def __init__(self, kinds: Kinds = tuple, declared: Declared = nothing_declared) -> None:
        self._kinds, self._declared = kinds, declared

    def knowing(self, kinds: Kinds) -> PlaybookDialect:
        """This dialect, for an engine with tools of its own."""
        return PlaybookDialect(kinds, self._declared)

    def declaring(self, declared: Declared) -> PlaybookDialect:
        """This dialect, holding tasks to the fields that their tools declare."""
        return PlaybookDialect(self._kinds, declared)

    def recognises(self, value: Value) -> bool:
        return isinstance(value, dict) and (
            isinstance(value.get("workflow"), list) or value.get("kind") == "Playbook"
        )

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        definition, problems, reader = compile_playbook(document, strict=strict)
        if definition is None:
            return None, problems
        analyse(reader, definition.body)
        unknown_kinds(reader, definition.body, self._kinds)
        check_fields(reader, definition.body, self._declared)
        if problems.errors:
            return None, problems
        return replace(definition, warnings=tuple(problems)), problems

    def json_schema(self) -> dict[str, Any]:
        """For editors: what a file of this dialect may hold, with the tools that are known here."""
        return json_schema(self._kinds(), self._declared)

    def check_input(self, definition: Any, input: Value, options: dict[str, Any]) -> Value:
        if input is None:
            input = {}
        if not isinstance(input, dict):
            message = "a playbook's input is a mapping that is merged over its workload"
            raise InputInvalid(message, details={"errors": [{"path": "$", "message": message}]})
        inputs.check_input(definition, input)
        return input

    def graph(self, definition: Any, view: dict[str, Any] | None = None) -> Graph:
        return picture(definition, view)


DIALECT = PlaybookDialect()
