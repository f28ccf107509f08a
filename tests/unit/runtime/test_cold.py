"""Runs that are not in memory are read together: a handful of statements, however many they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from treadle.kernel.limits import Limits
from treadle.kernel.model import Cancel, Retry, Signal
from treadle.lang.definition import Definition
from treadle.runtime.commands import CheckpointSaved
from treadle.runtime.deploys import row_of
from treadle.runtime.hot import BlobCache, load_state
from treadle.runtime.registry import Registry, machines_of
from treadle.store.rows import Batch
from treadle.testing.sim.drill_machine import DrillMachine

from .test_core import Bench, awaits, work


@contextmanager
def questions(bench: Bench) -> Iterator[list[str]]:
    """What the store is asked."""
    asked: list[str] = []
    connection: sqlite3.Connection = bench.real._connection

    def heard(statement: str) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            asked.append(statement)

    connection.set_trace_callback(heard)
    yield asked
    connection.set_trace_callback(None)


def taken_over(count: int) -> int:
    """How many questions a core asks that takes over so many open runs."""
    bench = Bench()
    for number in range(count):
        bench.start(f"run-{number}", [work(number), work(number)], [awaits()])
    bench.settle()
    again = bench.reborn()
    with questions(again) as asked:
        again.settle()
    assert sorted(w.run for w in again.works) == sorted(f"run-{n}" for n in range(count))
    return len(asked)


def received(count: int) -> int:
    """How many questions it asks when work of so many cold runs is done at once."""
    bench = Bench()
    for number in range(count):
        bench.start(f"run-{number}", [work(number), work(number)])
    bench.settle()
    again = bench.reborn().settle()
    assert len(again.core.hot) == 0, "open work is found without loading a run"
    with questions(again) as asked:
        again.finish()
        again.core.turn()
    assert len(again.core.hot) == count
    again.works = again.works[count:]
    again.finish()
    again.settle()
    assert {again.status(f"run-{n}") for n in range(count)} == {"completed"}
    return len(asked)


def started(count: int) -> int:
    """How many questions it asks for so many runs that are new."""
    bench = Bench().settle()
    with questions(bench) as asked:
        for number in range(count):
            bench.start(f"run-{number}", [work(number)])
        bench.core.turn()
    assert len(bench.works) == count
    return len(asked)


def begotten(count: int) -> int:
    """How many questions it asks for so many children, which all go by one name."""
    bench = Bench().settle()
    child = {"do": "child", "program": {"lanes": []}}
    for number in range(0, count, 10):
        bench.start(f"parent-{number}", *([child] for _ in range(10)))
    with questions(bench) as asked:
        bench.core.turn()
    assert {bench.status(f"parent-{number}") for number in range(0, count, 10)} == {"completed"}
    return len(asked)


@pytest.mark.parametrize("asked_for", [taken_over, received, started, begotten])
def test_many_cold_runs_cost_no_more_questions_than_a_few(asked_for: Callable[[int], int]) -> None:
    few, many = asked_for(10), asked_for(90)
    # Numbers of new runs come in blocks.
    assert many <= few + 1, "a question for each run, or for some"


def test_a_run_that_is_read_with_others_is_the_same_run() -> None:
    """Snapshots, numbers of events, checkpoints: as if it had been read by itself."""
    bench = Bench(limits=Limits(snapshot_tail_records=2))
    for number in range(6):
        bench.start(f"run-{number}", [work(number), work(number), work(number)], [awaits()])
    bench.settle()
    for _ in range(2):
        done, bench.works = bench.works, []
        bench.finish(*done)
        bench.settle()
    for one in bench.works[:2]:
        bench.core.submit(CheckpointSaved(one.run, one.intent.id, {"mark": one.run}, [], {}, None))
    bench.settle()
    alone, together = bench.reborn(limits=Limits(batch_records=1)), bench.reborn()
    loaded = {f"run-{n}": alone.core.hot.get(f"run-{n}") for n in range(6)}
    together.settle()
    for number in range(6):
        together.core.submit(together.item(f"run-{number}", Signal(name="unheard"), ack=f"told {number}"))
    with questions(together) as asked:
        together.core.turn()
    assert not any("FROM journal WHERE run = ?" in statement for statement in asked), "none by itself"
    for id, expected in loaded.items():
        hot = together.core.hot.peek(id)
        assert expected is not None
        assert hot is not None
        assert hot.checkpoints == expected.checkpoints
        assert hot.event_no > expected.event_no
        assert hot.state.state == expected.state.state
        assert hot.state.seq == expected.state.seq + 1
        assert [i.id for i in hot.state.open.values()] == [i.id for i in expected.state.open.values()]


@pytest.mark.parametrize("records", [1, 100], ids=["from its snapshot", "from its first record"])
def test_work_that_a_crash_left_open_is_handed_out_with_what_its_run_was_started_with(records: int) -> None:
    bench = Bench(limits=Limits(snapshot_tail_records=records))
    for number in range(3):
        lanes = ([work(number), work(-number)], [work(10 + number)], [work(20 + number)])
        bench.start(f"run-{number}", *lanes, options={"base": f"/home/{number}"})
    bench.settle()
    done, bench.works = bench.works[::3], bench.works
    bench.finish(*done)
    bench.settle()
    left = [(one.run, one.intent, one.options) for one in bench.works if one not in done]
    again = bench.reborn().settle()
    found = [(one.run, one.intent, one.options) for one in again.works]
    assert sorted(found, key=str) == sorted(left, key=str)
    assert {run: options for run, _, options in found} == {
        f"run-{number}": {"base": f"/home/{number}"} for number in range(3)
    }


def test_damage_of_one_run_is_told_of_that_run_and_the_others_go_on() -> None:
    bench = Bench(limits=Limits(snapshot_tail_records=1))
    for number in range(4):
        bench.start(f"run-{number}", [work(number), work(number)])
    bench.settle()
    done, bench.works = bench.works, []
    bench.finish(*done)
    bench.settle()
    row = bench.real.run("run-2")
    assert row is not None
    bench.real._connection.execute("UPDATE snapshots SET body = x'00' WHERE run = ?", (row.no,))
    again = bench.reborn().settle()
    assert {w.run for w in again.works} == {"run-0", "run-1", "run-3"}
    assert [line["run"] for line in again.real.diagnostics() if line["code"] == "run.unreadable"] == ["run-2"]
    again.finish()
    again.settle()
    assert {again.status(f"run-{n}") for n in (0, 1, 3)} == {"completed"}
    again.core.submit(again.item("run-2", Cancel(reason="damaged"), ack="ended"))
    again.settle()
    assert again.status("run-2") == "cancelled"


def test_large_runs_are_read_one_by_one_and_no_more_often() -> None:
    """What is too large to be read with others is not asked for with others again and again."""
    bench = Bench(limits=Limits(snapshot_tail_records=1))
    for number in range(12):
        bench.start(f"run-{number}", [work("x" * 60_000), *(work(f"{n}" * 60_000) for n in range(6))])
    bench.settle()
    done, bench.works = bench.works, []
    bench.finish(*done)
    bench.settle()
    again = bench.reborn().settle()
    with questions(again) as asked:
        again.finish()
        again.core.turn()
    assert len(again.core.hot) == 12
    assert len([one for one in asked if "FROM snapshots s" in one]) == 1


def test_a_run_that_moved_to_another_version_is_decided_again_as_it_was() -> None:
    """Its earlier snapshots go by the version that it had then."""
    bench = Bench(limits=Limits(snapshot_tail_records=1))
    mended = Definition("drill", "drill", "1.1.0", {"drill": True, "mark": 1})
    bench.real.commit(Batch(definitions=[row_of(mended)]))
    bench.start("moved", [work(1), {"do": "fail"}, work(2)])
    bench.settle().finish()
    bench.settle()
    assert bench.status("moved") == "failed"
    bench.core.submit(bench.item("moved", Retry(definition=mended.digest), ack="retry"))
    bench.settle()
    row = bench.real.run("moved")
    assert row is not None
    assert row.version == "1.1.0"
    registry = Registry(machines_of({"drill": DrillMachine()}), bench.real)
    again = load_state(row, bench.real, registry, BlobCache(bench.real), genesis=True)
    assert again.definition == mended.digest
