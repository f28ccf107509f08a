"""While a commit is made durable the next events are decided; nothing of them is told before their own commit, and they
fall with the one that they were built on."""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import StoreFull, TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import Receipt, Signal
from treadle.kernel.values import decode
from treadle.runtime.commands import Deliver, FrameSent
from treadle.runtime.core import OVERLAPS_MAX, RETRY_AFTER_NS
from treadle.runtime.staging import Staged
from treadle.store.rows import Batch
from treadle.store.sql import SqlStore

from .test_ahead import Hasty
from .test_cold import questions
from .test_core import Bench, FailingStore, awaits, work


class SlowCommit:
    """Made durable only when somebody waits for it."""

    def __init__(self, store: SlowStore, batch: Batch) -> None:
        self._store = store
        self._batch = batch

    @property
    def done(self) -> bool:
        return False

    def finish(self) -> None:
        self._store.decided.append(self._store.look())
        self._store.commit(self._batch)


class SlowStore(FailingStore):
    """A store that lets its owner go on."""

    overlaps = True

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        # What was seen from outside at the end of each commit, before it was durable.
        self.decided: list[Any] = []
        self.look = lambda: None

    def begin(self, batch: Batch) -> SlowCommit:
        return SlowCommit(self, batch)


def overlapping(*, runs: int = 3) -> tuple[Bench, SlowStore]:
    """Runs that each await a signal, one record to a commit from then on."""
    bench = Bench(limits=Limits(batch_records=1), wrap=SlowStore)
    for number in range(runs):
        bench.start(f"r{number}", [awaits(), work()])
    bench.settle()
    store = bench.store
    assert isinstance(store, SlowStore)
    store.decided.clear()
    store.batches.clear()
    return bench, store


def signal_all(bench: Bench, runs: int = 3) -> None:
    for number in range(runs):
        bench.core.submit(bench.item(f"r{number}", Signal(name="go", data=number), ack=f"go {number}"))


def test_the_next_events_are_decided_while_a_commit_is_made_durable_and_nothing_of_them_is_told() -> None:
    bench, store = overlapping()
    bench.answers.clear()
    bench.works.clear()

    def look() -> tuple[int, list[str], int]:
        return len(bench.core.staging.batch.records), sorted(bench.answers), len(bench.works)

    store.look = look  # type: ignore[assignment]
    signal_all(bench)
    assert bench.core.turn()
    assert store.decided == [(1, [], 0), (1, ["go 0"], 1)], "decided on top, told with its own commit"
    assert [len(batch.records) for batch in store.batches] == [1, 1, 1]
    assert sorted(bench.answers) == ["go 0", "go 1", "go 2"]
    assert len(bench.works) == 3


def test_pure_work_is_begun_however_many_commits_a_turn_overlaps() -> None:
    hasty, runs = Hasty(), OVERLAPS_MAX + 3
    bench = Bench(limits=Limits(batch_records=1), wrap=SlowStore, eager=hasty)
    for number in range(runs):
        bench.start(f"r{number}", [awaits(), work(0)])
    bench.settle()
    signal_all(bench, runs)
    bench.settle()
    assert sorted(begun.run for begun in hasty.begun) == sorted(f"r{number}" for number in range(runs))


def test_a_receipt_that_comes_while_a_commit_is_made_durable_does_not_overtake_the_frame_before_it() -> None:
    bench, store = overlapping()
    bench.start("busy", [work()])
    bench.settle()
    intent = bench.works[-1].intent.id
    begin = store.begin

    def begin_and_hear(batch: Batch) -> SlowCommit:
        if not heard:
            heard.append(intent)
            bench.core.submit(FrameSent("busy", intent, 1, "said", {}))
            bench.core.submit(Deliver("busy", Receipt(intent=intent, value=1)))
        return begin(batch)

    heard: list[str] = []
    store.begin = begin_and_hear  # type: ignore[method-assign]
    signal_all(bench)
    bench.settle()
    assert heard
    assert bench.status("busy") == "completed"
    frames = [told for _, _, told in bench.real.frames(4)]
    assert [decode(told)["type"] for told in frames] == ["said"], (
        "it is not taken for that of work that is over"
    )


