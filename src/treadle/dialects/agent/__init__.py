"""The agent dialect: workflows whose nodes are run by a model and whose edges a model chooses.

`DIALECT` is what the engine sees of it. The rules are in one place each: `check` and `inputs` for
what may be written, `sources` for instructions, `visiting`, `judging`, `leaving`, `ending` for the
four parts of a visit, `routing` and `context` for what a node is told and where the run goes next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.graph import Graph
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from . import inputs
from .check import check
from .graph import draw
from .machine import AgentMachine
from .model import Workflow

Finds = Callable[[str, str | None], bool | str]


class AgentDialect:
    """`finds(skill, file)` says whether a skill that is neither in a file nor built in can be had for
    it all the same, or what is wrong with the one that is there; who compiles knows where to look."""

    name = "agent"
    machine = AgentMachine()

    def __init__(self, finds: Finds = lambda skill, file: False) -> None:
        self._finds = finds

    def finding(self, finds: Finds) -> AgentDialect:
        return AgentDialect(finds)

    def recognises(self, value: Value) -> bool:
        if not isinstance(value, dict):
            return False
        if "dialect" in value:
            return bool(value["dialect"] == self.name)
        # Without edges it is an unfinished workflow, and is told what is missing.
        return "nodes" in value and ("edges" in value or "entry" in value)

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        problems = Problems(document)
        check(document.value, problems, lambda skill: self._finds(skill, document.file))
        if problems.errors:
            return None, problems
        body = {key: value for key, value in document.value.items() if key != "dialect"}
        version = body.get("version")
        definition = Definition(
            dialect=self.name,
            name=body["id"],
            version=str(version) if isinstance(version, str | int | float) and version != "" else None,
            body=body,
            file=document.file,
            warnings=tuple(problems),
        )
        return definition, problems

    def check_input(self, definition: Workflow, input: Value, options: dict[str, Any]) -> Value:
        return inputs.apply(definition.inputs, input, dry_run=bool(options.get("dry_run")))

    def graph(self, definition: Workflow, view: dict[str, Any] | None = None) -> Graph:
        return draw(definition, view)


DIALECT = AgentDialect()
