"""Pictures of definitions and runs: Mermaid, DOT, SVG, PNG.

`render` is the one entry. All formats are text except PNG, which needs the `graph` extra
(a wheel with a rasteriser inside; nothing has to be installed on the system).
"""

from __future__ import annotations

import json
import re
from typing import Final

from treadle.kernel.errors import Unsupported
from treadle.lang.graph import Edge, Graph, Node

from . import FORMATS
from .layout import complete
from .svg import edge_text, svg

__all__ = ["dot", "mermaid", "png", "render", "svg"]

PNG_PIXELS_MAX: Final = 16_000.0

_PLAIN_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
# Words that Mermaid does not take as ids.
_RESERVED: Final = frozenset(
    [
        "end",
        "graph",
        "flowchart",
        "subgraph",
        "style",
        "linkstyle",
        "classdef",
        "class",
        "click",
        "default",
        "direction",
    ]
)
_MERMAID_SHAPES: Final = {
    "step": ("[", "]"),
    "start": ("([", "])"),
    "end": ("([", "])"),
    "choice": ("{{", "}}"),
    "task": ("[/", "/]"),
    "timer": ("(", ")"),
    "signal": (">", "]"),
    "child": ("[[", "]]"),
    "group": ("[", "]"),
}
_DOT_SHAPES: Final = {
    "step": "box",
    "start": "oval",
    "end": "oval",
    "choice": "hexagon",
    "task": "parallelogram",
    "timer": "box",
    "signal": "cds",
    "child": "box3d",
    "group": "box",
}
# fill, line
_COLOURS: Final = {
    "pending": ("#f6f7f9", "#8a94a3"),
    "running": ("#e3eeff", "#1f6fde"),
    "waiting": ("#fff3d6", "#b77900"),
    "done": ("#e2f5e6", "#23803a"),
    "failed": ("#fde4e3", "#c62828"),
    "skipped": ("#f6f7f9", "#b3bac4"),
    "cancelled": ("#eeeaf3", "#7b6a92"),
    "stalled": ("#ffe8da", "#c9540a"),
}


def render(graph: Graph, format: str = "svg") -> str | bytes:
    """The picture in one of FORMATS; bytes for png, else text."""
    match format:
        case "svg":
            return svg(graph)
        case "mermaid":
            return mermaid(graph)
        case "dot":
            return dot(graph)
        case "png":
            return png(graph)
    raise Unsupported(f"there is no picture format {format!r}; choose one of {', '.join(FORMATS)}")


def mermaid(graph: Graph) -> str:
    """A Mermaid flowchart."""
    nodes = complete(graph)
    ids = _ids(nodes)
    out = []
    if graph.title:
        out += ["---", f"title: {json.dumps(' '.join(graph.title.split()), ensure_ascii=False)}", "---"]
    out.append("flowchart TD")
    for node in nodes:
        left, right = _MERMAID_SHAPES[node.shape]
        text = _quoted(_caption(node))
        status = f":::{node.status}" if node.status in _COLOURS else ""
        out.append(f'    {ids[node.id]}{left}"{text}"{right}{status}')
    taken = []
    for index, edge in enumerate(graph.edges):
        arrow = "-.->" if edge.dashed else "-->"
        text = edge_text(edge)
        label = f'|"{_quoted(text)}"|' if text else ""
        out.append(f"    {ids[edge.source]} {arrow}{label} {ids[edge.target]}")
        if edge.taken:
            taken.append(str(index))
    if taken:
        out.append(f"    linkStyle {','.join(taken)} stroke:#23803a,stroke-width:2px")
    used = [status for status in _COLOURS if any(node.status == status for node in nodes)]
    for status in used:
        fill, line = _COLOURS[status]
        dashes = ",stroke-dasharray:5 4" if status == "pending" else ""
        out.append(f"    classDef {status} fill:{fill},stroke:{line},color:#1d2430{dashes}")
    return "\n".join(out) + "\n"


def _ids(nodes: list[Node]) -> dict[str, str]:
    """An id that Mermaid can read for each node: its own where that is one."""
    ids: dict[str, str] = {}
    used: set[str] = set()
    for index, node in enumerate(nodes):
        plain = bool(_PLAIN_ID.match(node.id)) and node.id.lower() not in _RESERVED
        name = node.id if plain else f"n{index}"
        while name in used:
            name += "_"
        used.add(name)
        ids[node.id] = name
    return ids


def _caption(node: Node) -> str:
    label = node.label or node.id
    return f"{label} ({node.badge})" if node.badge else label


def _quoted(text: str) -> str:
    """Text between Mermaid's quotes: markup and its own entity sign are spelled as entities."""
    text = "\n".join(" ".join(line.split()) for line in text.splitlines()).replace("#", "#35;")
    for char, name in (("&", "amp"), ('"', "quot"), ("<", "lt"), (">", "gt"), ("`", "96"), ("|", "124")):
        text = text.replace(char, f"#{name};")
    return text.replace("\n", "<br/>") or " "


def dot(graph: Graph) -> str:
    """The DOT language of Graphviz."""
    out = [
        f"digraph {_dot_text(graph.title or 'workflow')} {{",
        f"  graph [label={_dot_text(graph.title)}, labelloc=t, labeljust=l, rankdir=TB];",
        '  node [shape=box, style="rounded,filled", fillcolor="#ffffff", color="#8a94a3", fontname="Helvetica"];',
        '  edge [color="#8a94a3", fontname="Helvetica", fontsize=10];',
    ]
    for node in complete(graph):
        marks = [f"label={_dot_text(_caption(node))}", f"shape={_DOT_SHAPES[node.shape]}"]
        if node.status in _COLOURS:
            fill, line = _COLOURS[node.status]
            marks += [f'fillcolor="{fill}"', f'color="{line}"', f'tooltip="{node.status}"']
        out.append(f"  {_dot_text(node.id)} [{', '.join(marks)}];")
    for edge in graph.edges:
        out.append(f"  {_dot_text(edge.source)} -> {_dot_text(edge.target)}{_dot_marks(edge)};")
    return "\n".join([*out, "}", ""])


def _dot_marks(edge: Edge) -> str:
    marks = []
    if text := edge_text(edge):
        marks.append(f"label={_dot_text(text)}")
    if edge.dashed:
        marks.append("style=dashed")
    if edge.taken:
        marks.append('color="#23803a", penwidth=2')
    return f" [{', '.join(marks)}]" if marks else ""


def _dot_text(text: str) -> str:
    lines = [" ".join(line.split()).replace("\\", "\\\\").replace('"', '\\"') for line in text.splitlines()]
    return '"' + "\\n".join(lines) + '"'


def png(graph: Graph) -> bytes:
    """The SVG of a graph, rasterised at twice its size."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise Unsupported(
            "png needs a rasteriser: pip install 'treadle[graph]', or choose --format svg",
            code="EXTRA_MISSING",
        ) from error
    text = svg(graph)
    width, height = (float(size) for size in re.findall(r' (?:width|height)="([\d.]+)"', text)[:2])
    zoom = min(2.0, PNG_PIXELS_MAX / max(width, height))
    return bytes(svg_to_bytes(svg_string=text, width=max(1, round(width * zoom))))
