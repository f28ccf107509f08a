"""The agent dialect as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect, Surroundings
from treadle.lang.graph import Graph
from treadle.lang.problems import Problems
from treadle.lang.text import Document

from . import inputs
from .check import check
from .graph import draw
from .machine import AgentMachine
from .model import Workflow


class AgentDialect(Dialect):
    name = "agent"
    machine = AgentMachine()
    rehearses = True
    asks_models = True
    # All that an input lacks is told at once, also where one of its values could not be stored.
    checks_input_first = True

    def __init__(self, surroundings: Surroundings | None = None) -> None:
        self._finds = (surroundings or Surroundings()).finds_skill

    def is_at_home(self, intent: OpenIntent) -> bool:
        """A tool of the built-in skill `workflows`, by either of its names. A tool of somebody else's that is called the
        same is declined where it is not known, and goes to workers."""
        tool = str(intent.params.get("tool", "")).removeprefix("workflows__")
        return intent.kind == "call" and tool in ("run_workflow", "list_workflows")

    def within(self, surroundings: Surroundings) -> AgentDialect:
        """For an engine with skills of its own."""
        return AgentDialect(surroundings)

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

    def input_schema(self, body: Any) -> dict[str, Any] | None:
        inputs = body.get("inputs")
        if not isinstance(inputs, dict):
            return None
        said = {name: spec if isinstance(spec, dict) else {} for name, spec in inputs.items()}
        shown = ("type", "title", "description", "default", "enum")
        properties = {name: {key: spec[key] for key in shown if key in spec} for name, spec in said.items()}
        needed = [
            name for name, spec in said.items() if spec.get("required") is True and "default" not in spec
        ]
        return {"type": "object", "properties": properties, "required": needed}

    def names(self, body: Any) -> Iterator[str]:
        for node in body["nodes"].values():
            if isinstance(run := node.get("run"), dict) and isinstance(run.get("workflow"), str):
                yield run["workflow"]

    def needs_model(self, definition: Workflow) -> bool:
        return definition.needs_model

    def measured(self, kind: str, params: Mapping[str, Any], value: Value) -> dict[str, str | int]:
        """Which provider answered, and how many tokens that took."""
        usage = value.get("usage") if isinstance(value, dict) else None
        if not isinstance(usage, dict):
            return {}
        found: dict[str, str | int] = {
            f"gen_ai.usage.{name}": int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens")
        }
        if provider := params.get("provider"):
            found["gen_ai.provider.name"] = str(provider)
        return found

    def check_input(self, definition: Workflow, input: Value, options: dict[str, Value]) -> Value:
        return inputs.apply(definition.inputs, input, dry_run=bool(options.get("dry_run")))

    def graph(self, definition: Workflow, view: dict[str, Value] | None = None) -> Graph:
        return draw(definition, view)


DIALECT = AgentDialect()
