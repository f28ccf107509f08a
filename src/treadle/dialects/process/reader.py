"""Reads the small things of a document: fields, names, durations, templates, expressions.

Every mistake becomes a problem with its place, and reading goes on, so that people see all of
them at once. What comes back is canonical, or of no use because there are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value
from treadle.lang.duration import parse_duration
from treadle.lang.expressions.checks import call_problem
from treadle.lang.expressions.functions import FUNCTIONS
from treadle.lang.expressions.syntax import Tree, is_name, parse, read_tree, unparse, walk
from treadle.lang.problems import Problems
from treadle.lang.slips import nearest
from treadle.lang.text import Path

from .durations import duration_text
from .parts import ROOTS, RUN_FIELDS
from .schemas import schema_problem

RULE: Final = "PROCESS"
CHILD_NOT_DEPLOYED: Final = "CHILD_NOT_DEPLOYED"


class LoopNames(msgspec.Struct, frozen=True):
    """Which loop names an expression can see at its place."""

    loops: frozenset[str] = frozenset()

    def within(self, loop: str) -> LoopNames:
        return LoopNames(self.loops | {loop, f"{loop}_index", "item_index"})


class Requirements(msgspec.Struct):
    """What a definition needs from the engine that runs it."""

    transports: dict[str, None] = msgspec.field(default_factory=dict)
    children: dict[str, None] = msgspec.field(default_factory=dict)
    functions: dict[str, None] = msgspec.field(default_factory=dict)
    signals: dict[str, None] = msgspec.field(default_factory=dict)

    def to_value(self) -> dict[str, list[str]]:
        return {
            "children": sorted(self.children),
            "functions": sorted(self.functions),
            "signals": sorted(self.signals),
            "transports": sorted(self.transports),
        }


class Reader:
    """Reads the small things of a document: fields, names, durations, templates, expressions."""

    def __init__(self, problems: Problems, transports: Collection[str]) -> None:
        self.problems = problems
        self.transports = transports
        self.requires = Requirements()
        # The loop names at each place that asks for a task.
        self.asked: dict[str, list[LoopNames]] = {}
        self.tasks: Mapping[str, Value] = {}
        # Where each other workflow is started first.
        self.started_at: dict[str, Path] = {}
        self.ids: dict[str, Path] = {}
        # Whether an undo is being read.
        self.undoing = False

    def error(self, code: str, path: Path, message: str, hint: str = "") -> None:
        self.problems.error(code, path, message, hint=hint, rule=RULE)

    def warning(self, code: str, path: Path, message: str, hint: str = "") -> None:
        self.problems.warning(code, path, message, hint=hint, rule=RULE)

    def fields(
        self, value: Value, path: Path, allowed: Collection[str], what: str
    ) -> dict[str, Value] | None:
        """A mapping with known fields only; an unknown one is a typing error until proven useful."""
        if not isinstance(value, dict):
            self.error("NOT_A_MAPPING", path, f"{what} must be a mapping", f"fields: {', '.join(allowed)}")
            return None
        for key in value:
            if key not in allowed:
                near = nearest(str(key), allowed)
                hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(allowed)}"
                self.error("UNKNOWN_FIELD", (*path, key), f"{what} has no field {key!r}", hint)
        return value

    def text(self, value: Value, path: Path, what: str) -> str | None:
        if isinstance(value, str) and value.strip():
            return value
        self.error("NOT_TEXT", path, f"{what} must be text that is not empty")
        return None

    def name(self, value: Value, path: Path, what: str) -> str | None:
        if isinstance(value, str) and is_name(value):
            return value
        self.error("BAD_NAME", path, f"{what} must be a name: letters, digits and _, not {value!r}")
        return None

    def texts(self, value: Value, path: Path, what: str) -> list[str]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            self.error("NOT_TEXT", path, f"{what} must be a list of texts")
            return []
        return list(dict.fromkeys(items))

    def duration(self, value: Value, path: Path) -> str | None:
        try:
            if not isinstance(value, str):
                raise TreadleError(f"{value!r} is not a duration; write 500ms, 30s, 2h, 3d or PT2S, P3D")
            return duration_text(parse_duration(value))
        except TreadleError as error:
            self.error("BAD_DURATION", path, error.message)
            return None

    def schema(self, value: Value, path: Path) -> Value:
        if problem := schema_problem(value):
            self.error("BAD_SCHEMA", path, problem, "write a JSON Schema (draft 2020-12)")
        return value

    # --- templates and expressions ---

    def template(self, value: Value, path: Path, names: LoopNames) -> Value:
        """A value with expressions in it, each of them checked and turned into its tree."""
        match value:
            case dict() if "$" in value:
                if len(value) > 1:
                    self.error(
                        "BAD_EXPRESSION",
                        path,
                        "a mapping with the key `$` is an expression and has no other keys",
                        "put quotes around an expression with a comma: {$: 'concat(a, b)'}",
                    )
                return self.expression(value["$"], (*path, "$"), names)
            case dict():
                for key in value:
                    if not isinstance(key, str):
                        self.error("BAD_VALUE", path, f"the key {key!r} is not text")
                return {str(key): self.template(part, (*path, key), names) for key, part in value.items()}
            case list() | tuple():
                return [self.template(part, (*path, index), names) for index, part in enumerate(value)]
            case None | bool() | int() | str():
                return value
            case float() if value == value and abs(value) != float("inf"):
                return value
        hint = (
            "a definition is data; register the function as a transport and call it"
            if callable(value)
            else ""
        )
        self.error("BAD_VALUE", path, f"{type(value).__name__} cannot stand in a definition", hint)
        return None

    def expression(self, value: Value, path: Path, names: LoopNames) -> Value:
        try:
            tree = read_tree(value) if isinstance(value, list) else parse(_as_text(value))
        except TreadleError as error:
            self.error(error.code, path, error.message)
            return None
        self._check_tree(tree, path, names)
        return {"$": tree}

    def condition(self, value: Value, path: Path, names: LoopNames) -> Value:
        if isinstance(value, str):
            self.error(
                "TEXT_AS_CONDITION",
                path,
                "a text is always true here",
                f"write {{$: {value!r}}} to evaluate it",
            )
        return self.template(value, path, names)

    def _check_tree(self, tree: Tree, path: Path, names: LoopNames) -> None:
        for node in walk(tree):
            if node[0] == "path":
                self._check_root(node, path, names)
            elif node[0] == "call":
                self._check_call(node, path)

    def _check_root(self, node: Tree, path: Path, names: LoopNames) -> None:
        root = node[1]
        if root not in ROOTS and root not in names.loops:
            known = [*ROOTS, *sorted(names.loops)]
            near = nearest(root, known)
            guess = f"did you mean {near[0]!r}? " if near else ""
            self.error(
                "UNKNOWN_ROOT",
                path,
                f"{unparse(node)}: {root!r} is not known here",
                f"{guess}a path starts with {', '.join(known)}; text stands in quotes",
            )
        elif root == "run" and node[2:] and node[2] not in RUN_FIELDS:
            self.error("UNKNOWN_ROOT", path, f"{unparse(node)}: run has {', '.join(RUN_FIELDS)}")

    def _check_call(self, node: Tree, path: Path) -> None:
        if (problem := call_problem(node)) is not None:
            code, message, hint = problem
            self.error(code, path, message, hint)
        if node[1] in FUNCTIONS:
            self.requires.functions[node[1]] = None


def _as_text(value: Value) -> str:
    """`{$: 5}` and `{$: true}` mean the literals, however the text was parsed."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float):
        return unparse(["lit", value])
    raise TreadleError("an expression is a text", code="EXPRESSION_SYNTAX")
