"""The context of a node: the input and the data of every node before it, at a flat price.

A context grows with the run, and every model turn needs all of it; written out in each intent it
would make the journal quadratic. So it travels as a short list of *items*: `[node, data]` for the
latest nodes (with `evals` as a third part where evaluators ran, so that large data can stay a
reference), and a reference to a *chunk* for everything older. A chunk is a stored list of items,
which may itself begin with a reference to an older chunk. The performer that is handed a long list
stores it as a chunk and answers with its reference; the machine goes on from there.

`base` is what the branch was forked with, `own` what was added on it since: at a join the own
items of each branch are put behind one another, in edge order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.kernel.values import Value

from .model import Workflow

Item = Any


def evals_of(item: Item) -> list[dict[str, Value]] | None:
    return item[2] if len(item) > 2 else None


def entry(data: Value, evals: list[dict[str, Value]] | None) -> Value:
    """What later nodes see of a node: its data, and under `evals` the verdicts by name."""
    if not evals:
        return data
    seen = {e["name"]: {"pass": e["pass"], "kind": e["kind"], "reasoning": e["reasoning"]} for e in evals}
    return {**(data if isinstance(data, dict) else {}), "evals": seen}


def routing_view(workflow: Workflow, context: Mapping[str, Value]) -> dict[str, Value]:
    """E9: of a node with declared output the router sees only the declared keys, and `evals`."""
    view: dict[str, Value] = {}
    for key, data in context.items():
        node = workflow.nodes.get(key)
        declared = node.declared if node is not None and key != "input" else ()
        if not declared or not isinstance(data, dict):
            view[key] = data
            continue
        shown = {name: data.get(name) for name in declared}
        if "evals" in data:
            shown["evals"] = data["evals"]
        view[key] = shown
    return view
