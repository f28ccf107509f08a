"""The playbook dialect as the engine sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from treadle.kernel.errors import InputInvalid
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.graph import Graph
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from .analysis import analyse
from .compile import compile_playbook
from .kinds import Kinds, unknown_kinds
from .machine import PlaybookMachine
from .picture import picture


class PlaybookDialect:
    name = "playbook"
    machine = PlaybookMachine()

    def __init__(self, kinds: Kinds = tuple) -> None:
        self._kinds = kinds

    def knowing(self, kinds: Kinds) -> PlaybookDialect:
        """This dialect, for an engine with tools of its own."""
        return PlaybookDialect(kinds)

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
        if problems.errors:
            return None, problems
        return replace(definition, warnings=tuple(problems)), problems

    def check_input(self, definition: Any, input: Value, options: dict[str, Any]) -> Value:
        if input is None:
            return {}
        if not isinstance(input, dict):
            message = "a playbook's input is a mapping that is merged over its workload"
            raise InputInvalid(message, details={"errors": [{"path": "$", "message": message}]})
        return input

    def graph(self, definition: Any, view: dict[str, Any] | None = None) -> Graph:
        return picture(definition, view)


DIALECT = PlaybookDialect()
