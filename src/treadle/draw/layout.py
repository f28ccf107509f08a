"""Where everything in a picture goes: boxes for nodes, routes for edges, places for labels.

A layered (Sugiyama) layout. Cycles are cut deterministically here, and every edge that has a label,
a twin or points backwards gets a vertex of its own in the layered graph, so labels have reserved room and
can never lie on a node. `layers` then chooses the order and the x of all vertices. For a graph of many
thousand nodes a plain layered placement does: linear time, straight edges. Equal graphs give equal layouts.

Edges run vertically through the band of a layer and bend only between bands; so none runs
through a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from treadle.lang.graph import Edge, Graph, Node

from . import layers
from .layers import Vertex

Point = tuple[float, float]
Size = tuple[float, float]

# Above this many vertices, bends of long edges included, nobody sees the edges, and it takes seconds.
VERTICES_MAX: Final = 8000
GAP_X: Final = 30.0
GAP_Y: Final = 36.0
MARGIN: Final = 24.0
LOOP_WIDTH: Final = 30.0
# A layer of the plain placement is broken into rows of this many nodes.
ROW_MAX: Final = 60


@dataclass(slots=True)
class Box:
    """Centre and size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


@dataclass(slots=True)
class EdgeRoute:
    """The way of one edge: points to pass, from source to target. Between two points with the same
    x the way is straight, otherwise it bends. `label` is the centre of its label."""

    points: list[Point] = field(default_factory=list)
    label: Point | None = None
    loop: bool = False


@dataclass(slots=True)
class Layout:
    width: float
    height: float
    boxes: dict[str, Box]
    routes: list[EdgeRoute]


@dataclass(slots=True)
class _Chain:
    """One edge as it runs through the layered graph: downwards, whatever its own direction."""

    vertices: list[Vertex]
    reversed: bool


def complete(graph: Graph) -> list[Node]:
    """The nodes of a graph, each id once, with one for every edge end that is not among them, and
    without an end that nothing leads to."""
    linked = {end for edge in graph.edges for end in (edge.source, edge.target)}
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        if node.shape != "end" or node.id in linked or not linked:
            nodes.setdefault(node.id, node)
    for edge in graph.edges:
        for end in (edge.source, edge.target):
            nodes.setdefault(end, Node(end, end))
    return list(nodes.values())


def arrange(
    nodes: Sequence[Node], edges: Sequence[Edge], sizes: dict[str, Size], labels: Sequence[Size]
) -> Layout:
    """`sizes` are those of the nodes by id, `labels` those of the edges' labels (0, 0: none)."""
    vertices = {node.id: Vertex(*sizes[node.id], node=node.id) for node in nodes}
    for index, edge in enumerate(edges):
        if edge.source == edge.target:
            vertices[edge.source].extra += LOOP_WIDTH + labels[index][0]
    back = _back_edges(nodes, edges)
    chains = _chains(vertices, edges, labels, back)
    everything = [*vertices.values(), *(v for c in chains.values() for v in c.vertices if v.node is None)]
    ways = [chain.vertices for chain in chains.values()]
    if len(everything) + layers.bends(everything, ways) > VERTICES_MAX:
        return _plain(nodes, edges, vertices, labels, back)
    layers.arranged(everything, ways, GAP_X)
    bands = _bands(everything, chains)
    return _finish(vertices, edges, labels, chains, bands)


def _back_edges(nodes: Sequence[Node], edges: Sequence[Edge]) -> set[int]:
    """Indices of edges that close a cycle, by a depth-first walk from the starts, in given order."""
    out: dict[str, list[int]] = {node.id: [] for node in nodes}
    entered = {edge.target for edge in edges if edge.source != edge.target}
    for index, edge in enumerate(edges):
        if edge.source != edge.target:
            out[edge.source].append(index)
    first = [node.id for node in nodes if node.shape == "start"]
    first += [node.id for node in nodes if node.id not in entered]
    back: set[int] = set()
    active: set[str] = set()
    seen: set[str] = set()
    for root in [*first, *(node.id for node in nodes)]:
        if root in seen:
            continue
        seen.add(root)
        active.add(root)
        stack = [(root, iter(out[root]))]
        while stack:
            here, ways = stack[-1]
            for index in ways:
                target = edges[index].target
                if target in active:
                    back.add(index)
                elif target not in seen:
                    seen.add(target)
                    active.add(target)
                    stack.append((target, iter(out[target])))
                    break
            else:
                active.discard(here)
                stack.pop()
    return back


