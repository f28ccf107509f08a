"""Pictures: nothing overlaps, everything is escaped, equal graphs give equal pictures."""

from __future__ import annotations

import sys
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.draw.formats import dot, mermaid, render
from treadle.draw.layout import Box, Layout, arrange
from treadle.draw.svg import edge_text, svg, wrap
from treadle.kernel.errors import Unsupported
from treadle.lang.graph import Edge, Graph, Node

NS = "{http://www.w3.org/2000/svg}"

LOOPED = Graph(
    "order",
    [
        Node("a", "a", "start"),
        Node("b", "b", "choice"),
        Node("c", "c", "task", "waiting", "due 14:00"),
        Node("d", "d", "end"),
    ],
    [
        Edge("a", "b"),
        Edge("b", "c", "large"),
        Edge("b", "c", "small", dashed=True),
        Edge("c", "b", "rework · max 3x", taken=2),
        Edge("c", "c", "again"),
        Edge("b", "d"),
        Edge("c", "d"),
    ],
)


def laid_out(graph: Graph) -> Layout:
    sizes = {node.id: (80.0, 40.0) for node in graph.nodes}
    labels = [(60.0, 18.0) if edge.label else (0.0, 0.0) for edge in graph.edges]
    return arrange(graph.nodes, graph.edges, sizes, labels)


def overlap(one: Box, other: Box) -> bool:
    return (
        abs(one.x - other.x) < (one.width + other.width) / 2 - 0.01
        and abs(one.y - other.y) < (one.height + other.height) / 2 - 0.01
    )


def label_boxes(layout: Layout) -> list[Box]:
    return [Box(*route.label, 60.0, 18.0) for route in layout.routes if route.label is not None]


def check_nothing_overlaps(layout: Layout) -> None:
    boxes = [*layout.boxes.values(), *label_boxes(layout)]
    for one, other in combinations(boxes, 2):
        assert not overlap(one, other), (one, other)
    for box in boxes:
        assert box.x - box.width / 2 >= 0
        assert box.x + box.width / 2 <= layout.width
        assert box.top >= 0
        assert box.bottom <= layout.height


def test_nodes_and_labels_never_overlap() -> None:
    layout = laid_out(LOOPED)
    assert len(label_boxes(layout)) == 4
    check_nothing_overlaps(layout)


graphs = st.integers(1, 9).flatmap(
    lambda count: st.lists(
        st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.booleans()), max_size=14
    ).map(
        lambda ends: Graph(
            "g",
            [Node(f"n{i}", f"n{i}") for i in range(count)],
            [Edge(f"n{a}", f"n{b}", "label" if labelled else "") for a, b, labelled in ends],
        )
    )
)


@settings(max_examples=60, deadline=None)
@given(graphs)
def test_any_graph_is_laid_out_without_overlap_and_edges_meet_their_nodes(graph: Graph) -> None:
    layout = laid_out(graph)
    check_nothing_overlaps(layout)
    for edge, route in zip(graph.edges, layout.routes, strict=True):
        for (x, y), name in ((route.points[0], edge.source), (route.points[-1], edge.target)):
            box = layout.boxes[name]
            assert abs(x - box.x) <= box.width / 2 + 0.01
            assert abs(y - box.y) <= box.height / 2 + 0.01


def test_edges_point_down_and_back_edges_up() -> None:
    layout = laid_out(LOOPED)
    assert layout.boxes["a"].y < layout.boxes["b"].y < layout.boxes["c"].y < layout.boxes["d"].y
    back = layout.routes[3].points
    assert back[0][1] > back[-1][1]
    forward = layout.routes[1].points
    assert forward[0][1] < forward[-1][1]


def test_parallel_edges_take_different_ways() -> None:
    layout = laid_out(LOOPED)
    assert layout.routes[1].points != layout.routes[2].points
    assert layout.routes[1].label != layout.routes[2].label


