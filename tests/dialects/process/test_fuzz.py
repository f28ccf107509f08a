"""Definitions that are wrong in any way are problems, never crashes; runs of what compiles never
break the machine, whatever the outside answers."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.dialects.process import DIALECT
from treadle.lang.text import Document, parse
from treadle.testing.driver import Driver

WHOLE = parse(
    """
dialect: process
name: Fuzzed
version: 1.0.0
retention: 90d
start: {schema: {type: object}}
tasks:
  approve: {roles: [a], payload: {n: {$: state.n}}, timeout: 3d, on_timeout: [{set: {state.late: true}}], schema: {type: object}}
  other: {roles: [b], timeout: 1h, escalate_to: [c]}
steps:
  - set: {state.n: {$: "coalesce(start.n, 0)"}, state.list: [1, {$: start.n}]}
  - reference: {$: run.id}
  - call: {transport: http, url: u, headers: {a: b}, payload: {n: {$: state.n}}, into: q, timeout: 30s, deadline: 2m,
           retry: {attempts: 2, backoff: linear, delay: 1s}, on_success: [{set: {state.ok: 1}}], on_failure: [{wait: 1s}], on_timeout: [{wait: 2s}]}
  - if: {$: "state.n > 0 or result.q"}
    then: [{task: approve}, {task: other}]
    else: [{await: {signal: s, into: s, timeout: 1h, on_timeout: [{set: {state.t: {$: error.class}}}]}}]
  - repeat: {each: item, in: {$: state.list}, max: 5, do: [{child: {workflow: W, input: {$: item}, into: w, on_failure: [{set: {state.f: 1}}]}}]}
  - repeat: {while: {$: "state.n < 2"}, max: 3, do: [{set: {state.n: {$: state.n + 1}}}]}
  - fork: {l: [{wait: 1s}], r: [{continue_with: {workflow: W}}, {repeat: {until: {$: 'true'}, max: 2, do: [{call: {transport: nats, subject: s}}]}}]}
  - complete: {all: {$: "merge(state, result)"}}
"""
).value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, part in value.items():
            found += places(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            found += places(part, (*path, index))
    return found


PLACES = [place for place in places(WHOLE) if place]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.sampled_from(
        ["1s", "{$", "state.x", "item", "if", "http", "nope", "steps", {"$": "state.n +"}, {"$": "1"}, {"$": None},
         {"$": ["lit", 1]}, {"$": ["boom"]}, {"$": [[]]}, {"$": ["call", "at"]}, {"$": "item"}, {"$": "result.q.x[0]"}, [], {}, [[]],
         [{"wait": "1s"}], {"wait": "1s"}, [{"fail": {}}], [None], {"each": "x"}, {1: 2}, b"x", object(), print]
    ),
)  # fmt: skip


def mutated(place: tuple[Any, ...], junk: Any, *, drop: bool, rename: str | None) -> Any:
    value = copy.deepcopy(WHOLE)
    node = value
    for key in place[:-1]:
        node = node[key]
    last = place[-1]
    if drop:
        del node[last]
    elif rename is not None and isinstance(node, dict):
        node[rename] = node.pop(last)
    else:
        node[last] = junk
    return value


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(PLACES),
    JUNK,
    st.booleans(),
    st.one_of(st.none(), st.text(max_size=5)),
    st.randoms(use_true_random=False),
)
def test_a_definition_with_any_mistake(
    place: Any, junk: Any, drop: bool, rename: str | None, rng: Any
) -> None:
    document = Document(mutated(place, junk, drop=drop, rename=rename))
    definition, problems = DIALECT.compile(document)
    assert (definition is None) == bool(problems.errors)
    if definition is None:
        assert all(problem.message and problem.code for problem in problems)
        return
    for format in ("yaml", "json", "python"):
        assert DIALECT.export(definition, format)
    DIALECT.graph(DIALECT.machine.load(definition.body))
    answered(definition.body, rng)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_a_run_with_any_answers(rng: Any) -> None:
    definition, _ = DIALECT.compile(Document(WHOLE))
    assert definition is not None
    answered(definition.body, rng)


ANSWERS = [None, True, 0, -1, 2.5, "", "text", [], [1, [2]], {}, {"n": 1, "ok": False}, {"total": None}]


def answered(body: Any, rng: Any) -> None:
    """Runs to an end, or for sixty events, with answers of any shape and outcome; then replays."""
    driver = Driver(DIALECT.machine, body)
    driver.start(rng.choice(ANSWERS))
    for _ in range(60):
        if driver.run.ended:
            break
        if driver.status == "stalled":
            driver.retry(**rng.choice([{}, {"fail": "x"}, {}]))
            continue
        assert driver.status == "waiting"
        intent = rng.choice(driver.open())
        value = rng.choice(ANSWERS)
        if intent.kind == "child":
            value = {"run": "c", "workflow": "W", "version": "1", "result": value}
        match rng.choice(["ok", "ok", "ok", "error", "timeout", "patch", "signal"]):
            case "error" if intent.kind in ("call", "child", "start"):
                driver.error(intent, "no")
            case "timeout" if intent.due_ns is not None and intent.kind != "timer":
                driver.timeout(intent)
            case "patch":
                driver.patch(n=value)
            case "signal":
                driver.signal("s", value)
            case _:
                driver.ok(intent, value)
        driver.view()
        DIALECT.graph(driver.definition, driver.view())
    if driver.run.error is not None:
        assert driver.run.error["code"] != "MACHINE_ERROR", driver.run.error
    driver.assert_replays()
