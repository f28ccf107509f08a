"""A playbook as a graph: steps and arcs; with a run's view, tokens and states too."""

from __future__ import annotations

from treadle.kernel.values import Value
from treadle.lang.graph import Edge, Graph, Node, NodeShape, NodeStatus

from .model import Playbook, Step
from .templates import PlacedTemplate

_STATUS: dict[str, NodeStatus] = {
    "pending": "pending",
    "running": "running",
    "done": "done",
    "failed": "failed",
}


def picture(playbook: Playbook, view: dict[str, Value] | None = None) -> Graph:
    state = (view or {}).get("state") or {}
    steps, tokens = state.get("steps") or {}, state.get("tokens") or []
    title = str(playbook.metadata.get("name") or "playbook")
    graph = Graph(title)
    graph.nodes.append(Node("(start)", "", "start", "done" if view is not None else "idle"))
    graph.edges.append(Edge("(start)", playbook.entry))
    # No arc leads there: the run itself does.
    for name, when in (
        (playbook.on_failure, "on failure"),
        (playbook.on_cancel, "on cancel"),
        (playbook.final, "at the end"),
    ):
        if name is not None and name != playbook.entry:
            graph.edges.append(Edge("(start)", name, when, dashed=True))
    for step in playbook.steps.values():
        waiting = sum(1 for token in tokens if token["step"] == step.name and token["status"] == "pending")
        graph.nodes.append(_node(step, steps.get(step.name), waiting, playbook))
        for arc in step.arcs:
            label = (
                arc.when.expression.text.strip().strip("{}").strip()
                if isinstance(arc.when, PlacedTemplate)
                else ""
            )
            graph.edges.append(Edge(step.name, arc.step, label, dashed=step.inclusive))
    return graph


def _node(step: Step, entry: dict[str, Value] | None, waiting: int, playbook: Playbook) -> Node:
    kinds = ", ".join(dict.fromkeys(task.kind for task in step.tasks))
    label = f"{step.name}\n{kinds}" if kinds else step.name
    shape: NodeShape = "step" if step.tasks else "choice"
    if step.tasks and all(task.kind in ("playbook", "workflow") for task in step.tasks):
        shape = "child"
    elif step.tasks and all(task.kind == "ask" for task in step.tasks):
        shape = "task"
    elif step.tasks and all(task.kind == "wait" for task in step.tasks):
        shape = "timer"
    elif step.tasks and all(task.kind == "await" for task in step.tasks):
        shape = "signal"
    notes = []
    if step.loop is not None:
        notes.append(f"for {step.loop.iterator}")
    if step.name == playbook.final:
        notes.append("final")
    status: NodeStatus = "idle"
    if entry is not None:
        status = _STATUS.get(entry["status"], "idle")
        if entry.get("runs", 0) > 1:
            notes.append(f"{entry['runs']} runs")
        stats = entry["result"].get("stats") if isinstance(entry.get("result"), dict) else None
        if step.loop is not None and isinstance(stats, dict):
            notes.append(f"{stats.get('success')}/{stats.get('total')}")
    if waiting:
        status = "pending"
        notes.append(f"{waiting} waiting")
    return Node(step.name, label, shape, status, ", ".join(notes))
