"""A function that its process lets go of is cut off: nothing of its `finally` is done for real."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from treadle import flow
from treadle.dialects.function.awaits import Await
from treadle.dialects.function.life import Life
from treadle.dialects.function.loop import AwaitFuture, FlowFuture, FlowTask
from treadle.dialects.function.machine import FunctionMachine
from treadle.kernel.model import Receipt
from treadle.testing import play

DONE: list[str] = []


@flow.step(name="abandoned.clean_up")
async def clean_up(what: str) -> None:
    DONE.append(what)


@flow.workflow(name="abandoned")
async def abandoned(ctx: flow.Context) -> None:
    try:
        await flow.gather(ctx.signal("one"), ctx.signal("two"))
    finally:
        await clean_up("main")


def test_a_machine_that_is_let_go_of_ends_its_functions_cut_off() -> None:
    DONE.clear()
    played = play(abandoned)
    assert played.waiting == ["one", "two"]
    assert played.machine is played.driver.machine
    del played
    gc.collect()
    assert DONE == []


@flow.step(name="abandoned.next")
def following(number: int) -> int:
    return number + 1


@flow.workflow(name="ended")
async def ended(ctx: flow.Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await following(number)
    return number


def test_a_function_that_has_ended_leaves_nothing_to_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        before = _living()
        assert play(ended, 5).result == 5
        assert _living() == before
    finally:
        gc.enable()


@flow.workflow(name="abandoned.branches")
async def branches(ctx: flow.Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.signal("one"))
        group.create_task(flow.gather(ctx.signal("two"), asyncio.sleep(60)))


def test_a_function_that_is_forgotten_while_it_waits_leaves_nothing_to_the_collector() -> None:
    for waits in (abandoned, branches):
        played = play(waits)
        gc.collect()
        gc.disable()
        try:
            before = _living()
            played.machine.forget(played.driver.run.state)
            assert played.machine.alive == 0
            assert _living() < before
            now = _living()
            gc.collect()
            assert _living() == now
        finally:
            gc.enable()


def test_the_tasks_of_many_runs_do_not_collide_where_asyncio_registers_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run numbers its tasks from one; among those of ten thousand runs each would be compared with all."""
    compared: list[object] = []

    def is_same(one: object, other: object) -> bool:
        compared.append(one)
        return one is other

    monkeypatch.setattr(FlowTask, "__eq__", is_same)
    waiting = [play(abandoned) for _ in range(50)]
    assert all(played.waiting == ["one", "two"] for played in waiting)
    del waiting
    assert compared == []


BEGUN: list[str] = []


@flow.workflow(name="abandoned.begun")
async def begun(ctx: flow.Context, name: str) -> None:
    BEGUN.append(name)
    async for _ in ctx.signals("next"):
        ctx.state["heard"] = True


def test_whoever_was_told_something_last_is_the_last_to_make_room() -> None:
    BEGUN.clear()
    machine = FunctionMachine(lives_max=2)
    busy, quiet = (play(begun, name, id=name, machine=machine) for name in ("busy", "quiet"))
    busy.signal("next")
    play(begun, "new", id="new", machine=machine)
    busy.signal("next")
    assert BEGUN == ["busy", "quiet", "new"]
    quiet.signal("next")
    assert BEGUN == ["busy", "quiet", "new", "quiet"], "it is made again from its past"


@flow.workflow(name="abandoned.all_tasks")
async def looks_around(ctx: flow.Context) -> list[str]:
    others = [asyncio.create_task(ctx.signal("never"), name=f"other-{n}") for n in range(5)]
    await following(0)
    named = [task.get_name() for task in asyncio.all_tasks()]
    assert len(others) == 5
    return named


def test_a_function_finds_its_own_tasks_in_the_order_of_their_numbers() -> None:
    among = play(abandoned)
    found = play(looks_around).result
    assert found == ["abandoned.all_tasks", *(f"other-{n}" for n in range(5))]
    assert among.waiting == ["one", "two"]


def _living() -> int:
    return sum(type(each) in (Life, Await, AwaitFuture, FlowTask, FlowFuture) for each in gc.get_objects())


@flow.workflow(name="abandoned.cancelled")
async def cancelled(ctx: flow.Context, what: str) -> list[str]:
    waits = {
        "signal": ctx.signal("never"),
        "task": ctx.ask("never"),
        "step": following(1),
        "child": ctx.run("no such workflow"),
    }
    told = []
    for kind, waiting in waits.items():
        if kind != what:
            waiting.close()
            continue
        try:
            await waiting
        except asyncio.CancelledError:
            told.append("cancelled")
        except flow.ChildFailed:
            told.append("failed")
    return [*told, str(await following(1))]


@pytest.mark.parametrize("what", ["signal", "task", "step", "child"])
def test_whoever_waits_for_what_is_cancelled_from_outside_is_cancelled_there_and_a_child_has_failed(
    what: str,
) -> None:
    run = play(cancelled, what, by_hand=True)
    (open,) = run.driver.run.open.values()
    run.driver.feed(Receipt(intent=open.id, status="cancelled", error={"message": "gone"}))
    (then,) = run.open
    assert run.perform(then).result == ["failed" if what == "child" else "cancelled", "2"]
    run.assert_replays()


PROGRAM = """
import asyncio, sys
from pathlib import Path
from treadle import Engine, flow

@flow.step
async def clean_up(path: str) -> None:
    Path(path).write_text("done")

@flow.workflow
async def waits(ctx: flow.Context, path: str) -> None:
    try:
        await ctx.signal("never")
    finally:
        await clean_up(path)

async def main() -> None:
    engine = Engine(sys.argv[1])
    await engine.__aenter__()
    run = await engine.start(waits, sys.argv[2], id="waits")
    while (await run.show())["status"] == "running":
        await asyncio.sleep(0.01)
    print((await run.show())["status"], flush=True)
    if sys.argv[3] == "closed":
        await engine.__aexit__(None, None, None)
    else:
        globals()["kept"] = engine
        sys.exit()

asyncio.run(main())
"""


def test_the_exit_of_a_process_does_not_run_the_clean_up_of_its_runs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, "utf-8")
    for how in ("closed", "left open"):
        mark = tmp_path / "mark"
        command = [sys.executable, str(script), f"sqlite:///{tmp_path}/{how}.db", str(mark), how]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.stdout.strip() == "waiting", ended.stderr
        assert not mark.exists(), how
        assert "never awaited" not in ended.stderr
        assert "was destroyed" not in ended.stderr
