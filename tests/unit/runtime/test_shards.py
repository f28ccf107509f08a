"""A core drives the shards that it holds, and nothing else: what it commits, loses, reloads and sends away."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import to_builtins

from treadle.kernel.errors import AppendConflict, OwnershipLost, StoreFull, TreadleError
from treadle.kernel.limits import LIMITS, Limits
from treadle.kernel.model import Patch, Signal, shard_of
from treadle.kernel.values import encode
from treadle.lang.schedules import Schedule, run_id
from treadle.runtime.commands import SCHEDULE, Deliver, Operate, message_from_bytes
from treadle.runtime.core import CONFLICTS_MAX
from treadle.runtime.deploys import row_of
from treadle.runtime.desk import Desk
from treadle.runtime.own_changes import HANDED_ON, OwnChange
from treadle.runtime.ports import Ack
from treadle.runtime.schedules import ScheduleRow
from treadle.runtime.staging import BLOCK
from treadle.store.open import open_sqlite
from treadle.store.rows import GUEST, Batch, VersionRow

from .test_core import DRILL, SECOND, Bench, awaits, work

if TYPE_CHECKING:
    from treadle.runtime.commands import Elsewhere


COUNT = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("treadle.core").disabled = True
    yield
    logging.getLogger("treadle.core").disabled = False


class Sharded:
    """A bench on a store with four shards, and a rival who takes one of them."""

    def __init__(self, folder: Path, *, limits: Limits = LIMITS, elsewhere: Elsewhere | None = None) -> None:
        self.path = folder / "sharded.db"
        store = open_sqlite(self.path)
        store.own()
        store.close()
        self._sql("INSERT INTO shards (shard, epoch) VALUES (1, 0), (2, 0), (3, 0)")
        self.bench = Bench(open_sqlite(self.path), limits=limits, elsewhere=elsewhere)
        version = VersionRow(name="drill", version="1.0.0", digest=DRILL.digest)
        self.bench.real.commit(Batch(definitions=[row_of(DRILL)], versions=[version]))

    def take(self, shard: int) -> None:
        self._sql(f"UPDATE shards SET epoch = epoch + 1 WHERE shard = {shard}")

    def _sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(statement)


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[Sharded]:
    made = Sharded(tmp_path)
    yield made
    made.bench.real.close()


def on(shard: int, prefix: str = "run") -> str:
    """The id of a run that lives on a shard."""
    return next(id for id in (f"{prefix}-{n}" for n in range(1000)) if shard_of(id, COUNT) == shard)


def test_a_commit_names_the_shards_that_it_touches(sharded: Sharded) -> None:
    bench = sharded.bench
    for shard in (1, 3):
        bench.start(on(shard), [awaits()])
    bench.settle()
    assert bench.store.batches[-1].shards == {1, 3}
    bench.core.submit(bench.item("ghost-7", Signal(name="x"), ack="ghost"))
    bench.settle()
    assert bench.store.batches[-1].shards == {shard_of("ghost-7", COUNT)}, "a refusal is a decision too"


def test_a_lost_shard_takes_its_runs_with_it_and_nothing_else(sharded: Sharded) -> None:
    bench = sharded.bench
    gone, mine = on(1), on(2)
    for run in (gone, mine):
        bench.start(run, [awaits(), work()], [{"do": "timer", "ms": 3_600_000}])
    bench.settle()
    sharded.take(1)
    bench.time_ns += 3_700 * 10**9
    for run in (gone, mine):
        bench.core.submit(bench.item(run, Signal(name="go"), ack=run))
    bench.settle()
    assert isinstance(bench.answers[gone], OwnershipLost)
    assert bench.answers[mine]["status"] == "running"
    assert bench.core.hot.peek(gone) is None
    assert [w.run for w in bench.works] == [mine], "nothing is handed out for a run that is not ours"
    bench.finish()
    bench.settle()
    assert bench.status(mine) == "completed"
    assert bench.kinds(gone) == ["started"], "not a record more, not even its timer's"
    bench.core.submit(bench.item(gone, Signal(name="go"), ack="again"))
    bench.settle()
    assert isinstance(bench.answers["again"], OwnershipLost)


def test_without_a_shard_a_core_goes_on_and_decides_nothing(sharded: Sharded) -> None:
    bench = sharded.bench
    bench.start(on(0), [awaits()])
    bench.settle()
    for shard in range(COUNT):
        sharded.take(shard)
    bench.core.submit(bench.item(on(0), Signal(name="go"), ack="late"))
    bench.settle()
    assert isinstance(bench.answers["late"], OwnershipLost)
    assert not bench.core.held
    bench.core.submit(bench.item(on(1), Signal(name="go"), ack="later"))
    bench.settle()
    assert isinstance(bench.answers["later"], OwnershipLost)


def test_a_shard_is_settling_until_the_receipt_of_its_work_is_durable(sharded: Sharded) -> None:
    bench = sharded.bench
    bench.start(on(1), [work()])
    bench.start(on(2), [awaits()])
    bench.settle()
    assert bench.core.settling() == set()
    bench.core.submit(bench.item(on(2), Signal(name="go")))
    bench.finish()
    assert bench.core.settling() == {1}, "what was asked of others goes to whoever has them next"
    bench.settle()
    assert bench.core.settling() == set()


def test_children_are_stepped_in_the_commit_of_their_root(sharded: Sharded) -> None:
    bench = sharded.bench
    bench.start(on(3), [{"do": "child", "program": {"lanes": [[{"do": "child", "program": {"lanes": []}}]]}}])
    bench.settle()
    assert bench.status(on(3)) == "completed"
    assert len(bench.store.batches) == 1
    assert bench.store.batches[0].shards == {3}


def test_a_message_to_a_run_elsewhere_is_a_row_of_the_senders_commit(sharded: Sharded) -> None:
    bench = sharded.bench
    cell, sender, trigger = on(1, "cell"), on(2), on(1)
    for run in (sender, trigger):
        bench.start(run, [awaits(), {"do": "deliver", "cell": cell, "definition": DRILL.digest, "value": 7}])
    bench.settle()
    sharded.take(1)
    bench.core.submit(bench.item(trigger, Signal(name="go"), ack="lost"))
    bench.settle()
    assert isinstance(bench.answers["lost"], OwnershipLost)
    bench.core.submit(bench.item(sender, Signal(name="go"), ack="sent"))
    bench.settle()
    ((key, body),) = bench.real.inbox(10)
    message = message_from_bytes(body, key)
    assert isinstance(message, Deliver)
    assert (message.run, key.partition(":")[0]) == (cell, "deliver")
    assert bench.real.run(cell) is None
    bench.core._intake.look()
    bench.settle()
    assert [key for key, _ in bench.real.inbox(10)] == [key], "whoever holds the shard reads it"


class Others:
    """Those who hold the other shards, for a core that only notes what it would ask of them."""

    asker = "me"

    def __init__(self) -> None:
        self.awaited: list[tuple[str, Ack]] = []
        self.forwarded: list[Deliver | Operate] = []

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        self.awaited += asked

    def forward(self, commands: list[Deliver | Operate]) -> None:
        self.forwarded += commands


def test_open_work_of_a_shard_that_comes_back_is_handed_out_again(tmp_path: Path) -> None:
    """Also when it was handed out, and lost again, while other shards were still looked through."""
    sharded = Sharded(tmp_path, limits=Limits(recover_per_turn=1))
    with closing(sharded.bench.real):
        bench = sharded.bench
        for shard in (1, 2, 3):
            bench.start(on(shard), [work()])
        bench.settle()
        epochs = dict(bench.real.held)
        bench.core.lose([1, 2, 3])
        bench.works.clear()
        bench.core.gain({shard: epochs[shard] for shard in (1, 2, 3)})
        bench.core.turn()
        assert [w.run for w in bench.works] == [on(1)], "the others are still to be looked through"
        bench.core.lose([1])
        bench.works.clear()
        bench.core.gain({1: epochs[1]})
        while bench.core.desk.recovery.left:
            bench.core.turn()
        assert sorted(w.run for w in bench.works) == sorted(on(shard) for shard in (1, 2, 3))


def tell_both(bench: Bench, desk: Desk) -> object:
    """One event for two runs, as an application publishes it."""
    for shard in (2, 1):
        told = bench.item(on(shard), Signal(name="go"), ack=f"told {shard}")
        told.derived, told.message = True, f"both:{shard}"
        desk.post(told)
    return HANDED_ON


def test_who_waits_for_a_message_whose_shard_is_lost_is_answered_by_its_next_owner(tmp_path: Path) -> None:
    others = Others()
    sharded = Sharded(tmp_path, limits=Limits(batch_records=1), elsewhere=others)
    with closing(sharded.bench.real):
        bench = sharded.bench
        for shard in (1, 2):
            bench.start(on(shard), [awaits()])
        bench.settle()
        sharded.take(1)
        bench.core.change(OwnChange(partial(tell_both, bench), None))
        bench.settle()
        assert bench.answers["told 2"]["status"] == "completed", "there was room for one of them"
        assert "told 1" not in bench.answers
        ((key, _),) = bench.real.inbox(10)
        assert [waits for waits, _ in others.awaited] == [key]
        assert key.startswith(f"{GUEST}{others.asker}:"), (
            "so that it is answered with a row, by whoever decides it"
        )
        assert others.forwarded == [], "it is in the inbox already"


def test_an_operation_whose_event_goes_elsewhere_is_performed_there(tmp_path: Path) -> None:
    """Its event is the engine's own, and nobody takes that from a message."""
    others = Others()
    sharded = Sharded(tmp_path, limits=Limits(batch_records=1), elsewhere=others)
    with closing(sharded.bench.real):
        bench = sharded.bench
        for shard in (1, 2):
            bench.start(on(shard), [awaits()])
        bench.settle()
        asked = Operate(on(1), "steer", {}, bench.ack("asked"))

        def perform(desk: Desk) -> object:
            return bench.core.desk.hand_on(asked, Deliver(on(1), Patch(data={}, by="treadle:own")))

        bench.core.submit(bench.item(on(2), Signal(name="go"), ack="first"))
        bench.core.change(OwnChange(perform, None))
        bench.core.turn()
        assert bench.answers.keys() >= {"first"}, "there was room for one of them"
        assert "asked" not in bench.answers
        bench.core.lose([1])
        assert others.forwarded == [asked]