def test_a_commit_that_fails_undoes_what_was_decided_on_top_of_it() -> None:
    bench, store = overlapping()
    bench.answers.clear()
    bench.works.clear()
    store.failing = [StoreFull("no room")]
    signal_all(bench)
    bench.core.turn()
    assert list(bench.answers) == ["go 0"], "whose commit failed is told, the others wait"
    assert isinstance(bench.answers["go 0"], TreadleError)
    assert (bench.works, store.batches) == ([], [])
    assert [bench.kinds(f"r{number}") for number in range(3)] == [["started"]] * 3
    bench.time_ns += RETRY_AFTER_NS
    bench.settle()
    assert [bench.kinds(f"r{number}") for number in range(3)] == [
        ["started"],
        ["started", "signal"],
        ["started", "signal"],
    ]
    assert sorted(bench.answers) == ["go 0", "go 1", "go 2"]


def test_a_run_goes_on_from_where_it_was_when_its_second_record_falls_with_the_first() -> None:
    """Both were decided in memory, neither is durable."""
    bench = Bench(limits=Limits(batch_records=1), wrap=SlowStore)
    bench.start("r", [awaits("a"), awaits("b"), work()])
    bench.settle()
    bench.store.failing = [StoreFull("no room")]
    for name in ("a", "b"):
        bench.core.submit(bench.item("r", Signal(name=name, data=name)))
    bench.settle()
    assert bench.kinds("r")[:3] == ["started", "signal", "signal"]
    bench.finish(*bench.works[-1:])
    bench.settle()
    assert bench.status("r") == "completed"


def test_a_message_of_a_commit_that_failed_is_not_delivered_by_the_one_on_top_of_it() -> None:
    """A child that was started by a commit without a place for it is decided in the next one, and falls with it."""
    bench = Bench(limits=Limits(batch_records=1), wrap=SlowStore)
    child = {"do": "child", "program": {"lanes": [[work("c")]]}}
    bench.start("r", [awaits(), child, work()])
    bench.settle()
    bench.store.failing = [StoreFull("no room")]
    bench.core.submit(bench.item("r", Signal(name="go", data=1)))
    bench.core.turn()
    assert [row.id for row in bench.real.runs()] == ["r"], "neither the step nor the child is there"
    bench.time_ns += RETRY_AFTER_NS
    bench.settle()
    assert len(bench.real.runs()) == 2
    for _ in range(3):
        bench.finish(*bench.works)
        bench.works.clear()
        bench.settle()
    assert {row.status for row in bench.real.runs()} == {"completed"}
    assert bench.real.inbox(10) == []


class BriefCommit(SlowCommit):
    """Durable after a while: two events can be decided meanwhile."""

    looks = 0

    @property
    def done(self) -> bool:
        self.looks += 1
        return self.looks > 2


class BriefStore(SlowStore):
    def begin(self, batch: Batch) -> SlowCommit:
        return BriefCommit(self, batch)


def cold_and_signalled(runs: int, hot_runs: int) -> tuple[Bench, list[str]]:
    """Runs that are not in memory get two signals each, many commits of a turn overlap. With what the store was asked."""
    first = Bench()
    for number in range(runs):
        first.start(f"r{number}", [awaits(), awaits(), work()])
    first.settle()
    bench = first.reborn(wrap=BriefStore, limits=Limits(batch_records=4, hot_runs=hot_runs)).settle()
    bench.core.submit(bench.item("nobody", Signal(name="go"), ack="nobody"))
    for said in range(2):
        for number in range(runs):
            bench.core.submit(bench.item(f"r{number}", Signal(name="go", data=said), ack=f"{said} {number}"))
    with questions(bench) as asked:
        bench.settle()
    assert len(bench.answers) == 2 * runs + 1
    return bench, asked


def test_runs_that_were_read_together_are_not_read_again_for_the_next_commit() -> None:
    _, asked = cold_and_signalled(12, hot_runs=100)
    for number in range(12):
        about = [question for question in asked if f"'r{number}'" in question and "FROM runs" in question]
        assert len(about) == 1, f"r{number} is read once"


def test_a_run_that_a_commit_changes_is_read_again_once_it_has_left_memory() -> None:
    """What was read of it before it was changed is of no use any more."""
    bench, _ = cold_and_signalled(12, hot_runs=1)
    for number in range(12):
        assert bench.kinds(f"r{number}") == ["started", "signal", "signal"]
        row = bench.real.run(f"r{number}")
        assert row is not None
        heard = [stored.record()["event"].get("data") for stored in bench.real.journal(row.no, after_seq=1)]
        assert heard == [0, 1]


def test_what_was_read_of_a_run_before_a_commit_changed_it_is_not_passed_on() -> None:
    """However it got into memory: an application's run, for one, is loaded for the events of its cells."""
    staged = Staged(1, taken=[Deliver("changed", None)])
    staged.expected.cold.update({"changed": None, "as it was": None})
    assert staged.unchanged().cold == {"as it was": None}
