"""A workflow, or a run of it, as a picture: `when · max 3x · taken 2x` on the edges."""

from __future__ import annotations

from typing import Final

from treadle.kernel.values import Value
from treadle.lang import graph as picture

from .model import Edge, Workflow

_STATUS: Final[dict[str, picture.NodeStatus]] = {
    "success": "done",
    "failed": "failed",
    "skipped": "skipped",
}


def draw(workflow: Workflow, view: dict[str, Value] | None = None) -> picture.Graph:
    state = (view or {}).get("state") or {}
    results = state.get("results") or {}
    trace = state.get("trace") or {"steps": [], "edges": []}
    active = (view or {}).get("nodes") or {}
    visits: dict[str, int] = {}
    for step in trace["steps"]:
        visits[step["node"]] = max(visits.get(step["node"], 0), step["iteration"])
    graph = picture.Graph(workflow.name)
    for node in workflow.nodes.values():
        status: picture.NodeStatus = "idle"
        if node.id in active:
            status = "waiting" if active[node.id] in ("approve", "in_doubt") else "running"
        elif node.id in results:
            status = _STATUS[results[node.id]["status"]]
        badge = f"{visits[node.id]} runs" if visits.get(node.id, 0) > 1 else ""
        graph.nodes.append(picture.Node(node.id, node.name, _shape(workflow, node.id), status, badge))
    for edge in workflow.edges:
        taken = _taken(trace["edges"], edge)
        graph.edges.append(
            picture.Edge(edge.source, edge.target, _label(edge, taken), dashed=not edge.plain, taken=taken)
        )
    return graph


def _shape(workflow: Workflow, node: str) -> picture.NodeShape:
    spec = workflow.nodes[node]
    if node == workflow.entry:
        return "start"
    if spec.approve is not None:
        return "task"
    if spec.child is not None:
        return "child"
    return "step" if workflow.out[node] else "end"


def _taken(edges: list[dict[str, Value]], edge: Edge) -> int:
    return sum(
        1 for e in edges if e["from"] == edge.source and e["to"] == edge.target and e["reason"] == edge.reason
    )


def _label(edge: Edge, taken: int) -> str:
    parts = ["" if edge.plain else edge.reason]
    if edge.limit is not None:
        parts.append(f"max {edge.limit}x")
    if taken:
        parts.append(f"taken {taken}x")
    return " · ".join(part for part in parts if part)