def test_who_waits_here_for_a_message_is_told_once_and_leaves_no_row(tmp_path: Path) -> None:
    sharded = Sharded(tmp_path, limits=Limits(batch_records=1), elsewhere=Others())
    with closing(sharded.bench.real):
        bench = sharded.bench
        for shard in (1, 2):
            bench.start(on(shard), [awaits()])
        bench.settle()
        bench.core.change(OwnChange(partial(tell_both, bench), None))
        bench.settle()
        assert [bench.answers[f"told {shard}"]["status"] for shard in (1, 2)] == ["completed"] * 2
        assert bench.real.inbox(10) == []
        assert bench.real.replies([f"{GUEST}me:both:1"]) == {}


# --- the loser reloads ----------------------------------------------------------------------------------


def test_a_failed_commit_forgets_what_it_touched_and_nothing_else() -> None:
    bench = Bench()
    for run in ("one", "other"):
        bench.start(run, [awaits()])
    bench.settle()
    kept = bench.core.hot.peek("other")
    bench.store.failing = [StoreFull()]
    bench.core.submit(bench.item("one", Signal(name="go"), ack="one"))
    bench.core.turn()
    assert isinstance(bench.answers["one"], StoreFull)
    assert bench.core.hot.peek("one") is None
    assert bench.core.hot.peek("other") is kept is not None


