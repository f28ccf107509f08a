"""Arcs without `when` are taken after a failure too: check says where, and our own examples do not rely on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle import Engine
from treadle.testing import assert_replays

from .harness import problems_of

ROOT = Path(__file__).parents[3]

CHAIN = """\
workflow:
  - step: charge
    tool: {kind: shell, command: "true"}
    next: {arcs: [{step: ship}]}
  - step: ship
    tool: {kind: noop}
"""


def found(text: str) -> list[tuple[str, int | None]]:
    return [(p.severity, p.line) for p in problems_of(text) if p.code == "arc_on_failure"]


def test_an_arc_without_when_to_a_step_that_is_not_for_failures_is_warned_of() -> None:
    assert found(CHAIN) == [("warning", 4)]
    (problem,) = (p for p in problems_of(CHAIN) if p.code == "arc_on_failure")
    assert "event.name == 'step.done'" in problem.hint
    assert "when: true" in problem.hint


@pytest.mark.parametrize(
    ("instead_of", "there_is"),
    [
        ("{step: ship}", "{step: ship, when: \"{{ event.name == 'step.done' }}\"}"),
        ("{step: ship}", "{step: ship, when: true}"),
        ("{step: ship}", "{step: oops, when: \"{{ event.name == 'step.failed' }}\"}, {step: ship}"),
        ('kind: shell, command: "true"', "kind: noop"),
        ("ship", "clean_up"),
        ("ship", "notify_support"),
        ("ship", "end"),
        ("workflow:", "executor: {spec: {policy: {failure: {mode: fail_fast}}}}\nworkflow:"),
    ],
)
def test_what_was_said_plainly_is_not_warned_of(instead_of: str, there_is: str) -> None:
    text = CHAIN.replace(instead_of, there_is) + "  - step: oops\n    tool: {kind: noop}\n"
    assert found(text) == []


def test_a_looped_step_is_told_of_loop_done() -> None:
    looped = CHAIN.replace("    next", "    loop: {in: [1], iterator: x}\n    next")
    (problem,) = (p for p in problems_of(looped) if p.code == "arc_on_failure")
    assert "event.name == 'loop.done'" in problem.hint


def test_behind_an_inclusive_router_each_plain_arc_is_its_own() -> None:
    both = CHAIN.replace(
        "{arcs: [{step: ship}]}", "{spec: {mode: inclusive}, arcs: [{step: ship}, {step: ship}]}"
    )
    assert len(found(both)) == 2


def test_our_examples_guard_their_arcs() -> None:
    engine = Engine("memory:")
    for file in (ROOT / "examples" / "order.yaml", *sorted((ROOT / "examples" / "playbook").glob("*.yaml"))):
        assert [p for p in engine.check(str(file)) if p.code == "arc_on_failure"] == []


@pytest.mark.house
async def test_the_order_of_the_readme_ships_nothing_when_its_charge_fails(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert text == (ROOT / "examples" / "order.yaml").read_text()
    broken = text.replace("echo charged {{ price.total }}", "exit 1")
    assert broken != text
    (tmp_path / "order.yaml").write_text(broken)
    async with Engine("memory:") as engine:
        run = await engine.start(engine.load(str(tmp_path / "order.yaml"))[0], {"items": [3, 4]})
        shown = await run.settled(timeout=30)
        assert shown["status"] == "failed"
        assert shown["error"]["code"] == "EXIT_1"
        steps = shown["state"]["steps"]
        assert {name: steps[name]["status"] for name in steps} == {"price": "done", "charge": "failed"}
        await assert_replays(engine)
