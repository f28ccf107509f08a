"""Pictures of a definition and of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.dialects.process import DIALECT
from treadle.lang.definition import Definition
from treadle.testing.driver import Driver

TEXT = """
tasks: {approve: {timeout: 1h, on_timeout: [{set: {state.late: true}}]}}
steps:
  - call: {transport: a, into: quote, on_failure: [{fail: no}]}
  - if: {$: result.quote > 10}
    then: [{task: approve}]
    else: [{wait: 1h}]
  - repeat: {each: i, in: [1, 2], do: [{await: go}]}
  - fork: {l: [{child: {workflow: Sub}}], r: [{set: {state.r: 1}}]}
  - complete: true
"""


def nodes(graph: Any) -> dict[str, Any]:
    return {node.id: node for node in graph.nodes}


def test_a_definition(compiled: Callable[[str], Definition]) -> None:
    graph = DIALECT.graph(DIALECT.machine.load(compiled(TEXT).body))
    found = nodes(graph)
    assert found["steps[1]"].label == "if result.quote > 10"
    assert found["steps[1].then[0]"].shape == "task"
    assert found["steps[1].else[0]"].shape == "timer"
    assert found["steps[2].repeat.do[0]"].shape == "signal"
    assert {node.status for node in graph.nodes} == {"idle"}
    edges = {(edge.source, edge.target, edge.label) for edge in graph.edges}
    assert ("steps[0]", "steps[0].call.on_failure[0]", "failure") in edges
    assert ("steps[1].then[0]", "tasks.approve.on_timeout[0]", "timeout") in edges
    assert ("steps[2].repeat.do[0]", "steps[2]", "") in edges
    assert ("steps[2]", "steps[3]", "done") in edges
    assert ("steps[3]", "steps[3].fork.l[0]", "l") in edges
    assert ("steps[3].fork.r[0]", "steps[4]", "") in edges
    ids = set(found)
    assert all(edge.source in ids and edge.target in ids for edge in graph.edges)


def test_a_run(started: Callable[..., Driver]) -> None:
    d = started(TEXT)
    d.ok(d.open("call")[0], 50)
    graph = nodes(DIALECT.graph(d.definition, d.view()))
    assert graph["steps[0]"].status == "done"
    assert graph["steps[1].then[0]"].status == "waiting"
    assert graph["steps[1].then[0]"].badge == "due 01-15 09:00 UTC"
    assert graph["steps[1].else[0]"].status == "idle"
    d.ok(d.open("task")[0]).signal("go").signal("go")
    graph = nodes(DIALECT.graph(d.definition, d.view()))
    assert graph["steps[2].repeat.do[0]"].badge == "2×"
    assert graph["steps[3].fork.l[0]"].status == "waiting"
    d.error(d.open("child")[0])
    graph = nodes(DIALECT.graph(d.definition, d.view()))
    assert graph["steps[3].fork.l[0]"].status == "stalled"
    d.retry(skip=1)
    graph = nodes(DIALECT.graph(d.definition, d.view()))
    assert graph["steps[4]"].status == "done"
    assert graph["steps[1].else[0]"].status == "skipped"
