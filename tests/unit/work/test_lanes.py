"""Nobody waits for somebody else's slow function: lanes, time limits, and exceptions of all kinds."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed

FINE = 'metadata: {name: fine, version: "1"}\nworkflow: [{step: a, tool: {kind: noop, result: 1}}]\n'
SOON_S = 10.0


def flow(name: str, tool: str) -> str:
    return f'metadata: {{name: {name}, version: "1"}}\nworkflow: [{{step: a, tool: {tool}}}]\n'


def call(name: str, fields: str) -> str:
    return f"dialect: process\nname: {name}\nsteps: [{{call: {{{fields}, into: x}}}}, {{complete: '{{ $.x }}'}}]\n"


def make(folder: Path, *texts: str, **options: Any) -> Engine:
    engine = Engine(f"sqlite:///{folder}/t.db", **options)
    for number, text in enumerate((FINE, *texts)):
        (folder / f"{number}.yaml").write_text(text)
    return engine


async def replays(engine: Engine, run: Any) -> bool:
    return bool((await engine.replay(run.id))["equal"])


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def fails(run: Any) -> dict[str, Any]:
    """The error of a run that fails, or of a process that stalls."""
    deadline = time.monotonic() + SOON_S
    while (shown := await run.show())["status"] in ("running", "waiting"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert shown["status"] in ("failed", "stalled")
    error: dict[str, Any] = shown["error"]
    return error


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


async def test_a_slow_function_does_not_hold_up_other_runs(tmp_path, gate):
    engine = make(tmp_path, flow("slow", "{kind: slow}"))
    begun = threading.Event()

    @engine.tool("slow")
    def slow() -> int:
        begun.set()
        gate.wait(60)
        return 1

    engine.deploy(str(tmp_path))
    async with engine:
        run = await engine.start("slow")
        await until(begun.is_set)
        for _ in range(5):
            await (await engine.start("fine")).result(SOON_S)
        assert (await run.show())["status"] == "running"
        gate.set()
        await run.result(SOON_S)
        assert await replays(engine, run)


async def test_functions_that_come_together_run_together(tmp_path):
    """One thread is woken for all of them, and wakes the next before it begins: none waits for another's end."""
    engine = make(tmp_path, flow("meets", "{kind: meet}"))
    meeting = threading.Barrier(5)

    @engine.tool("meet")
    def meet() -> bool:
        return meeting.wait(SOON_S) >= 0

    engine.deploy(str(tmp_path))
    async with engine:
        for _ in range(3):
            runs = await asyncio.gather(*(engine.start("meets") for _ in range(5)))
            assert await asyncio.gather(*(run.result(2 * SOON_S) for run in runs)) == [True] * 5
        assert await replays(engine, runs[0])


@pytest.mark.parametrize("hung", [8, 20])
async def test_functions_that_hang_without_a_limit_do_not_stop_the_others(tmp_path, gate, hung):
    engine = make(tmp_path, flow("hang", "{kind: hang}"))
    begun = []

    @engine.tool("hang")
    def hang() -> None:
        begun.append(1)
        gate.wait(60)

    engine.deploy(str(tmp_path))
    async with engine:
        runs = [await engine.start("hang") for _ in range(hung)]
        await until(lambda: len(begun) == hung)
        for _ in range(3):
            await (await engine.start("fine")).result(SOON_S)
        gate.set()
        for run in runs:
            await run.result(SOON_S)


TIMED = {
    "def": "{kind: slow_def, timeout: 0.2}",
    "def, in words": "{kind: slow_def, timeout: 200ms}",
    "def, under spec": "{kind: slow_def, spec: {timeout: 0.2}}",
    "async def": "{kind: slow_async, timeout: 0.2}",
    "async def, under spec": "{kind: slow_async, spec: {timeout: 0.2}}",
    "async def that will not end": "{kind: stubborn, timeout: 0.2}",
    "callable": "{kind: python, callable: slow_callable, timeout: 0.2}",
}


@pytest.mark.parametrize("way", TIMED)
async def test_the_time_limit_of_a_task_holds_for_registered_functions(tmp_path, gate, way):
    engine = make(tmp_path, flow("timed", TIMED[way]))

    @engine.tool("slow_def")
    def slow_def() -> None:
        gate.wait(60)

    @engine.tool("slow_async")
    async def slow_async() -> None:
        await asyncio.sleep(60)

    @engine.tool("stubborn")
    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    engine.tools.function("slow_callable")(slow_def)
    engine.deploy(str(tmp_path))
    async with engine:
        run = await engine.start("timed")
        with pytest.raises(RunFailed) as failed:
            await run.result(SOON_S)
        assert "not done after 0.2 s" in str(failed.value)
        await (await engine.start("fine")).result(SOON_S)
        assert await replays(engine, run)
        gate.set()


async def test_functions_that_ran_out_of_time_take_no_place_in_the_lane(tmp_path, gate):
    engine = make(tmp_path, flow("hang", "{kind: hang, timeout: 0.1}"), threads=2, concurrency=2)

    @engine.tool("hang")
    def hang() -> None:
        gate.wait(60)

    engine.deploy(str(tmp_path))
    async with engine:
        for run in [await engine.start("hang") for _ in range(12)]:
            with pytest.raises(RunFailed):
                await run.result(SOON_S)
        await (await engine.start("fine")).result(SOON_S)


