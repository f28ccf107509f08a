"""Steps that only wait: begun by one record, ended by the next, with what a worker would have told."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.kernel.model import Started
from treadle.kernel.values import Value
from treadle.testing.driver import Driver

from .harness import Lab

ALONE = "workflow: [{step: s, args: {x: 1}, tool: {%s}}, {step: after, tool: {kind: echo, value: '{{ s }}'}}]"
NEXT = "workflow: [{step: s, args: {x: 1}, tool: {%s}, next: {arcs: [{step: after}]}}, {step: after, tool: {kind: echo, value: '{{ s }}'}}]"
EACH = """
workflow:
  - step: s
    loop: {in: [a, b, c], iterator: item, spec: {mode: parallel, policy: {reduce: collect}}}
    tool: {%s}
"""
WAITS = {
    "await": ("kind: await, signal: go, timeout: 10", "signal"),
    "wait": ("kind: wait, duration: 5s", "timer"),
    "ask": ("kind: ask, title: Look, roles: [boss], payload: {a: 1}", "task"),
    "playbook": ("kind: playbook, path: other, args: {n: 1}", "child"),
    "start": ("kind: workflow, workflow: other, wait: false", "start"),
}
ANSWERS: dict[str, Value] = {
    "child": {"run": "c", "workflow": "other", "version": None, "result": {"n": 9}},
    "start": {"run": "c"},
    "timer": None,
}


def begun(text: str, version: int) -> Lab:
    lab = Lab(text)
    lab.driver.feed(Started(seed=b"seed", machine=version))
    return lab.work()


def answered(lab: Lab, kind: str, how: str) -> Lab:
    while open_ := lab.driver.open(kind):
        answer(lab.driver, open_[-1], how)
        lab.work()
    return lab.replays()


def answer(driver: Driver, intent: Any, how: str) -> None:
    if how == "ok":
        driver.ok(intent, ANSWERS.get(intent.kind, {"said": "yes"}))
    elif how == "error":
        driver.error(intent, "no", code="NO")
    else:
        driver.timeout(intent)


def told(lab: Lab) -> dict[str, Any]:
    view = lab.driver.view()["state"]
    return {
        "status": lab.status,
        "result": lab.result,
        "error": lab.error,
        "steps": view["steps"],
        # Iterations go side by side: of each its own, in order.
        "events": [
            [event for event in lab.driver.events if event.get("iteration") == number]
            for number in (None, 0, 1, 2)
        ],
    }


@pytest.mark.parametrize("text", [ALONE, NEXT, EACH], ids=["alone", "next", "each"])
@pytest.mark.parametrize("how", ["ok", "error", "timeout"])
@pytest.mark.parametrize("wait", WAITS)
def test_what_a_run_tells_of_a_wait_does_not_depend_on_who_took_it(text: str, wait: str, how: str) -> None:
    """Version 2 left it to a worker; its runs go on so."""
    fields, kind = WAITS[wait]
    before, now = (answered(begun(text % fields, version), kind, how) for version in (2, 3))
    assert told(now) == told(before)
    assert len(before.driver.journal) > len(now.driver.journal)


@pytest.mark.parametrize("wait", WAITS)
def test_a_step_that_only_waits_is_no_work_for_anybody(wait: str) -> None:
    fields, kind = WAITS[wait]
    lab = Lab(f"workflow: [{{step: s, tool: {{{fields}}}}}]").start()
    assert [intent.kind for intent in lab.driver.open()] == [kind]
    assert lab.status == "waiting"
    answered(lab, kind, "ok")
    assert (lab.status, len(lab.driver.journal)) == ("completed", 2)


def test_children_of_a_loop_cost_their_parent_one_record_each() -> None:
    lab = Lab(EACH % WAITS["playbook"][0]).start()
    assert [intent.params["options"]["iter"]["item"] for intent in lab.driver.open("child")] == [
        "a",
        "b",
        "c",
    ]
    answered(lab, "child", "ok")
    assert len(lab.driver.journal) == 4
    assert lab.result["reduced"] == [{"n": 9}] * 3


@pytest.mark.parametrize(
    "tool",
    [
        "{kind: await, signal: '{{ workload.name }}'}",
        "{kind: await, signal: go, spec: {policy: {rules: [{else: {then: {do: continue}}}]}}}",
        "[{kind: await, signal: go}, {kind: noop}]",
        "{kind: await, signal: go, loop: {in: [1], iterator: i}}",
        "{kind: await, signal: 7}",
    ],
    ids=["a template", "a policy", "another task", "a loop of its own", "fields that are wrong"],
)
def test_what_is_more_than_a_wait_is_left_to_a_worker(tool: str) -> None:
    lab = Lab(f"workload: {{name: go}}\nworkflow: [{{step: s, tool: {tool}}}]").start()
    assert [intent.kind for intent in lab.driver.open()] == ["step"]


def test_a_wait_that_has_become_more_than_that_goes_on_at_a_worker() -> None:
    """A run may go on under a definition in which its step has further tasks."""
    lab = Lab("workflow: [{step: s, tool: {kind: await, signal: go, name: go}}]").start()
    more = Lab(
        "workflow: [{step: s, tool: [{kind: await, signal: go, name: go}, {kind: echo, value: '{{ go.n }}'}]}]"
    )
    lab.driver.definition = more.driver.definition
    lab.driver.signal("go", {"n": 5})
    assert lab.work().result == 5
