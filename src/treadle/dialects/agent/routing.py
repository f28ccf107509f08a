"""Where a run goes after a node: which edges are left, who decides, where branches meet.

What `when` says is never evaluated here: it is a question to the model. This module only says which
question there is, if any. What `if` says is data's to answer, before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.kernel.errors import ExpressionError
from treadle.kernel.values import Value

from .conditions import Seen
from .context import entry, routing_view
from .flow import Flow, visit_of
from .model import DEFAULT_PATH, Edge, Workflow
from .states import Branch


class Ways(msgspec.Struct, frozen=True):
    """What can follow a node. At most one of the first three is set; none: the node is terminal.
    `tested`: there were conditions of data, and none of them held."""

    follow: Edge | None = None
    fork: tuple[Edge, ...] = ()
    ask: tuple[Edge, ...] = ()
    tested: bool = False


NOWHERE: Final = Ways()


def ways_on(flow: Flow, branch: Branch, node: str, data: Value = None) -> Ways:
    """What can follow `node`; `data` is its result where that is not recorded yet. Raises
    ExpressionError, its `where` the edge, if a condition cannot be evaluated."""
    if node not in flow.workflow.tested:
        return ways(flow.workflow, node, flow.state["counts"], _untested)

    def look(name: str) -> Value:
        if name == "input":
            return flow.load(flow.state["input"])
        if name == node and data is not None:
            value = entry(data, visit_of(branch)["evals"])
        else:
            value = flow.lookup(branch, name)
        return routing_view(flow.workflow, {name: value})[name]

    seen = Seen(flow.ctx.now_ns, look, flow.load, ["input", *flow.workflow.nodes])

    def holds(edge: Edge) -> bool:
        assert edge.test is not None
        try:
            return edge.test.holds(seen)
        except ExpressionError as error:
            error.where = f"edges[{edge.index}].if"
            raise

    return ways(flow.workflow, node, flow.state["counts"], holds)


def _untested(edge: Edge) -> bool:
    raise AssertionError(f"edge {edge.index} has no condition of data")


def ways(workflow: Workflow, node: str, counts: Mapping[str, int], holds: Callable[[Edge], bool]) -> Ways:
    """E1: drop what is used up; the first edge whose `if` holds is followed; without one, a single
    unconditional edge; the rest is asked."""
    left = [edge for edge in workflow.out[node] if not used_up(edge, counts)]
    tested = [edge for edge in left if edge.test is not None]
    for edge in tested:
        if holds(edge):
            return Ways(follow=edge)
    rest = [edge for edge in left if edge.test is None]
    plain = [edge for edge in rest if edge.plain]
    if len(rest) == len(plain):
        if len(plain) > 1:
            return Ways(fork=tuple(plain))
        return Ways(follow=plain[0]) if plain else Ways(tested=bool(tested))
    return Ways(ask=(*(edge for edge in rest if not edge.plain), *plain))


def used_up(edge: Edge, counts: Mapping[str, int]) -> bool:
    return edge.limit is not None and counts.get(edge.pair, 0) >= edge.limit


def is_decision(workflow: Workflow, node: str) -> bool:
    """Whether a dry run stops here: the node has a conditional edge out."""
    return any(edge.when is not None for edge in workflow.out[node])


def choices(edges: Sequence[Edge]) -> list[dict[str, str]]:
    """The question's choices, conditional edges first. Ids are targets; a second edge to the same
    target gets a number, so that an answer always names one edge."""
    out: list[dict[str, str]] = []
    taken = {edge.target for edge in edges}
    given: set[str] = set()
    for edge in edges:
        id, number = edge.target, 2
        while id in given or (id != edge.target and id in taken):
            id, number = f"{edge.target} ({number})", number + 1
        given.add(id)
        out.append({"id": id, "description": edge.when or DEFAULT_PATH})
    return out


def chosen(choices: list[dict[str, str]], answer: Any) -> int | None:
    """The position of the choice that an answer names, by id or by its full text."""
    if not isinstance(answer, str):
        return None
    for key in ("id", "description"):
        for position, choice in enumerate(choices):
            if choice[key] == answer:
                return position
    return None


def join_of(workflow: Workflow, node: str) -> str | None:
    """The first node that every branch out of `node` can reach: the one with the shortest longest
    way, then the shortest ways in sum, then the first by name."""
    if node not in workflow.joins:
        plain = [edge.target for edge in workflow.out[node] if edge.plain]
        distances = [_distances(workflow, target) for target in plain]
        common = [n for n in distances[0] if all(n in d for d in distances[1:])]
        workflow.joins[node] = min(
            common,
            key=lambda n: (max(d[n] for d in distances), sum(d[n] for d in distances), n),
            default=None,
        )
    return workflow.joins[node]


def _distances(workflow: Workflow, start: str) -> dict[str, int]:
    found, queue = {start: 0}, [start]
    for node in queue:
        for edge in workflow.out[node]:
            if edge.target not in found:
                found[edge.target] = found[node] + 1
                queue.append(edge.target)
    return found
