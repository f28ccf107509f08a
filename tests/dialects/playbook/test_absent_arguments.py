"""Never a green run that did nothing: what a step or a task is given must be there (PLAYBOOK §6.49)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.dialects.playbook.edition import edition
from treadle.dialects.playbook.handles import TemplateScope
from treadle.dialects.playbook.templates import Tree
from treadle.testing import assert_replays

from .harness import Lab

ROOT = Path(__file__).parents[3]

USE = """
    workload: {rows: [{id: 1}], none: null}
    workflow:
      - {step: first, tool: {kind: noop, result: {a: 1}}, next: {arcs: [{step: use%s}]}}
      - {step: use%s, tool: [{name: t, kind: echo, value: %s}]}
      - {step: never, tool: {kind: noop}}
"""


def ran(value: str, *, arc: str = "", step: str = "") -> Lab:
    return Lab(USE % (arc, step, value)).run().replays()


@pytest.mark.parametrize(
    ("template", "chain"),
    [
        ("{{ workload.items }}", "workload.items"),
        ("{{ workload.none.deep.key }}", "workload.none.deep.key"),
        ("{{ ctx.total }} rows", "ctx.total"),
        ("{{ ctx.total ~ ' rows' }}", "ctx.total"),
        ("{{ [workload.rows, ctx.total] }}", "ctx.total"),
        ("{{ workload.rows[1].id }}", "workload.rows.1.id"),
        ("{{ workload.rows[0].name }}", "workload.rows.0.name"),
        ("{{ first.b }}", "first.b"),
        ("{{ totl }}", "totl"),
        ("{% if workload.rows %}{{ ctx.total }}{% endif %}", "ctx.total"),
    ],
)
def test_an_argument_that_is_not_there_fails_its_task_and_names_the_chain(template: str, chain: str) -> None:
    lab = ran(f'"{template}"')
    assert lab.status == "failed"
    assert lab.steps["use"]["error"]["kind"] == "template"
    assert f"'{chain}' is undefined" in lab.error["message"]
    assert "| default(…)" in lab.error["message"]


def test_what_a_noop_gives_is_a_value_and_no_argument() -> None:
    """PLAYBOOK §6.8: an expression that is undefined is null, and empty inside text."""
    lab = Lab(
        """
        workflow:
          - {step: a, tool: {kind: noop, result: {x: "{{ ctx.nothing.at.all }}", y: "<{{ ctx.nothing }}>"}}}
        """
    )
    assert lab.run().replays().result == {"x": None, "y": "<>"}


@pytest.mark.parametrize("place", ["arc", "step", "deep"])
def test_arguments_of_arcs_and_steps_must_be_there_too(place: str) -> None:
    given = ', args: {x: {y: ["{{ workload.items }}"]}}'
    lab = ran("1", **({"arc": given} if place == "arc" else {"step": given} if place == "step" else {}))
    if place == "deep":
        lab = ran('{x: {y: ["{{ workload.items }}"]}}')
    assert lab.status == "failed"
    assert lab.error["class"] in ("expression", "user")
    assert "'workload.items' is undefined" in lab.error["message"]


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ workload.items | default([]) }}", []),
        ("{{ ctx.total | d('none') }}, {{ workload.none }}", "none, None"),
        ("{{ ctx.total is defined }}", False),
        ("{{ ctx.total if ctx.total is defined else 3 }}", 3),
        ("{{ 'x' if workload.none }}", None),
        ("{{ ctx.total or 7 }}", 7),
        ("{{ workload.none }}", None),
        ("{{ never.rows }}", None),
        ("{{ never.rows[0].id }}", None),
        ("it has {{ never }}", "it has "),
        ("{{ _prev.x }}", None),
        ("{{ iter.parent.k }}", None),
    ],
)
def test_nothing_is_meant_where_it_is_said_or_nobody_could_know(template: str, value: Any) -> None:
    lab = ran(f'"{template}"')
    assert (lab.status, lab.result) == ("completed", value)


def test_the_result_of_a_step_that_failed_is_nothing() -> None:
    lab = Lab(
        """
    workflow:
      - {step: bad, tool: {kind: bad}, next: {arcs: [{step: use, when: "{{ event.status == 'error' }}", args: {t: "{{ event.result.total }}"}}]}}
      - {step: use, tool: {kind: echo, value: ["{{ bad.rows }}", "{{ bad.rows.first }}", "{{ args.t }}"]}}
    """,
        {"bad": lambda config, call: 1 / 0},
    )
    assert lab.run().replays().status == "completed"
    assert lab.result == [None, None, None]


def test_text_with_one_name_that_may_be_nothing_still_wants_the_other() -> None:
    lab = ran('"{{ never.rows }} of {{ ctx.total }}"')
    assert lab.status == "failed"
    assert "'ctx.total' is undefined" in lab.error["message"]


def test_a_run_of_0_1_0_goes_on_with_nothing() -> None:
    first = edition.set(1)
    try:
        assert Tree({"a": "{{ ctx.x }}", "b": "n={{ ctx.x }}"}, "args").arguments(
            TemplateScope({"ctx": {}})
        ) == {
            "a": None,
            "b": "n=",
        }
    finally:
        edition.reset(first)


async def test_the_order_of_the_readme_without_input_says_what_is_not_there() -> None:
    async with Engine("memory:") as engine:
        run = await engine.start(engine.load(str(ROOT / "examples" / "order.yaml"))[0])
        shown = await run.settled(timeout=30)
        assert shown["status"] == "failed"
        assert "'workload.items' is undefined" in shown["error"]["message"]
        await assert_replays(engine)