def test_who_loses_an_append_reloads_the_run_and_decides_again() -> None:
    bench = Bench()
    for run in ("one", "other"):
        bench.start(run, [awaits()])
    bench.settle()
    was, kept = bench.core.hot.peek("one"), bench.core.hot.peek("other")
    bench.store.failing = [AppendConflict("journal.run, journal.seq")]
    bench.core.submit(bench.item("one", Signal(name="go", data={"token": 1}), ack="one"))
    bench.settle()
    assert bench.answers["one"]["status"] == "completed", "its caller hears of the second try only"
    assert bench.core.hot.peek("one") is not was
    assert bench.core.hot.peek("other") is kept


def test_a_rivals_record_is_seen_by_who_reloads() -> None:
    """Two cores on one store, without the epoch in between: unique(run, seq) is the last lock."""
    bench = Bench()
    bench.start("run", [awaits("a"), awaits("b")])
    bench.settle()
    epochs = dict(bench.real.held)
    rival = bench.reborn()
    rival.core.submit(rival.item("run", Signal(name="a", data={"token": 1}), ack="rival"))
    rival.settle()
    bench.real._connection.execute("UPDATE shards SET epoch = ?", tuple(epochs.values()))
    bench.real._held = epochs
    bench.core.submit(bench.item("run", Signal(name="b", data={"token": 2}), ack="loser"))
    bench.settle()
    assert rival.answers["rival"]["seq"] == 2
    assert bench.answers["loser"] == {"run": "run", "seq": 3, "status": "completed"}
    assert bench.kinds("run") == ["started", "signal", "signal"]


