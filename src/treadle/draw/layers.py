"""The layered part of a layout: which layer each vertex is in, its order there, its x.

The steps are those of Sugiyama: layers by longest path, a bend in every layer that an edge passes, orders that
make few crossings (each layer sorted by the means of its neighbours, down and up, the best kept), and places that
are as near to their neighbours as their order allows. The last is a least-squares fit under an order, solved
exactly by pooling neighbours that collide. Everything is deterministic: ties keep the order that was given.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

ORDER_SWEEPS: Final = 12
PLACE_SWEEPS: Final = 24
# A bend wants to stand in line with its neighbours more than a node does: long edges stay straight.
BEND_WEIGHT: Final = 6.0


@dataclass(slots=True, eq=False)
class Vertex:
    """A node, the middle of an edge (`edge` is its index), or both none: a bend of a long edge."""

    width: float
    height: float
    node: str | None = None
    edge: int | None = None
    rank: int = 0
    x: float = 0.0
    y: float = 0.0
    # What a self loop adds on the right. As much is kept free on the left, so that the node stays
    # in the middle of its place and edges to it stay straight.
    extra: float = 0.0
    above: list[Vertex] = field(default_factory=list, repr=False)
    below: list[Vertex] = field(default_factory=list, repr=False)
    place: int = 0
    part: int = 0

    @property
    def span(self) -> float:
        return self.width + 2 * self.extra


def arranged(vertices: list[Vertex], ways: Sequence[list[Vertex]], gap: float) -> None:
    """Sets rank and x of all vertices, and puts bends into the ways, which all lead downwards."""
    _rank(vertices, ways)
    everything = [*vertices, *_bend(ways)]
    for way in ways:
        for upper, lower in pairwise(way):
            upper.below.append(lower)
            lower.above.append(upper)
    _parts(everything)
    layers: list[list[Vertex]] = [[] for _ in range(max((v.rank for v in everything), default=-1) + 1)]
    for vertex in everything:
        layers[vertex.rank].append(vertex)
    _order(layers)
    _place(layers, gap)


def bends(vertices: list[Vertex], ways: Sequence[list[Vertex]]) -> int:
    """How many bends there will be; nothing is changed but the ranks."""
    _rank(vertices, ways)
    return sum(lower.rank - upper.rank - 1 for way in ways for upper, lower in pairwise(way))


def _rank(vertices: list[Vertex], ways: Sequence[list[Vertex]]) -> None:
    """By longest path from above; what nothing leads to moves down to what it leads to."""
    out: dict[int, list[Vertex]] = {id(vertex): [] for vertex in vertices}
    missing = {id(vertex): 0 for vertex in vertices}
    for way in ways:
        for upper, lower in pairwise(way):
            out[id(upper)].append(lower)
            missing[id(lower)] += 1
    for vertex in vertices:
        vertex.rank = 0
    roots = [vertex for vertex in vertices if not missing[id(vertex)]]
    ready = list(roots)
    for vertex in ready:  # grows while it is walked
        for lower in out[id(vertex)]:
            lower.rank = max(lower.rank, vertex.rank + 1)
            missing[id(lower)] -= 1
            if not missing[id(lower)]:
                ready.append(lower)
    for vertex in roots:
        if out[id(vertex)]:
            vertex.rank = min(lower.rank for lower in out[id(vertex)]) - 1


def _bend(ways: Sequence[list[Vertex]]) -> list[Vertex]:
    made: list[Vertex] = []
    for way in ways:
        longer = way[:1]
        for upper, lower in pairwise(way):
            passed = [Vertex(8.0, 0.0, rank=rank) for rank in range(upper.rank + 1, lower.rank)]
            made += passed
            longer += [*passed, lower]
        way[:] = longer
    return made


def _parts(everything: list[Vertex]) -> None:
    """Numbers what hangs together; parts stand side by side and are never mixed."""
    seen: set[int] = set()
    part = 0
    for root in everything:
        if id(root) in seen:
            continue
        queue = [root]
        seen.add(id(root))
        for vertex in queue:  # grows while it is walked
            vertex.part = part
            for near in (*vertex.below, *vertex.above):
                if id(near) not in seen:
                    seen.add(id(near))
                    queue.append(near)
        part += 1


def _order(layers: list[list[Vertex]]) -> None:
    best: list[list[Vertex]] = []
    fewest = -1
    for layer in layers:
        _settle(layer, lambda vertex: vertex.part)
    for sweep in range(ORDER_SWEEPS):
        if sweep:
            down = sweep % 2 == 1
            for layer in layers if down else reversed(layers):
                _settle(layer, _mean_above if down else _mean_below)
        crossings = sum(_crossings(layer) for layer in layers)
        if fewest < 0 or crossings < fewest:
            fewest, best = crossings, [list(layer) for layer in layers]
        if not fewest:
            break
    for layer, kept in zip(layers, best, strict=True):
        layer[:] = kept


def _settle(layer: list[Vertex], key: Callable[[Vertex], float]) -> None:
    layer.sort(key=lambda vertex: (vertex.part, key(vertex)))
    for place, vertex in enumerate(layer):
        vertex.place = place


def _mean_above(vertex: Vertex) -> float:
    return sum(v.place for v in vertex.above) / len(vertex.above) if vertex.above else float(vertex.place)


def _mean_below(vertex: Vertex) -> float:
    return sum(v.place for v in vertex.below) / len(vertex.below) if vertex.below else float(vertex.place)


def _crossings(layer: list[Vertex]) -> int:
    """How often edges from this layer to the next cross one another."""
    found: list[int] = []
    count = 0
    for vertex in layer:
        ends = sorted(lower.place for lower in vertex.below)
        count += sum(len(found) - bisect_right(found, end) for end in ends)
        for end in ends:
            insort(found, end)
    return count


def _place(layers: list[list[Vertex]], gap: float) -> None:
    for layer in layers:
        x = 0.0
        for vertex in layer:
            vertex.x = x + vertex.span / 2
            x += vertex.span + gap
    for sweep in range(PLACE_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            _fit(layer, gap, lambda v, down=down: v.above if down else v.below)  # type: ignore[misc]  # mypy cannot type a lambda with a default
    for layer in layers:
        _fit(layer, gap, lambda v: [*v.above, *v.below])


def _fit(layer: list[Vertex], gap: float, near: Callable[[Vertex], list[Vertex]]) -> None:
    """Each vertex as near as can be to the mean of its neighbours, in the order of the layer."""
    # Blocks of vertices that touch: their weight, and the sum of where they want to be, less their own offsets.
    blocks: list[tuple[float, float, list[tuple[Vertex, float]]]] = []
    offset, before = 0.0, None
    for vertex in layer:
        if before is not None:
            offset += (before.span + vertex.span) / 2 + gap
        before = vertex
        found = near(vertex)
        wanted = sum(v.x for v in found) / len(found) if found else vertex.x
        weight = 0.01 if not found else BEND_WEIGHT if vertex.node is None else 1.0
        blocks.append((weight, weight * (wanted - offset), [(vertex, offset)]))
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][0] > blocks[-1][1] / blocks[-1][0]:
            last, earlier = blocks.pop(), blocks.pop()
            blocks.append((earlier[0] + last[0], earlier[1] + last[1], earlier[2] + last[2]))
    for weight, total, members in blocks:
        for vertex, own in members:
            vertex.x = total / weight + own
