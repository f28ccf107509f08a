"""The virtual clock, `assert_replays` and the pytest plug-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.testing import VirtualClock, assert_replays, toy

HOUR = 3600


async def test_timers_fire_when_they_are_due_and_in_order() -> None:
    clock = VirtualClock()
    begin = clock.now_ns()
    engine = clock.engine()
    toy.install(engine)
    async with engine:
        run = await engine.start(toy.TOY, {"do": ["timer", "work", "timer"]})
        await clock.advance(HOUR - 1)
        assert (await run.show())["status"] == "waiting"
        await clock.advance(2 * HOUR)
        assert await run.result(timeout=60) == [begin + toy.HOUR_NS, "worked", begin + 2 * toy.HOUR_NS]
        assert clock.now_ns() == begin + 3 * toy.HOUR_NS - 10**9


async def test_one_clock_moves_several_engines(tmp_path: Path) -> None:
    clock = VirtualClock()
    first, second = clock.engine(), clock.engine(f"sqlite:///{tmp_path}/t.db")
    for engine in (first, second):
        toy.install(engine)
    async with first, second:
        runs = [await engine.start(toy.TOY, {"do": ["timer"]}) for engine in (first, second)]
        await clock.advance(HOUR)
        for run in runs:
            await run.result(timeout=60)


async def test_settle_does_not_wait_for_work_that_nobody_can_do(
    treadle_engine: Any, treadle_clock: Any
) -> None:
    treadle_engine.dialects["toy"] = toy.ToyDialect()
    run = await treadle_engine.start(toy.TOY, {"do": ["work"]})
    await treadle_clock.settle()
    assert (await run.show())["status"] == "running"


async def test_the_fixtures_are_there(treadle_engine: Any, treadle_clock: Any, treadle_replays: Any) -> None:
    toy.install(treadle_engine)
    run = await treadle_engine.start(toy.TOY, {"do": ["timer", "signal:go"]})
    await treadle_clock.advance(HOUR)
    await treadle_engine.signal(run.id, "go", 7)
    assert (await run.result(timeout=60))[1] == 7
    assert await treadle_replays(treadle_engine) == 1


async def test_a_machine_that_changed_its_mind_does_not_replay() -> None:
    clock = VirtualClock()
    engine = clock.engine()
    toy.install(engine)
    async with engine:
        run = await engine.start(toy.TOY, {"do": ["work"]})
        await run.result(timeout=60)
        assert await assert_replays(run) == 1

        class Changed(toy.ToyMachine):
            def step(self, definition: Any, state: Any, event: Any, ctx: Any) -> Any:
                decision = super().step(definition, state, event, ctx)
                decision.events = [{"type": "something.else"}]
                return decision

        dialect = engine.dialects["toy"]
        dialect.machine = Changed()
        engine.dialects["toy"] = dialect
        with pytest.raises(AssertionError, match="does not replay: record 2"):
            await assert_replays(run)


def test_the_plug_in_loads_no_engine() -> None:
    code = (
        "import sys, treadle.testing.plugin; print('treadle.engine' in sys.modules, 'sqlite3' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