def test_a_self_loop_stays_beside_its_node() -> None:
    layout = laid_out(LOOPED)
    loop, box = layout.routes[4], layout.boxes["c"]
    assert loop.loop
    assert all(x >= box.x + box.width / 2 - 0.01 for x, _ in loop.points)


def test_svg_is_xml_with_every_text_escaped() -> None:
    nasty = "<script>alert(1)</script> & \"q\" 'a' \x00\x0b\ud800]]>"
    graph = Graph(nasty, [Node("x", nasty, badge=nasty), Node("y", "")], [Edge("x", "y", nasty)])
    root = ElementTree.fromstring(svg(graph))
    assert root.tag == f"{NS}svg"
    assert not list(root.iter(f"{NS}script"))
    titles = [title.text or "" for title in root.iter(f"{NS}title")]
    assert titles[0].startswith("<script>alert(1)</script> & ")


def test_svg_shows_status_by_colour_and_sign_in_light_and_dark() -> None:
    text = svg(LOOPED)
    assert "prefers-color-scheme:dark" in text
    root = ElementTree.fromstring(text)
    groups = {g.find(f"{NS}title").text: g for g in root.iter(f"{NS}g") if g.get("class")}  # type: ignore[union-attr]
    waiting = groups["c — waiting — due 14:00"]
    assert waiting.get("class") == "waiting task"
    assert waiting.find(f".//{NS}path[@class='sign']") is not None
    assert "due 14:00" in [text.text for text in waiting.iter(f"{NS}text")]


def test_equal_graphs_give_equal_pictures() -> None:
    for format in ("svg", "mermaid", "dot"):
        assert render(LOOPED, format) == render(LOOPED, format)


def test_edge_text_says_how_often_it_was_taken() -> None:
    assert edge_text(Edge("a", "b", "ok · max 3x", taken=2)) == "ok · max 3x · taken 2x"
    assert edge_text(Edge("a", "b", "ok · taken 2x", taken=2)) == "ok · taken 2x"
    assert edge_text(Edge("a", "b", taken=1)) == ""
    assert edge_text(Edge("a", "b", taken=4)) == "taken 4x"


def test_long_labels_are_wrapped_and_cut() -> None:
    assert wrap("short", 15) == ["short"]
    lines = wrap("word " * 50, 15)
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert all(len(line) < 30 for line in wrap("x" * 400, 15))
    assert wrap("a_very_long_identifier_of_a_step", 15)[0].endswith("_")


def test_a_line_break_in_a_label_is_one_in_the_picture() -> None:
    graph = Graph("g", [Node("a", "load\nshell")])
    assert wrap("load\nshell", 15) == ["load", "shell"]
    assert '"load<br/>shell"' in mermaid(graph)
    assert 'label="load\\nshell"' in dot(graph)


def test_mermaid_names_shapes_labels_and_states() -> None:
    text = mermaid(LOOPED)
    assert text.startswith('---\ntitle: "order"\n---\nflowchart TD\n')
    assert '    a(["a"])\n' in text
    assert '    c[/"c (due 14:00)"/]:::waiting\n' in text
    assert '    c -->|"rework · max 3x · taken 2x"| b\n' in text
    assert '    b -.->|"small"| c\n' in text
    assert "classDef waiting " in text


def test_mermaid_gives_ids_that_mermaid_reads() -> None:
    graph = Graph(
        "g", [Node("end", "end"), Node("a b", 'say "hi" #1'), Node("n1", "n1")], [Edge("end", "a b")]
    )
    text = mermaid(graph)
    assert '    n0["end"]\n' in text
    assert '    n1["say #quot;hi#quot; #35;1"]\n' in text
    assert '    n1_["n1"]\n' in text
    assert "    n0 --> n1\n" in text


