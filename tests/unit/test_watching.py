"""Observers get each event once and in order, whatever the news that reach them leave out or repeat."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treadle import Engine
from treadle.host.news import Watching, outcome
from treadle.host.readers import Readers
from treadle.kernel.errors import RunFailed, StoreBusy
from treadle.runs import Run
from treadle.runtime.ports import News
from treadle.store.marks import MovedRun
from treadle.store.rows import Batch
from treadle.store.sql import SqlStore
from treadle.testing import assert_replays


class Stored:
    """A run of `last` events, as the store has them."""

    def __init__(self, last: int) -> None:
        self.last = last

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        return [{"seq": seq, "record": seq} for seq in range(max(after + 1, record), self.last + 1)]

    async def runs_beyond(self, event_no: int) -> list[str]:
        return ["r"] if self.last > event_no else []

    core = None
    is_told = True
    shares = False

    async def moved_since(self, since: Any) -> Any:
        raise AssertionError("who is told does not look")

    def moved_now(self, limit_s: float) -> Any:
        raise AssertionError("who is told does not look")


def news(*seqs: int, ended: bool = False, no: int = 1) -> News:
    return News(
        "r", "completed" if ended else "running", ended, [{"seq": seq, "record": seq} for seq in seqs], no
    )


def watching_of(stored: Stored, **more: float) -> Watching:
    return Watching(stored, stored, lambda: None, **more)


async def told(*found: News, after: Any = 0, last: int = 0) -> list[int]:
    seen: list[int] = []
    watching = watching_of(
        Stored(last or max((event["seq"] for item in found for event in item.events), default=0))
    )
    watching.observe(lambda event: seen.append(event["seq"]), after=after)
    if last:
        await watching.begin()
        await watching.drain()
    for item in found:
        watching.tell([item])
        await watching.drain()
    return seen


async def test_the_first_news_is_completed_from_the_store() -> None:
    assert await told(news(4, 5), news(6)) == [1, 2, 3, 4, 5, 6]
    assert await told(news(4, 5), after=2) == [3, 4, 5]
    assert await told(news(2, 3), after=2) == [3]


async def test_news_without_events_do_not_hide_a_gap() -> None:
    assert await told(news(), news(2, 3)) == [1, 2, 3]


async def test_who_comes_while_a_run_ends_misses_nothing_of_it() -> None:
    """Nobody wanted its events when its end was decided, so its news carry none."""
    assert await told(news(ended=True), last=3) == [1, 2, 3]
    assert await told(news(1, 2), news(ended=True), last=4) == [1, 2, 3, 4]
    assert await told(news(1, 2, 3, ended=True), news(ended=True), last=3) == [1, 2, 3]


def test_who_only_waits_for_an_end_is_told_of_it_without_its_events() -> None:
    watching = watching_of(Stored(0))
    assert not watching.audience.anybody
    with watching.watch("r", end=True):
        assert watching.audience.anybody
        assert watching.wants("r", True)
        assert not watching.wants("r", False)
        assert not watching.hears("r", True)
        with watching.watch("r"):
            assert watching.hears("r", False)
        assert not watching.hears("r", False)
    assert not watching.wants("r", True)
    assert not watching.audience.anybody
    watching.observe(lambda event: None, after=0)
    assert watching.hears("r", True)
    with watching.watch("r"):
        assert watching.audience.anybody
    assert watching.audience.anybody, "an observer stays"


async def test_a_gap_later_on_is_filled_too() -> None:
    assert await told(news(1), news(3)) == [1, 2, 3]


async def test_what_comes_after_the_end_does_not_repeat_the_run() -> None:
    assert await told(news(1, 2), news(3, ended=True), news(4, ended=True)) == [1, 2, 3, 4]


async def test_another_run_with_the_id_of_one_that_is_gone_is_told_from_its_beginning() -> None:
    assert await told(news(1, 2, ended=True), news(1, no=2), news(2, no=2)) == [1, 2, 1, 2]
    assert await told(news(5, ended=True), news(1, 2, ended=True, no=2), after=3, last=5) == [4, 5, 1, 2]


async def test_who_comes_back_is_told_what_was_committed_and_not_delivered() -> None:
    assert await told(after=3, last=5) == [4, 5]
    assert await told(news(5, 6), after=3, last=6) == [4, 5, 6]
    assert await told(after={"r": 4}, last=5) == [5]
    assert await told(after={"another": 4}, last=3) == [1, 2, 3]
    assert await told(after={}, last=2) == [1, 2]
    assert await told(after=5, last=5) == []


class Busy(Stored):
    """It does not answer at first."""

    asked = 0

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        self.asked += 1
        if self.asked == 1:
            raise StoreBusy()
        return await super().events_after(run, after, record)


async def test_an_observer_misses_nothing_while_the_store_does_not_answer() -> None:
    """What it misses last of all nothing would bring back."""
    seen: list[int] = []
    watching = watching_of(Busy(3))
    watching.observe(lambda event: seen.append(event["seq"]), after=0)
    watching.tell([news(3, ended=True)])
    await watching.drain()
    assert seen == [1, 2, 3]


class Elsewhere(Stored):
    """A run that another process decides. Its events are numbered through, as the records of a journal."""

    is_told = False

    def __init__(self, answers: bool) -> None:
        super().__init__(0)
        self._answers = answers

    async def moved_since(self, since: Any) -> Any:
        there = (self.last, 0)
        return there, [] if since in (there, (-1, -1)) else [MovedRun("r", 1, "running", new=since[0] == 0)]

    def moved_now(self, limit_s: float) -> tuple[int, int]:
        if not self._answers:
            raise TimeoutError
        return self.last, 0


@pytest.mark.parametrize("answers", [True, False], ids=["the store answers", "it does not in time"])
async def test_an_observer_is_told_what_others_decide_as_soon_as_it_has_come(answers: bool) -> None:
    seen: list[int] = []
    stored = Elsewhere(answers)
    watching = watching_of(stored)
    await watching.begin()
    watching.observe(lambda event: seen.append(event["seq"]), after=0)
    stored.last = 2  # before the loop has come to it
    if not answers:
        await asyncio.sleep(0.01)  # it has looked, and goes on from there
        stored.last = 3
    async with asyncio.timeout(10):
        while not seen:  # noqa: ASYNC110 (what is awaited has no event)
            await asyncio.sleep(0.01)
    await watching.end()
    await watching.drain()
    watching.close(None)
    assert seen == ([1, 2] if answers else [1, 2, 3])


async def test_after_does_not_speak_of_runs_that_begin_later() -> None:
    assert await told(news(1, 2), news(3), after=40) == [1, 2, 3]


async def test_an_observer_may_raise_anything() -> None:
    seen: list[int] = []

    def leaves(event: dict[str, Any]) -> None:
        raise SystemExit(3)

    async def cancelled(event: dict[str, Any]) -> None:
        seen.append(event["seq"])
        task = asyncio.ensure_future(asyncio.sleep(9))
        task.cancel()
        await task

    watching = watching_of(Stored(0))
    watching.observe(leaves, after=0)
    watching.observe(cancelled, after=0)
    watching.tell([news(1, 2), news(3)])
    await watching.drain()
    assert seen == [1, 2, 3]


async def test_thousands_who_wait_for_runs_that_are_not_in_memory_do_not_ask_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits.yaml").write_text("dialect: process\nname: waits\nsteps: [{await: {signal: go}}]\n")
    asked = 0
    answer = Readers._answer

    def counted(self: Readers, question: Any) -> Any:
        nonlocal asked
        asked += 1
        return answer(self, question)

    async with Engine(f"sqlite:///{tmp_path / 't.db'}", hot_runs=1) as engine:
        engine.deploy(tmp_path / "waits.yaml")
        started = [await engine.start("waits", None, id=f"r{number}") for number in range(20)]
        runs = [Run(engine, run.id, poll_s=0.001) for run in started]
        monkeypatch.setattr(Readers, "_answer", counted)
        waiting = [asyncio.ensure_future(run.result(60)) for run in runs]
        await asyncio.sleep(0.2)
        for run in runs:
            await engine.signal(run.id, "go")
        await asyncio.gather(*waiting)
        assert asked <= 2 * len(runs)
        monkeypatch.undo()
        await assert_replays(engine)


async def test_who_waits_for_as_long_as_it_takes_is_reminded_though_nobody_tells() -> None:
    watching = watching_of(Stored(0), remind_s=0.02)

    async def look_twice(run: str) -> None:
        with watching.watch(run, end=True) as watch:
            await watch.changed(None)
            await watch.changed(None)

    async with asyncio.timeout(30):
        await asyncio.gather(*(look_twice(f"run-{number}") for number in range(25)))
    timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    watching.close(None)
    await asyncio.sleep(0)
    assert len(timers) <= 2, "one for all"


async def test_nobody_is_reminded_of_an_engine_that_is_closed() -> None:
    watching = watching_of(Stored(0), remind_s=0.0)
    with watching.watch("run", end=True) as watch:
        waiting = asyncio.ensure_future(watch.changed(None))
        await asyncio.sleep(0)
        watching.close(EOFError("closed"))
        with pytest.raises(EOFError):
            await waiting


FAILS_ONCE = """
metadata: {name: fails}
workflow:
  - {step: try, tool: {kind: once}}
