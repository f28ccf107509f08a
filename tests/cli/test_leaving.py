"""A process that is done finishes what it has in hand for the runs of others, and only that."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.command import Session
from treadle.cli.output import Output
from treadle.engine import Engine
from treadle.testing import toy
from treadle.work.job import Done, Job

DEADLINE_S = 30.0


class Calls:
    """Work that must not be done twice, and ends when the test says so."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.begun = asyncio.Event()
        self.ends = asyncio.Event()

    async def perform(self, job: Job) -> Done:
        self.made.append(job.intent.id)
        self.begun.set()
        await self.ends.wait()
        return Done(value="done")


def make_engine(path: Path, calls: Calls) -> Engine:
    engine = Engine(f"sqlite:///{path}")
    engine.dialects["toy"] = toy.ToyDialect()
    engine.worker.register("work", calls.perform)
    engine.deploy(toy.TOY)
    return engine


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(f"sqlite:///{tmp_path / 't.db'}", Output(as_json=True))


async def begin_to_leave(
    session: Session, engine: Engine, calls: Calls, said: Callable[[], str]
) -> asyncio.Task[None]:
    async def whole() -> None:
        async with session.started(engine):
            await engine.start("toy", {"do": ["work", "work"]}, id="other")
            await calls.begun.wait()

    leaving = asyncio.ensure_future(whole())
    heard = ""
    async with asyncio.timeout(DEADLINE_S):
        while "other (work" not in heard:
            heard += said()
            assert not leaving.done()
            await asyncio.sleep(0)
    return leaving


async def test_what_is_in_hand_is_finished_and_nothing_new_begun(
    tmp_path: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = Calls()
    engine = make_engine(tmp_path / "t.db", calls)
    leaving = await begin_to_leave(session, engine, calls, lambda: capsys.readouterr().err)
    calls.ends.set()
    async with asyncio.timeout(DEADLINE_S):
        await leaving
    assert len(calls.made) == 1, "the next work of that run is for whoever comes next"
    async with make_engine(tmp_path / "t.db", calls) as after:
        assert await (await after.run("other")).result(timeout=DEADLINE_S) == ["done", "done"]
    assert len(calls.made) == len(set(calls.made)) == 2, "nothing was done twice"


async def test_ctrl_c_leaves_at_once(
    tmp_path: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = Calls()
    engine = make_engine(tmp_path / "t.db", calls)
    leaving = await begin_to_leave(session, engine, calls, lambda: capsys.readouterr().err)
    leaving.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await leaving  # not cancelled: what the command was for is done


async def test_no_longer_than_the_limit(
    tmp_path: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.leave_s = 0
    calls = Calls()
    async with asyncio.timeout(DEADLINE_S):
        async with session.started(make_engine(tmp_path / "t.db", calls)) as engine:
            await engine.start("toy", {"do": ["work"]}, id="other")
            await calls.begun.wait()
    assert "not finished in time" in capsys.readouterr().err


async def test_who_has_nothing_in_hand_says_nothing(
    tmp_path: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = Calls()
    async with session.started(make_engine(tmp_path / "t.db", calls)) as engine:
        await engine.start("toy", {"do": ["signal:go"]}, id="other")
    assert capsys.readouterr().err == ""


async def test_an_error_waits_for_nobody(tmp_path: Path, session: Session) -> None:
    calls = Calls()

    async def whole() -> Any:
        async with session.started(make_engine(tmp_path / "t.db", calls)) as engine:
            await engine.start("toy", {"do": ["work"]}, id="other")
            await calls.begun.wait()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await asyncio.wait_for(whole(), DEADLINE_S)


def test_ctrl_c_twice_ends_the_process_without_a_traceback(tmp_path: Path) -> None:
    flow = "workflow: [{step: a, tool: {kind: shell, command: sleep 60}}]\n"
    (tmp_path / "flow.yaml").write_text(flow)
    run = [sys.executable, "-m", "treadle.cli", "run", "flow.yaml", "--id", "r"]
    with subprocess.Popen(run, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert "a started" in told
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 130
    assert "treadle resume r" in told
    assert "Traceback" not in told
