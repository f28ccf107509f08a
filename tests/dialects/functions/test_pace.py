"""Where plain steps are called: quick ones by the lane's threads, those that wait on threads of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from pathlib import Path

import pytest

from treadle import Engine, flow
from treadle.testing import assert_replays

LANE = "treadle-worker-"
LEFT: ContextVar[str] = ContextVar("left", default="nothing")


def thread() -> str:
    return threading.current_thread().name


@flow.step
def pace_quick() -> str:
    return thread()


@flow.workflow
async def pace_chain(ctx: flow.Context, calls: int) -> list[str]:
    return [await pace_quick() for _ in range(calls)]


async def test_a_quick_step_is_called_by_the_lane_from_its_second_call_on(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/pace.db") as engine:
        run = await engine.start(pace_chain, 20)
        first, *rest = await run.result(timeout=60)
        assert not first.startswith(LANE)
        # A busy machine may hold one of them up for so long that the next has a thread of its own again.
        assert any(name.startswith(LANE) for name in rest)
        await assert_replays(run)


MEETING = threading.Barrier(40)


@flow.step
def pace_meets(wait: bool) -> int:
    return MEETING.wait(timeout=60) if wait else 0


@flow.workflow
async def pace_meeting(ctx: flow.Context) -> int:
    for _ in range(3):
        await pace_meets(False)
    await pace_meets.options(timeout=60)(False)
    return len(await flow.gather(*(pace_meets(True) for _ in range(40))))


async def test_steps_that_wait_for_each_other_all_run_at_once_however_quick_they_were(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/pace.db") as engine:
        run = await engine.start(pace_meeting)
        assert await run.result(timeout=120) == 40


@flow.step
def pace_slow(seconds: float) -> str:
    time.sleep(seconds)
    return thread()


@flow.workflow
async def pace_slows_down(ctx: flow.Context) -> list[str]:
    return [await pace_slow(0.0), await pace_slow(0.05), await pace_slow(0.05)]


async def test_a_step_that_took_long_has_a_thread_of_its_own_the_next_time(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/pace.db") as engine:
        names = await (await engine.start(pace_slows_down)).result(timeout=60)
        assert not names[-1].startswith(LANE)


@flow.step
def pace_leaves_something() -> str:
    found = LEFT.get()
    LEFT.set("something")
    return found


@flow.step
def pace_has_a_loop() -> int:
    return asyncio.run(_one())


async def _one() -> int:
    return 1


@flow.step
def pace_raises() -> None:
    raise LookupError("nothing there")


@flow.workflow
async def pace_contexts(ctx: flow.Context) -> list[str]:
    return [await pace_leaves_something() for _ in range(5)]


@flow.workflow
async def pace_loops(ctx: flow.Context) -> int:
    return sum([await pace_has_a_loop() for _ in range(5)])


@flow.workflow
async def pace_failures(ctx: flow.Context) -> int:
    failed = 0
    for _ in range(5):
        try:
            await pace_raises()
        except flow.StepFailed as error:
            failed += error.type == "LookupError"
    return failed


@pytest.mark.parametrize(
    ("workflow", "result"), [(pace_contexts, ["nothing"] * 5), (pace_loops, 5), (pace_failures, 5)]
)
async def test_a_step_cannot_tell_where_it_is_called(
    tmp_path: Path, workflow: flow.Workflow[None, object], result: object
) -> None:
    """Its context is its own, it may run a loop, and what it raises is its outcome."""
    async with Engine(f"sqlite:///{tmp_path}/pace.db") as engine:
        run = await engine.start(workflow)
        assert await run.result(timeout=60) == result
        await assert_replays(run)


def test_a_workflow_is_compiled_once() -> None:
    (one,) = pace_chain.__treadle_definitions__()
    (other,) = pace_chain.__treadle_definitions__()
    assert one is other