async def test_a_call_of_a_process_that_ran_out_of_time_frees_its_thread(tmp_path, gate):
    text = call("timed", "transport: hang, payload: {}, timeout: 100ms")
    engine = make(tmp_path, text, threads=1, concurrency=1)

    @engine.transport("hang")
    def hang(payload: Any) -> None:
        gate.wait(60)

    engine.deploy(str(tmp_path))
    async with engine:
        for run in [await engine.start("timed") for _ in range(4)]:
            assert (await fails(run))["code"] == "TIMEOUT"
        await (await engine.start("fine")).result(SOON_S)


async def test_a_cancelled_run_frees_the_thread_of_its_function(tmp_path, gate):
    engine = make(tmp_path, flow("hang", "{kind: hang}"), threads=1, concurrency=1)
    begun = threading.Event()

    @engine.tool("hang")
    def hang() -> None:
        begun.set()
        gate.wait(60)

    engine.deploy(str(tmp_path))
    async with engine:
        run = await engine.start("hang")
        await until(begun.is_set)
        await engine.cancel(run.id)
        await (await engine.start("fine")).result(SOON_S)


@pytest.mark.parametrize("lane", ["functions", "coroutines"])
async def test_a_lane_that_is_full_of_hung_work_says_so(tmp_path, gate, lane, caplog):
    kind = "hang" if lane == "functions" else "ahang"
    opened = asyncio.Event()
    engine = make(tmp_path, flow("hang", f"{{kind: {kind}}}"), threads=2, concurrency=2)
    engine.worker.stalled_s = 0.2

    @engine.tool("hang")
    def hang() -> None:
        gate.wait(60)

    @engine.tool("ahang")
    async def ahang() -> None:
        await opened.wait()

    engine.deploy(str(tmp_path))
    caplog.set_level(logging.WARNING, "treadle.worker")
    async with engine:
        # Which lane is whose is known by then: what comes before that waits in the one of coroutines.
        await (await engine.start("fine")).result(SOON_S)
        runs = [await engine.start("hang") for _ in range(3)]
        await until(lambda: f"all 2 places for {lane} are taken" in caplog.text)
        assert runs[0].id in caplog.text
        async for event in runs[0].events():
            if event["type"] == "work.stalled":
                break
        gate.set()
        opened.set()
        for run in runs:
            await run.result(SOON_S)


async def test_a_plain_function_in_a_step_that_also_waits_does_not_block_the_loop(tmp_path, gate):
    text = flow("mixed", "[{name: first, kind: shell, cmd: 'true'}, {name: second, kind: slow}]")
    engine = make(tmp_path, text)
    begun = threading.Event()

    @engine.tool("slow")
    def slow() -> int:
        begun.set()
        gate.wait(60)
        return 1

    engine.deploy(str(tmp_path))
    async with engine:
        run = await engine.start("mixed")
        await until(begun.is_set)
        beats = 0
        for _ in range(20):
            await asyncio.sleep(0)
            beats += 1
        assert beats == 20
        gate.set()
        await run.result(SOON_S)


async def test_an_engine_that_is_opened_again_works_again(tmp_path):
    engine = make(tmp_path)
    engine.deploy(str(tmp_path))
    for _ in range(3):
        async with engine:
            await (await engine.start("fine")).result(SOON_S)


# --- exceptions -----------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit(3)


class Bare(BaseException):
    """Not even an Exception."""


def _raise(error: BaseException) -> Any:
    raise error


AWFUL: dict[str, Callable[[], Any]] = {
    "exit with half a character": lambda: sys.exit("cannot read caf\udce9.csv"),
    "half a character": lambda: _raise(ValueError("caf\udce9.csv")),
    "no words": lambda: _raise(Unspeakable()),
    "words that exit": lambda: _raise(Exits()),
    "bare": lambda: _raise(Bare("bare")),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "generator exit": lambda: _raise(GeneratorExit()),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "stop": lambda: _raise(StopIteration(1)),
    "long": lambda: _raise(ValueError("x" * 5_000_000)),
    "half a character in an argument": lambda: _raise(KeyError("caf\udce9")),
}


@pytest.mark.parametrize("dialect", ["playbook", "process"])
@pytest.mark.parametrize("how", ["def", "async def"])
@pytest.mark.parametrize("what", AWFUL)
async def test_whatever_a_function_raises_is_an_error_and_costs_no_thread(tmp_path, what, how, dialect):
    text = flow("bad", "{kind: bad}") if dialect == "playbook" else call("bad", "transport: bad, payload: {}")
    engine = make(tmp_path, text, threads=1, concurrency=1)

    def bad(payload: Any = None) -> Any:
        return AWFUL[what]()

    async def abad(payload: Any = None) -> Any:
        return AWFUL[what]()

    function = bad if how == "def" else abad
    engine.transport("bad")(function) if dialect == "process" else engine.tool("bad")(function)
    engine.deploy(str(tmp_path))
    async with engine:
        for _ in range(2):
            run = await engine.start("bad")
            assert len(str(await fails(run))) < 20_000
            assert await replays(engine, run)
        await (await engine.start("fine")).result(SOON_S)
