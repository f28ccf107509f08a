"""The synchronous engine: the same engine, made to wait."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

import treadle
from treadle import sync
from treadle.kernel.errors import EngineStopped, RunNotFound, StoreUnavailable, Unsupported
from treadle.testing import toy


def open_engine(store: str = "memory:") -> sync.Engine:
    engine = sync.Engine(store)
    toy.install(engine.asynchronous)
    return engine


def test_a_run_goes_from_start_to_result_without_await() -> None:
    with open_engine() as engine:
        run = engine.start(toy.TOY, {"do": [["work", 2]]}, id="one")
        assert run.id == "one"
        assert run.result(timeout=10) == ["worked", "worked"]
        assert run.show()["status"] == "completed"
        assert [event["type"] for event in run.events()][-1] == "toy.done"
        assert engine.start(toy.TOY, {"do": [["work", 2]]}, id="one").existing
        assert engine.replay("one")["equal"]


def test_a_waiting_run_is_signalled_and_survives_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    with open_engine(store) as engine:
        engine.start(toy.TOY, {"do": ["signal:go"]}, id="w")
    with open_engine(store) as engine:
        engine.signal("w", "go", {"by": "ann"})
        assert engine.run("w").result(timeout=10) == [{"by": "ann"}]


def test_events_can_be_left_in_the_middle() -> None:
    with open_engine() as engine:
        run = engine.start(toy.TOY, {"do": ["work", "signal:go"]})
        for event in run.events():
            assert event["seq"] == 1
            break
        engine.signal(run.id, "go")
        run.result(timeout=10)


def test_errors_arrive_as_they_are() -> None:
    with open_engine() as engine, pytest.raises(RunNotFound):
        engine.run("nobody")


def test_a_result_that_does_not_come_in_time_is_a_timeout() -> None:
    with open_engine() as engine:
        run = engine.start(toy.TOY, {"do": ["signal:never"]})
        with pytest.raises(TimeoutError):
            run.result(timeout=0.01)


async def test_it_works_where_a_loop_runs_already() -> None:
    assert asyncio.get_running_loop().is_running()
    with open_engine() as engine:
        assert engine.start(toy.TOY, {"do": ["work"]}).result(timeout=10) == ["worked"]


def test_it_refuses_to_wait_for_itself() -> None:
    with open_engine() as engine:
        seen: list[BaseException] = []

        async def call_back() -> None:
            try:
                engine.list()
            except Unsupported as error:
                seen.append(error)

        assert engine._loop is not None
        engine._loop.wait(call_back())
        assert "engine.asynchronous" in str(seen[0])


def test_outside_of_with_it_says_what_to_do() -> None:
    engine = open_engine()
    with pytest.raises(EngineStopped, match="with"):
        engine.start(toy.TOY, {"do": []})


def test_a_store_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(StoreUnavailable), sync.Engine(f"sqlite:///{tmp_path}/no/such/folder/t.db"):
        raise AssertionError("it opened")
    assert threading.active_count() <= before


def public_methods(cls: type) -> dict[str, Any]:
    return {
        name: value for name, value in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")
    }


# Of use to coroutines only: waiting for news, and handing commands to the core.
# Waking, and what hosts of an engine ask of it: a server, a worker.
ASYNCHRONOUS_ONLY = {
    "watch",
    "ask",
    "look",
    "operate",
    "want",
    "hand_in",
    "vouched",
    "resident_row",
    "unavailable",
    "run_rows",
    "listed",
    "announce",
    "decides",
    "dismiss",
    "homes",
    "members",
    "shard_of",
    "shards_held",
    "teach",
    "traced",
}


@pytest.mark.parametrize("name", ["Engine", "Run"])
def test_nothing_of_the_asynchronous_engine_is_missing(name: str) -> None:
    theirs = public_methods(getattr(treadle, name))
    ours = public_methods(getattr(sync, name))
    assert sorted(theirs.keys() - ASYNCHRONOUS_ONLY - ours.keys()) == [], "add a line to treadle/sync.py"
    assert sorted(ours.keys() - theirs.keys()) == []
    for method, function in ours.items():
        assert not inspect.iscoroutinefunction(function), method
        assert inspect.signature(function) == inspect.signature(theirs[method]), method
