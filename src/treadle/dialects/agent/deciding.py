"""Which edges can be followed from a node, as the run stands: counts, and the conditions of data."""

from __future__ import annotations

from treadle.kernel.errors import ExpressionError
from treadle.kernel.values import Value

from .conditions import Seen
from .context import entry, routing_view
from .flow import Flow, visit_of
from .model import Edge
from .routing import Ways, ways
from .states import Branch


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