def test_dot_quotes_what_it_must() -> None:
    text = dot(
        Graph('a"b', [Node("x\\", 'say "hi"', status="failed")], [Edge("x\\", "y", "to", dashed=True)])
    )
    assert 'digraph "a\\"b" {' in text
    assert '"x\\\\" [label="say \\"hi\\"", shape=box, fillcolor="#fde4e3"' in text
    assert '"x\\\\" -> "y" [label="to", style=dashed];' in text


def test_an_edge_to_an_unknown_node_draws_that_node() -> None:
    for format in ("svg", "mermaid", "dot"):
        picture = render(Graph("g", [Node("a", "a")], [Edge("a", "ghost")]), format)
        assert isinstance(picture, str)
        assert "ghost" in picture


def test_an_end_that_nothing_leads_to_is_not_drawn() -> None:
    graph = Graph("g", [Node("a", "a"), Node("b", "b"), Node("z", "the end", "end")], [Edge("a", "b")])
    for format in ("svg", "mermaid", "dot"):
        assert "the end" not in str(render(graph, format))
    assert "the end" in mermaid(Graph("g", graph.nodes, [Edge("a", "z")]))


def test_an_empty_graph_is_a_picture_too() -> None:
    ElementTree.fromstring(svg(Graph("")))
    assert mermaid(Graph("")) == "flowchart TD\n"


def test_png_is_a_png() -> None:
    picture = render(LOOPED, "png")
    assert isinstance(picture, bytes)
    assert picture.startswith(b"\x89PNG\r\n")


def test_png_without_the_extra_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(Unsupported, match=r"pip install 'treadle\[graph\]'"):
        render(LOOPED, "png")


def test_no_edge_runs_through_a_node_and_no_label_lies_on_another() -> None:
    """Shapes that users met: an edge that passes a layer, two ways to one node, a step back, a lonely one."""
    names = ["classify", "refund", "reply", "review", "file", "done", "lonely"]
    graph = Graph(
        "triage",
        [Node(name, name) for name in names],
        [
            Edge("classify", "refund", "money"),
            Edge("classify", "reply", "a question that is easy"),
            Edge("refund", "reply", "refused"),
            Edge("reply", "review"),
            Edge("reply", "file", "short"),
            Edge("review", "reply", "again"),
            Edge("review", "done", "fine"),
            Edge("file", "done"),
            Edge("classify", "done", "spam"),
        ],
    )
    layout = laid_out(graph)
    for one, other in combinations(layout.boxes.values(), 2):
        assert not overlap(one, other)
    for edge, route in zip(graph.edges, layout.routes, strict=True):
        for begin, end in pairwise(route.points):
            for name, box in layout.boxes.items():
                if name not in (edge.source, edge.target):
                    assert not _touches(begin, end, box), (edge, name)
    places = [route.label for route in layout.routes if route.label is not None]
    assert len(places) == 7
    for a, b in combinations(places, 2):
        assert abs(a[0] - b[0]) > 20 or abs(a[1] - b[1]) > 10


def _touches(begin: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    """Whether a stretch of an edge, walked in small steps, enters a box."""
    steps = [part / 20 for part in range(21)]
    points = [(begin[0] + (end[0] - begin[0]) * t, begin[1] + (end[1] - begin[1]) * t) for t in steps]
    return any(abs(x - box.x) < box.width / 2 - 1 and abs(y - box.y) < box.height / 2 - 1 for x, y in points)


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(Unsupported, match="svg, mermaid, png, dot"):
        render(LOOPED, "gif")


@pytest.mark.parametrize("shape", ["chain", "star"])
def test_ten_thousand_nodes_are_drawn(shape: str) -> None:
    count = 10_000
    nodes = [Node(f"n{i}", f"n{i}") for i in range(count)]
    edges = [Edge(f"n{i - 1}" if shape == "chain" else "n0", f"n{i}", "next") for i in range(1, count)]
    picture = render(Graph("large", nodes, edges))
    assert isinstance(picture, str)
    assert picture.count("<g class=") == count
