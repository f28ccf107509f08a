"""A decision that takes long is told, then broken off: the run stalls as it was, others go on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from treadle import flow
from treadle.dialects.function.errors import DecisionTooLong
from treadle.dialects.function.machine import FunctionMachine
from treadle.dialects.function.patience import Patience
from treadle.testing.driver import Driver

ENDLESS = [True]


@flow.workflow(name="patience.stubborn")
async def stubborn(ctx: flow.Context) -> str:
    await ctx.signal("go")
    while ENDLESS:
        try:
            sum(range(100))
        except Exception:  # does not hold it
            continue
    return "done"


@flow.workflow(name="patience.leaving")
async def leaving(ctx: flow.Context) -> str:
    try:
        await ctx.signal("go")
    finally:
        while ENDLESS:
            pass
    return "done"


def driver(workflow: Any) -> Driver:
    machine = FunctionMachine(patience=Patience(tick_s=0.05))
    machine.attach(workflow)
    made = Driver(machine, workflow.definition().body, name=workflow.name, id="r")
    made.start(None)
    return made


@pytest.mark.parametrize("workflow", [stubborn, leaving])
def test_a_decision_that_does_not_end_is_broken_off(workflow: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = driver(workflow)
    ENDLESS[:] = [True]
    seq = made.run.seq
    with caplog.at_level(logging.WARNING), pytest.raises(DecisionTooLong) as caught:
        made.signal("go", 1)
    assert caught.value.code == "DECISION_TOO_LONG"
    assert str(caught.value.where).startswith("test_patience.py:")
    assert "@flow.step" in caught.value.message
    assert "holds up every other run" in caplog.text
    assert made.run.seq == seq, "no record is written"
    ENDLESS.clear()
    made.signal("go", 1)
    assert made.run.result == "done", "the same run, once the code is mended"
    made.assert_replays()


def test_dropping_a_function_that_does_not_end_ends() -> None:
    ENDLESS[:] = [True]
    made = driver(leaving)
    made.machine.forget(made.run.state)
    ENDLESS.clear()
    made.signal("go", 1)
    assert made.run.result == "done"


def test_nothing_is_raised_in_a_thread_whose_decision_is_over() -> None:
    patience = Patience(tick_s=0.001)

    class Decision:
        run = "r"
        guarded = False
        offence = None

    for _ in range(20):
        spent = [0]

        def spend(_: object, spent: list[int] = spent) -> None:
            while spent[0] < 400_000:
                spent[0] += 1

        patience.during(Decision(), spend)
    assert sum(range(1_000_000)) == 499_999_500_000
