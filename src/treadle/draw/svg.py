"""A graph as one self-contained SVG: readable in light and dark, coloured by status, no scripts.

Colours are never the only sign: each status has a glyph too. The text's width is estimated, since
the reader's fonts are unknown; estimates are on the wide side. The output is deterministic.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from treadle.lang.graph import Edge, Graph, Node

from .layout import Box, EdgeRoute, Layout, Point, Size, arrange, complete

FONT: Final = 13.0
SMALL: Final = 11.0
LINE: Final = 17.0
LABEL_EM_MAX: Final = 15.0
EDGE_EM_MAX: Final = 20.0
LOOP_EM_MAX: Final = 11.0
LINES_MAX: Final = 3
# Characters that a reader of XML 1.0 refuses.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# status: (fill, line, ink) in light, then in dark.
_COLOURS: Final[dict[str, tuple[str, str, str, str, str, str]]] = {
    "idle": ("#ffffff", "#8a94a3", "#1d2430", "#1c222c", "#667180", "#e4e8ee"),
    "pending": ("#f6f7f9", "#8a94a3", "#1d2430", "#1c222c", "#7c8796", "#e4e8ee"),
    "running": ("#e3eeff", "#1f6fde", "#0b2f66", "#12294d", "#5c9dff", "#dbe9ff"),
    "waiting": ("#fff3d6", "#b77900", "#4d3300", "#3a2c0b", "#e0a63a", "#ffedc7"),
    "done": ("#e2f5e6", "#23803a", "#0d3d19", "#12321b", "#4fb56b", "#d8f5df"),
    "failed": ("#fde4e3", "#c62828", "#5c0f0f", "#40171a", "#ff6b66", "#ffdedc"),
    "skipped": ("#f6f7f9", "#b3bac4", "#6a7480", "#1c222c", "#4a5361", "#98a2af"),
    "cancelled": ("#eeeaf3", "#7b6a92", "#3a2f4a", "#2a2435", "#9c8cb5", "#e3daf0"),
    "stalled": ("#ffe8da", "#c9540a", "#572200", "#42230f", "#ff934d", "#ffe3d1"),
}
# Drawn in a circle of radius 8 around the origin, stroked, not filled.
_GLYPHS: Final = {
    "running": "M-2.5 -3.5 L3.5 0 L-2.5 3.5 Z",
    "waiting": "M-2 -3.5 V3.5 M2 -3.5 V3.5",
    "done": "M-3.6 0.2 L-1 3 L3.8 -2.8",
    "failed": "M-3 -3 L3 3 M3 -3 L-3 3",
    "stalled": "M0 -4 V1 M0 3.6 V3.7",
    "cancelled": "M-3.5 0 H3.5",
    "skipped": "M-3.5 -3 L0 0 L-3.5 3 M0.5 -3 L4 0 L0.5 3",
    "pending": "M-3.2 0 H-3.1 M0 0 H0.1 M3.2 0 H3.3",
}
# Drawn in a square of 16 at the left of the label.
_ICONS: Final = {
    "task": "M8 8 m-3 -3.5 a3 3 0 1 0 6 0 a3 3 0 1 0 -6 0 M2.5 14.5 c0 -7 11 -7 11 0",
    "timer": "M8 8 m-6 0 a6 6 0 1 0 12 0 a6 6 0 1 0 -12 0 M8 4.5 V8 L10.5 9.8",
    "signal": "M9.5 1.5 L3.5 9 H8 L6.5 14.5 L12.5 7 H8 Z",
    "child": "M2.5 2.5 h8 v8 h-8 Z M5.5 13.5 h8 v-8",
    "group": "M2.5 5 h11 M2.5 8.5 h11 M2.5 12 h11",
}


def svg(graph: Graph) -> str:
    """The picture of a graph as SVG text."""
    nodes, edges = complete(graph), graph.edges
    texts = {node.id: wrap(node.label or node.id, LABEL_EM_MAX) for node in nodes}
    notes = [_note(edge) for edge in edges]
    sizes = {node.id: _node_size(node, texts[node.id]) for node in nodes}
    layout = arrange(nodes, edges, sizes, [_note_size(note) for note in notes])
    title = _clean(graph.title)
    head = _width(title) * 15 + 48 if title else 0
    width, top = max(layout.width, head), 34.0 if title else 0.0
    height = layout.height + top
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" role="img" aria-label={quoteattr(title or "workflow")}>',
        f"<title>{escape(title)}</title>",
        f"<style>{_style({node.status for node in nodes})}</style>",
        "<defs>",
        *(_marker(name) for name in ("way", "taken")),
        "</defs>",
        f'<rect class="paper" width="{_n(width)}" height="{_n(height)}"/>',
    ]
    if title:
        out.append(f'<text class="title" x="24" y="32">{escape(title)}</text>')
    out.append(f'<g transform="translate({_n((width - layout.width) / 2)} {_n(top)})">')
    out += [_edge(edge, route) for edge, route in zip(edges, layout.routes, strict=True)]
    out += [_node(node, layout.boxes[node.id], texts[node.id]) for node in nodes]
    out += _notes(layout, edges, notes)
    out += ["</g>", "</svg>", ""]
    return "\n".join(out)


def _note(edge: Edge) -> list[str]:
    text = edge_text(edge)
    return wrap(text, LOOP_EM_MAX if edge.source == edge.target else EDGE_EM_MAX) if text else []


def edge_text(edge: Edge) -> str:
    """`when · max 3x · taken 2x`: what stands at an edge."""
    # A single passage of an edge without a label shows in its colour; the words would be noise.
    taken = f"taken {edge.taken}x" if edge.taken > 1 or (edge.taken and edge.label) else ""
    if taken and taken in edge.label:
        taken = ""
    return _clean(" · ".join(part for part in (edge.label, taken) if part))


# --- text ---------------------------------------------------------------------------------------


def _clean(text: str) -> str:
    return " ".join(_NOT_XML.sub("\ufffd", text).split())


def _width(text: str) -> float:
    """In em."""
    return sum(_em(char) for char in text)


def _em(char: str) -> float:
    if char in " .,:;|!'`ijl()[]{}/\\tfrI-":
        return 0.4
    if char in "mwMW@%&—…":
        return 0.98
    if unicodedata.east_asian_width(char) in "WF":
        return 1.05
    if unicodedata.combining(char):
        return 0.0
    return 0.72 if char.isupper() else 0.63


def wrap(text: str, limit: float) -> list[str]:
    """Lines of at most `limit` em, at most three of them, cut with an ellipsis. A line break in
    the text is one in the picture."""
    lines: list[str] = []
    for part in text.splitlines() or [""]:
        lines.append("")
        pieces = [piece for word in _clean(part).split(" ") for piece in _pieces(word, limit)]
        for word in pieces:
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and _width(longer) > limit:
                lines.append(word)
            else:
                lines[-1] = longer
    if len(lines) > LINES_MAX:
        lines = lines[:LINES_MAX]
        while lines[-1] and _width(lines[-1]) > limit - 1:
            lines[-1] = lines[-1][:-1]
        lines[-1] = lines[-1].rstrip() + "…"
    return lines


def _pieces(word: str, limit: float) -> Iterator[str]:
    """A word longer than a line is broken, preferably after a separator."""
    while _width(word) > limit:
        cut, total = 0, 0.0
        while cut < len(word) and total + _em(word[cut]) <= limit:
            total += _em(word[cut])
            cut += 1
        soft = max((word.rfind(mark, 1, cut) + 1 for mark in "_-./:@"), default=0)
        cut = soft if soft > cut // 2 else max(cut, 1)
        yield word[:cut]
        word = word[cut:]
    yield word


# --- sizes --------------------------------------------------------------------------------------


def _node_size(node: Node, lines: list[str]) -> Size:
    text = max(_width(line) for line in lines) * FONT
    icon = 22.0 if node.shape in _ICONS else 0.0
    width, height = max(text + icon + 32, 64.0), len(lines) * LINE + 20
    if node.shape == "choice":
        width += 28
    if node.badge:
        # Left of the middle, where edges leave.
        width = max(width, 2 * (_width(_clean(node.badge)) * SMALL + 12) + 36)
    return width, height


def _note_size(lines: list[str]) -> Size:
    if not lines:
        return 0.0, 0.0
    return max(_width(line) for line in lines) * SMALL + 10, len(lines) * 14.0 + 4


# --- pieces of the picture ----------------------------------------------------------------------


def _style(statuses: set[str]) -> str:
    light: list[str] = []
    dark: list[str] = []
    for status, (fill, line, ink, *night) in _COLOURS.items():
        if status in statuses or status == "idle":
            for rules, colours in ((light, (fill, line, ink)), (dark, tuple(night))):
                rules.append(
                    f".{status} .box{{fill:{colours[0]};stroke:{colours[1]}}}"
                    f".{status} .ink{{fill:{colours[2]}}}.{status} .icon{{stroke:{colours[2]}}}"
                    f".{status} .dot{{fill:{colours[1]}}}"
                )
    return (
        "text{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;"
        f"font-size:{_n(FONT)}px}}"
        ".paper{fill:#fbfcfd}.title{font-size:15px;font-weight:600;fill:#1d2430}"
        ".box{stroke-width:1.5}.pending .box,.group .box{stroke-dasharray:5 4}.inner{fill:none}"
        ".ink{text-anchor:middle}.icon{fill:none;stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}"
        ".sign{fill:none;stroke:#fff;stroke-width:1.7;stroke-linecap:round;stroke-linejoin:round}"
        ".badge{fill:#fff;stroke-width:1}.remark{font-size:11px;text-anchor:middle}"
        ".way{fill:none;stroke:#8a94a3;stroke-width:1.4}.taken{fill:none;stroke:#23803a;stroke-width:2.2}"
        ".dashed{stroke-dasharray:5 4}.tip-way{fill:#8a94a3}.tip-taken{fill:#23803a}"
        ".note{font-size:11px;text-anchor:middle;fill:#4a5361}.patch{fill:#fbfcfd}"
        + "".join(light)
        + "@media (prefers-color-scheme:dark){"
        ".paper,.patch{fill:#12161d}.title{fill:#e4e8ee}.note{fill:#b3bdca}.badge{fill:#12161d}"
        ".sign{stroke:#12161d}"
        ".way{stroke:#667180}.taken{stroke:#4fb56b}.tip-way{fill:#667180}.tip-taken{fill:#4fb56b}"
        + "".join(dark)
        + "}"
    )


def _marker(name: str) -> str:
    return (
        f'<marker id="tip-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip-{name}" d="M0 0.8 L10 5 L0 9.2 Z"/></marker>'
    )


def _edge(edge: Edge, route: EdgeRoute) -> str:
    name = "taken" if edge.taken else "way"
    dashed = " dashed" if edge.dashed else ""
    return f'<path class="{name}{dashed}" d="{_way(route)}" marker-end="url(#tip-{name})"/>'


def _way(route: EdgeRoute) -> str:
    points = route.points
    if route.loop:
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = points
        return f"M{_p((x0, y0))} C{_p((x1, y1 - 6))} {_p((x2, y2 + 6))} {_p((x3, y3))}"
    out = [f"M{_p(points[0])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x0 - x1) < 0.05:
            if abs(y0 - y1) > 0.05:
                out.append(f"L{_p((x1, y1))}")
        else:
            middle = (y0 + y1) / 2
            out.append(f"C{_p((x0, middle))} {_p((x1, middle))} {_p((x1, y1))}")
    return " ".join(out)


def _node(node: Node, box: Box, lines: list[str]) -> str:
    left, right = box.x - box.width / 2, box.x + box.width / 2
    out = [f'<g class="{node.status} {node.shape}">']
    out.append(
        f"<title>{escape(_clean(' — '.join(p for p in (node.label or node.id, node.status, node.badge) if p)))}</title>"
    )
    out.append(_outline(node, box))
    shift = 0.0
    if icon := _ICONS.get(node.shape):
        shift = 11.0
        widest = max(_width(line) for line in lines) * FONT
        out.append(
            f'<path class="icon" transform="translate({_n(box.x - widest / 2 - 12)} {_n(box.y - 8)})" d="{icon}"/>'
        )
    first = box.y - (len(lines) - 1) * LINE / 2 + FONT * 0.36
    for index, line in enumerate(lines):
        out.append(
            f'<text class="ink" x="{_n(box.x + shift)}" y="{_n(first + index * LINE)}">{escape(line)}</text>'
        )
    if glyph := _GLYPHS.get(node.status):
        out.append(
            f'<g transform="translate({_n(right - 4)} {_n(box.top + 2)})"><circle class="dot" r="8"/>'
            f'<path class="sign" d="{glyph}"/></g>'
        )
    if badge := _clean(node.badge):
        wide = _width(badge) * SMALL + 12
        out.append(
            f'<rect class="box badge" x="{_n(left - 2)}" y="{_n(box.bottom - 8)}" width="{_n(wide)}" height="16" rx="8"/>'
            f'<text class="ink remark" x="{_n(left - 2 + wide / 2)}" y="{_n(box.bottom + 4)}">{escape(badge)}</text>'
        )
    out.append("</g>")
    return "".join(out)


def _outline(node: Node, box: Box) -> str:
    left, top = box.x - box.width / 2, box.top
    rect = f'x="{_n(left)}" y="{_n(top)}" width="{_n(box.width)}" height="{_n(box.height)}"'
    if node.shape == "choice":
        cut = 16.0
        right, middle = left + box.width, box.y
        corners = [
            (left, middle), (left + cut, top), (right - cut, top),
            (right, middle), (right - cut, box.bottom), (left + cut, box.bottom),
        ]  # fmt: skip
        return f'<polygon class="box" points="{" ".join(_p(corner) for corner in corners)}"/>'
    radius = box.height / 2 if node.shape in ("start", "end") else 4.0 if node.shape == "child" else 9.0
    out = f'<rect class="box" {rect} rx="{_n(radius)}"/>'
    if node.shape in ("end", "child"):
        inner = f'x="{_n(left + 3.5)}" y="{_n(top + 3.5)}" width="{_n(box.width - 7)}" height="{_n(box.height - 7)}"'
        out += f'<rect class="box inner" {inner} rx="{_n(max(radius - 3.5, 2))}"/>'
    return out


def _notes(layout: Layout, edges: list[Edge], notes: list[list[str]]) -> Iterator[str]:
    for edge, route, lines in zip(edges, layout.routes, notes, strict=True):
        if route.label is None or not lines:
            continue
        x, y = route.label
        width, height = _note_size(lines)
        out = [
            f'<g><title>{escape(edge_text(edge))}</title><rect class="patch" x="{_n(x - width / 2)}" '
            f'y="{_n(y - height / 2)}" width="{_n(width)}" height="{_n(height)}" rx="4"/>'
        ]
        first = y - (len(lines) - 1) * 7 + 4
        for index, line in enumerate(lines):
            out.append(f'<text class="note" x="{_n(x)}" y="{_n(first + index * 14)}">{escape(line)}</text>')
        yield "".join([*out, "</g>"])


def _n(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _p(point: Point) -> str:
    return f"{_n(point[0])},{_n(point[1])}"
