"""Conditions that the data answers: `if: {$: "classify.amount > 100"}` on an edge.

They are written in the expression language of processes and read what a router is shown (E9): of a
node with declared output its declared keys and `evals`, of any other all of its data; and `input`.
`context['fetch-logs'].count` reaches a node whose id is no name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from treadle.kernel.errors import ExpressionError
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value
from treadle.lang.expressions.checks import call_problem
from treadle.lang.expressions.closures import Scope, compile_condition
from treadle.lang.expressions.functions import measure
from treadle.lang.expressions.syntax import is_name, parse, unparse, walk

# All nodes by id, for those whose id is no name. A node of that id goes before it.
WHOLE: Final = "context"


@dataclass(frozen=True, slots=True)
class Condition:
    """One expression, and how it was written."""

    text: str
    holds: Callable[[Scope], bool]

    @staticmethod
    def of(written: Mapping[str, Value]) -> Condition:
        text = written["$"]
        return Condition(text, compile_condition({"$": parse(text)}))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a condition may read. `look(name)` gives the input or what the router sees of a node;
    `names` are all of them."""

    now_ns: int
    look: Callable[[str], Value]
    load: Callable[[Value], Value]
    names: Collection[str]

    def root(self, name: str) -> Value:
        if name == WHOLE and name not in self.names:
            return {each: self.look(each) for each in self.names}
        return self.look(name)

    def whole(self, name: str) -> Value:
        return self.root(name)

    def at_hand(self, value: Value) -> Value:
        return self.load(value) if is_reference(value) else value

    def made(self, value: Value) -> Value:
        """A condition passes nothing on: what it builds is bounded, and gone with its answer."""
        if isinstance(value, list | dict):
            measure(value)
        return value


def problems_of(text: str, nodes: Collection[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with a condition, and what to write instead."""
    try:
        tree = parse(text)
    except ExpressionError as error:
        yield (
            error.message,
            "Write it as in a process: classify.category == 'refund' and classify.amount > 100.",
        )
        return
    for part in walk(tree):
        if part[0] == "call" and (problem := call_problem(part)) is not None:
            yield problem[1], problem[2]
        elif part[0] == "path" and part[1] not in (*nodes, "input", WHOLE):
            yield f"{unparse(part)}: {part[1]!r} is neither input nor a node", _remedy(part[1], nodes)


def _remedy(root: str, nodes: Collection[str]) -> str:
    if dashed := next((node for node in nodes if not is_name(node) and node.startswith(root)), None):
        return f"Write {WHOLE}[{dashed!r}] for the node {dashed}."
    near = difflib.get_close_matches(root, [*nodes, "input"], n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return f"{guess}A path starts with input or a node: {', '.join(nodes)}; text stands in quotes."
