"""A picture of a definition or of a run, as data. Renderers turn it into Mermaid, DOT or SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NodeShape = Literal["step", "start", "end", "choice", "task", "timer", "signal", "child", "group"]
NodeStatus = Literal[
    "idle", "pending", "running", "waiting", "done", "failed", "skipped", "cancelled", "stalled"
]


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    label: str
    shape: NodeShape = "step"
    status: NodeStatus = "idle"
    # A short remark shown in the corner: "3 runs", "2/10", "due 14:00".
    badge: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    label: str = ""
    dashed: bool = False
    # How often a run went along it.
    taken: int = 0


@dataclass(slots=True)
class Graph:
    title: str
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