def _chains(
    vertices: dict[str, Vertex], edges: Sequence[Edge], labels: Sequence[Size], back: set[int]
) -> dict[int, _Chain]:
    twins: dict[frozenset[str], int] = {}
    for edge in edges:
        pair = frozenset((edge.source, edge.target))
        twins[pair] = twins.get(pair, 0) + 1
    chains = {}
    for index, edge in enumerate(edges):
        if edge.source == edge.target:
            continue
        ends = (edge.target, edge.source) if index in back else (edge.source, edge.target)
        way = [vertices[ends[0]], vertices[ends[1]]]
        width, height = labels[index]
        if width or index in back or twins[frozenset(ends)] > 1:
            way.insert(1, Vertex(width or 8.0, height, edge=index))
        chains[index] = _Chain(way, index in back)
    return chains


def _bands(everything: list[Vertex], chains: dict[int, _Chain]) -> list[tuple[float, float]]:
    """Top and bottom of each layer; sets every vertex's y."""
    placed = [*everything, *(v for c in chains.values() for v in c.vertices)]
    heights = [0.0] * (max(vertex.rank for vertex in placed) + 1) if placed else []
    for vertex in placed:
        heights[vertex.rank] = max(heights[vertex.rank], vertex.height)
    bands = []
    top = 0.0
    for height in heights:
        bands.append((top, top + height))
        top += height + GAP_Y
    for vertex in placed:
        low, high = bands[vertex.rank]
        vertex.y = (low + high) / 2
    return bands


def _finish(
    vertices: dict[str, Vertex],
    edges: Sequence[Edge],
    labels: Sequence[Size],
    chains: dict[int, _Chain],
    bands: list[tuple[float, float]],
) -> Layout:
    boxes = {name: Box(vertex.x, vertex.y, vertex.width, vertex.height) for name, vertex in vertices.items()}
    exits = _ports(chains, boxes, top=False)
    entries = _ports(chains, boxes, top=True)
    routes = []
    for index in range(len(edges)):
        if index not in chains:
            routes.append(EdgeRoute())
            continue
        chain = chains[index]
        upper, lower = chain.vertices[0], chain.vertices[-1]
        points: list[Point] = [
            (exits[index], boxes[upper.node or ""].bottom),
            (exits[index], bands[upper.rank][1]),
        ]
        label = None
        for vertex in chain.vertices[1:-1]:
            points += [(vertex.x, bands[vertex.rank][0]), (vertex.x, bands[vertex.rank][1])]
            if vertex.edge is not None and labels[index][0]:
                label = (vertex.x, vertex.y)
        points += [(entries[index], bands[lower.rank][0]), (entries[index], boxes[lower.node or ""].top)]
        routes.append(EdgeRoute(points[::-1] if chain.reversed else points, label))
    _loops(routes, edges, labels, boxes)
    return _framed(boxes, routes, edges, labels)


def _ports(chains: dict[int, _Chain], boxes: dict[str, Box], *, top: bool) -> dict[int, float]:
    """The x at which each edge meets its node: spread over the side, in the order they leave."""
    sides: dict[str, list[tuple[float, int]]] = {}
    for index, chain in chains.items():
        node, beside = (
            (chain.vertices[-1], chain.vertices[-2]) if top else (chain.vertices[0], chain.vertices[1])
        )
        x = boxes[beside.node].x if beside.node is not None else beside.x
        sides.setdefault(node.node or "", []).append((x, index))
    ports = {}
    for name, side in sides.items():
        box = boxes[name]
        step = min(22.0, box.width * 0.7 / max(1, len(side) - 1))
        for place, (_, index) in enumerate(sorted(side)):
            ports[index] = box.x + (place - (len(side) - 1) / 2) * step
    return ports


def _loops(
    routes: list[EdgeRoute], edges: Sequence[Edge], labels: Sequence[Size], boxes: dict[str, Box]
) -> None:
    reach: dict[str, float] = {}
    for index, edge in enumerate(edges):
        if edge.source != edge.target:
            continue
        box = boxes[edge.source]
        right = box.x + box.width / 2
        out = reach.get(edge.source, 0.0) + LOOP_WIDTH - 8
        half = min(box.height * 0.3, 14.0)
        routes[index] = EdgeRoute(
            [
                (right, box.y - half),
                (right + out, box.y - half),
                (right + out, box.y + half),
                (right, box.y + half),
            ],
            (right + out + labels[index][0] / 2, box.y) if labels[index][0] else None,
            loop=True,
        )
        reach[edge.source] = out + labels[index][0] + 8