"""


async def test_the_result_of_a_run_that_has_ended_comes_from_memory_and_is_that_of_its_last_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails.yaml").write_text(FAILS_ONCE)
    may, called = asyncio.Event(), 0

    async def once() -> dict[str, int]:
        nonlocal called
        called += 1
        if called == 1:
            raise ValueError("not yet")
        await may.wait()
        return {"n": 7}

    async with Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        engine.tool("once")(once)
        engine.deploy(tmp_path / "fails.yaml")
        run = await engine.start("fails", None, id="r")
        core = engine._bridge.seat.core
        assert core is not None
        with pytest.raises(RunFailed):
            await run.result(60)
        ended = outcome(core, "r")
        assert ended is not None
        assert ended["status"] == "failed"
        await engine.retry("r")
        assert outcome(core, "r") is None, "it goes on"
        may.set()
        given = await run.result(60)

        def read(self: Readers, question: Any) -> Any:
            raise AssertionError("the store was asked")

        with monkeypatch.context() as patched:
            patched.setattr(Readers, "_answer", read)
            assert await run.result(60) == given
        await assert_replays(engine)


async def test_who_asks_while_an_end_is_made_durable_is_told_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits.yaml").write_text(
        "dialect: process\nname: waits\nsteps: [{await: {signal: go}}, {complete: 7}]\n"
    )
    ending, may = threading.Event(), threading.Event()
    commit = SqlStore.commit

    def slow(self: SqlStore, batch: Batch) -> None:
        if any(run.status == "completed" for run in batch.runs_changed.values()):
            ending.set()
            assert may.wait(60)
        commit(self, batch)

    def read(self: Readers, question: Any) -> Any:
        raise AssertionError("the store was asked")

    async with Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        engine.deploy(tmp_path / "waits.yaml")
        run = await engine.start("waits", None)
        with monkeypatch.context() as patched:
            patched.setattr(SqlStore, "commit", slow)
            sent = asyncio.ensure_future(engine.signal(run.id, "go"))
            assert await asyncio.to_thread(ending.wait, 60)
            patched.setattr(Readers, "_answer", read)
            waiting = asyncio.ensure_future(run.result(60))
            await asyncio.sleep(0)
            may.set()
            assert await waiting == 7
        await sent
        await assert_replays(engine)


def test_an_end_in_memory_counts_once_its_commit_is_durable() -> None:
    state = SimpleNamespace(seq=4, status="completed", result={"n": 1}, error=None)
    hot = SimpleNamespace(state=state, rested=0)
    core: Any = SimpleNamespace(hot=SimpleNamespace(peek=lambda run: hot))
    assert outcome(core, "r") is None, "decided, and not durable"
    hot.rested = 4
    assert outcome(core, "r") == {"status": "completed", "result": {"n": 1}, "error": None}
    state.seq = 5
    assert outcome(core, "r") is None, "an earlier end was durable; this one is not yet"
