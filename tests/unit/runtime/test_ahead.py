"""Work that touches nothing outside is begun before its commit; everything else is not."""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import StoreFull
from treadle.kernel.limits import Limits
from treadle.kernel.model import Cancel, Signal
from treadle.runtime.ports import Work
from treadle.store.sql import SqlStore

from .test_core import SECOND, Bench, awaits, work

MS = 10**6


class Hasty:
    """Begins whatever has an even value."""

    def __init__(self) -> None:
        self.begun: list[Work] = []
        self.revoked: list[str] = []

    def is_pure(self, work: Work, definition: Any) -> bool:
        return work.intent.params["value"] % 2 == 0

    def begin(self, works: list[Work]) -> None:
        self.begun += works

    def revoke(self, intents: list[str]) -> None:
        self.revoked += intents


class EagerBench(Bench):
    def __init__(self, store: SqlStore | None = None, **more: Any) -> None:
        self.hasty = Hasty()
        super().__init__(store, eager=self.hasty, **more)

    def chain(self, run: str, *values: int) -> None:
        """Starts a run that does these one after the other, and commits its start."""
        self.start(run, [work(value) for value in values])
        self.core.turn()

    def give(self) -> Work:
        """Hands in the receipt of what was begun last."""
        last = self.hasty.begun[-1]
        self.finish(last)
        self.core.turn()
        return last

    @property
    def commits(self) -> int:
        return len(self.store.batches)


def test_a_chain_of_pure_steps_costs_one_commit() -> None:
    bench = EagerBench()
    bench.chain("run", *range(0, 20, 2))
    assert bench.commits == 1, "whoever starts a run waits for its commit"
    for _ in range(10):
        bench.give()
    assert bench.status("run") == "completed"
    assert bench.commits == 2
    assert bench.kinds("run") == ["started"] + 10 * ["receipt"], "a record for each, as ever"
    assert not bench.works, "nothing was handed out a second time"


def test_the_same_journal_is_written_step_by_step() -> None:
    eager, plain = EagerBench(), Bench()
    eager.chain("run", 0, 2, 4)
    plain.start("run", [work(0), work(2), work(4)])
    plain.core.turn()
    for _ in range(3):
        eager.give()
        plain.finish(plain.works[-1])
        plain.core.turn()
    assert [s.body for s in eager.real.journal(1)] == [s.body for s in plain.real.journal(1)]
    assert eager.commits < len(plain.store.batches)


def test_work_that_touches_the_outside_follows_its_commit() -> None:
    bench = EagerBench()
    bench.chain("run", 0, 1)
    bench.give()
    assert bench.commits == 2, "the commit that opens it waits for nothing"
    assert [w.intent.params["value"] for w in bench.works] == [1]
    assert [w.intent.params["value"] for w in bench.hasty.begun] == [0]


def test_what_has_happened_outside_is_never_held_back() -> None:
    bench = EagerBench()
    bench.chain("run", 1, 0)
    bench.finish(bench.works[0])
    bench.core.turn()
    assert bench.commits == 2, "its receipt is durable at once, although pure work follows"


def test_whoever_waits_for_an_answer_does_not_wait_for_pure_work() -> None:
    bench = EagerBench()
    bench.chain("run", 0, 2)
    bench.start("other", [awaits()])
    bench.core.turn()
    bench.give()
    assert bench.core.held_open
    bench.core.submit(bench.item("other", Signal(name="go"), ack="told"))
    bench.core.turn()
    assert "told" in bench.answers
    assert not bench.core.held_open


def test_a_commit_waits_for_pure_work_only_a_moment() -> None:
    bench = EagerBench(limits=Limits(ahead_ns=10 * MS))
    bench.chain("run", 0, 2, 4)
    bench.give()
    held = bench.commits
    assert bench.core.wait_ns() == 10 * MS
    bench.time_ns += 4 * MS
    assert not bench.core.turn()
    assert bench.core.wait_ns() == 6 * MS
    bench.time_ns += 6 * MS
    assert bench.core.wait_ns() == 0
    assert bench.core.turn()
    assert bench.commits == held + 1
    # The work goes on, and its receipt is the beginning of the next commit.
    bench.give()
    bench.give()
    assert bench.status("run") == "completed"


def test_a_clock_that_is_set_back_holds_no_commit() -> None:
    bench = EagerBench()
    bench.chain("run", 0, 2)
    bench.give()
    bench.time_ns -= 3_600 * SECOND
    assert bench.core.wait_ns() == 0
    assert bench.core.turn()
    assert not bench.core.held_open


def test_a_full_commit_waits_for_nothing() -> None:
    bench = EagerBench(limits=Limits(batch_records=3))
    bench.chain("run", *range(0, 20, 2))
    for _ in range(10):
        bench.give()
    assert [len(batch.records) for batch in bench.store.batches] == [1, 3, 3, 3, 1]


def test_a_commit_that_fails_takes_back_what_was_begun_for_it() -> None:
    bench = EagerBench()
    bench.chain("run", 0, 2, 4)
    bench.give()
    bench.give()
    begun = bench.hasty.begun[-1]
    bench.store.failing.append(StoreFull("no room"))
    bench.time_ns += SECOND
    bench.core.turn()
    assert bench.hasty.revoked == [begun.intent.id]
    assert bench.kinds("run") == ["started"], "nothing of it is durable"
    bench.time_ns += SECOND
    bench.core.turn()
    assert bench.hasty.begun[-1].intent.id == begun.intent.id, "what was decided is decided again"
    bench.give()
    assert bench.status("run") == "completed"
    assert bench.kinds("run") == ["started", "receipt", "receipt", "receipt"]


def test_a_crash_before_the_commit_leaves_no_trace() -> None:
    bench = EagerBench()
    bench.chain("run", 0, 2, 4)
    bench.give()
    bench.give()
    again = EagerBench(bench.real)
    again.time_ns = bench.time_ns
    again.settle()
    assert again.kinds("run") == ["started"]
    assert [w.intent.params["value"] for w in again.works] == [0], "it is done again from what is durable"


def test_a_cancelled_run_ends_while_its_commit_is_held() -> None:
    bench = EagerBench()
    bench.chain("run", 0, 2, 4)
    bench.give()
    begun = bench.hasty.begun[-1]
    bench.core.submit(bench.item("run", Cancel(), ack="cancelled"))
    bench.core.turn()
    assert "cancelled" in bench.answers
    assert begun.intent.id in bench.revoked
    assert bench.status("run") == "cancelled"