def _framed(
    boxes: dict[str, Box], routes: list[EdgeRoute], edges: Sequence[Edge], labels: Sequence[Size]
) -> Layout:
    """Moves everything so that the picture starts at the margin, and measures it."""
    xs = [box.x + side * box.width / 2 for box in boxes.values() for side in (-1, 1)]
    ys = [end for box in boxes.values() for end in (box.top, box.bottom)]
    for route, (width, height) in zip(routes, labels, strict=True):
        xs += [x for x, _ in route.points]
        ys += [y for _, y in route.points]
        if route.label is not None:
            xs += [route.label[0] - width / 2, route.label[0] + width / 2]
            ys += [route.label[1] - height / 2, route.label[1] + height / 2]
    if not xs:
        return Layout(2 * MARGIN, 2 * MARGIN, boxes, routes)
    dx, dy = MARGIN - min(xs), MARGIN - min(ys)
    for box in boxes.values():
        box.x, box.y = box.x + dx, box.y + dy
    for route in routes:
        route.points = [(x + dx, y + dy) for x, y in route.points]
        if route.label is not None:
            route.label = (route.label[0] + dx, route.label[1] + dy)
    return Layout(max(xs) + dx + MARGIN, max(ys) + dy + MARGIN, boxes, routes)


# --- the plain placement ------------------------------------------------------------------------


def _plain(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    vertices: dict[str, Vertex],
    labels: Sequence[Size],
    back: set[int],
) -> Layout:
    """Layers by longest path, each ordered once by the places of its predecessors."""
    down = [
        (edge.target, edge.source) if index in back else (edge.source, edge.target)
        for index, edge in enumerate(edges)
        if edge.source != edge.target
    ]
    ranks = _longest_paths([node.id for node in nodes], down)
    before: dict[str, list[str]] = {node.id: [] for node in nodes}
    for source, target in down:
        before[target].append(source)
    rows: list[list[str]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for node in nodes:
        rows[ranks[node.id]].append(node.id)
    boxes: dict[str, Box] = {}
    y = 0.0
    for layer in rows:
        layer.sort(key=lambda name: _mean(boxes[b].x for b in before[name] if b in boxes))
        for start in range(0, len(layer), ROW_MAX):
            y = _row([vertices[name] for name in layer[start : start + ROW_MAX]], y, boxes)
        y += GAP_Y
    routes = []
    for index, edge in enumerate(edges):
        origin, goal = boxes[edge.source], boxes[edge.target]
        if edge.source == edge.target:
            routes.append(EdgeRoute())
            continue
        ends = [(origin.x, origin.bottom), (goal.x, goal.top)]
        if index in back:
            ends = [(origin.x, origin.top), (goal.x, goal.bottom)]
        middle = ((ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2)
        routes.append(EdgeRoute(ends, middle if labels[index][0] else None))
    _loops(routes, edges, labels, boxes)
    return _framed(boxes, routes, edges, labels)


def _row(row: list[Vertex], y: float, boxes: dict[str, Box]) -> float:
    width = sum(vertex.width + vertex.extra for vertex in row) + GAP_X * (len(row) - 1)
    height = max(vertex.height for vertex in row)
    x = -width / 2
    for vertex in row:
        boxes[vertex.node or ""] = Box(x + vertex.width / 2, y + height / 2, vertex.width, vertex.height)
        x += vertex.width + vertex.extra + GAP_X
    return y + height + GAP_Y


def _longest_paths(names: list[str], down: list[tuple[str, str]]) -> dict[str, int]:
    out: dict[str, list[str]] = {name: [] for name in names}
    missing = dict.fromkeys(names, 0)
    for source, target in down:
        out[source].append(target)
        missing[target] += 1
    ranks = dict.fromkeys(names, 0)
    ready = [name for name in names if not missing[name]]
    for name in ready:  # grows while it is walked
        for target in out[name]:
            ranks[target] = max(ranks[target], ranks[name] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return ranks


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