def test_what_goes_on_being_in_the_way_is_turned_away() -> None:
    bench = Bench()
    bench.start("run", [awaits()])
    bench.settle()
    bench.store.failing = [AppendConflict("a key is taken") for _ in range(CONFLICTS_MAX + 1)]
    bench.core.submit(bench.item("run", Signal(name="go"), ack="signal"))
    bench.settle()
    assert isinstance(bench.answers["signal"], TreadleError)
    assert bench.status("run") == "waiting"
    bench.core.submit(bench.item("run", Signal(name="go"), ack="again"))
    bench.settle()
    assert bench.answers["again"]["status"] == "completed"


# --- numbers ------------------------------------------------------------------------------------------------


def test_numbers_are_taken_in_blocks_and_go_on_after_a_restart() -> None:
    bench = Bench()
    asked: list[int] = []
    reserve = bench.real.reserve
    bench.store.reserve = lambda kind, count: asked.append(count) or reserve(kind, count)  # type: ignore[attr-defined]
    for number in range(BLOCK + 2):
        bench.start(f"run-{number}", [awaits()])
    bench.settle()
    assert asked == [BLOCK, BLOCK]
    again = bench.reborn()
    again.start("late", [awaits()])
    again.settle()
    numbers = [row.no for row in again.real.runs(limit=100)]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) == BLOCK + 3


# --- schedules -----------------------------------------------------------------------------------------------


def schedule(bench: Bench, said: dict[str, Any], **more: Any) -> ScheduleRow:
    """A schedule of drills whose runs live on shard 2, one second from now."""
    tick_ns = bench.time_ns + SECOND
    name = next(name for name in map(str, range(1000)) if shard_of(run_id(name, tick_ns), COUNT) == 2)
    read = Schedule.read({"name": name, "workflow": "drill", "input": {"lanes": []}, **said})
    row = ScheduleRow(schedule=read, **{"next_ns": tick_ns, **more})
    bench.real.commit(Batch(documents=[(SCHEDULE, name, 0, encode(to_builtins(row)))]))
    return row


def test_a_tick_is_not_missed_because_another_shard_came_when_it_was_due(sharded: Sharded) -> None:
    bench = sharded.bench
    row = schedule(bench, {"every": "1h", "catch_up": "none"})
    bench.settle()
    epochs = dict(bench.real.held)
    bench.core.lose([3])
    bench.time_ns += 2 * SECOND
    bench.core.gain({3: epochs[3]})
    bench.settle()
    assert bench.real.run(run_id(row.name, row.next_ns or 0)) is not None


def test_a_tick_that_waits_for_a_run_is_started_although_that_ends_elsewhere(sharded: Sharded) -> None:
    bench = sharded.bench
    before = on(1)
    bench.start(before, [awaits()])
    bench.settle()
    tick_ns = bench.time_ns + SECOND
    row = schedule(
        bench, {"every": "1h", "overlap": "queue"}, next_ns=None, going=[before], waiting=[tick_ns]
    )
    epochs = dict(bench.real.held)
    bench.core.lose([0])
    bench.core.gain({0: epochs[0]})
    bench.settle()
    bench.core.lose([1])
    bench.settle()
    sharded._sql(f"UPDATE runs SET status = 'completed' WHERE id = '{before}'")
    bench.time_ns += 3 * SECOND
    bench.settle()
    assert bench.real.run(run_id(row.name, tick_ns)) is not None
