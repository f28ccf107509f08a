"""Pictures: of a definition, what its source names, in order; of a run, what happened."""

from __future__ import annotations

from typing import Any, Final

from treadle.lang.graph import Edge, Graph, Node, NodeShape

from .machine import Code
from .steps import Step
from .workflow import Workflow

_SHAPES: Final[dict[str, NodeShape]] = {
    "timer": "timer", "signal": "signal", "task": "task", "child": "child", "start": "child",
}  # fmt: skip


def draw(definition: Code, view: dict[str, Any] | None = None) -> Graph:
    graph = Graph(definition.name, [Node("start", definition.name, "start")])
    if view is not None and "awaits" in view:
        found = [(f"{kind} {name}", _SHAPES.get(kind, "step")) for kind, name in view["awaits"]]
    else:
        found = _named(definition)
    last = "start"
    for number, (label, kind) in enumerate(found):
        graph.nodes.append(Node(str(number), label, kind))
        graph.edges.append(Edge(last, str(number)))
        last = str(number)
    return graph


def _named(definition: Code) -> list[tuple[str, NodeShape]]:
    code = definition.live
    if code is None:
        return []
    return [
        (value.name, "step" if isinstance(value, Step) else "child")
        for _, value, _, _ in sorted(code.source.named, key=lambda named: named[3])
        if isinstance(value, Step | Workflow)
    ]
