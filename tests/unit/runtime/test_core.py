"""The core by hand: no threads, no event loop, a clock that stands still, a store that fails on demand."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from treadle.kernel.errors import (
    Forbidden,
    JournalCorrupt,
    RunEnded,
    RunExists,
    RunNotFound,
    StoreFull,
    StoreUnavailable,
    TreadleError,
    VersionMismatch,
)
from treadle.kernel.limits import LIMITS, Limits
from treadle.kernel.machine import Machine
from treadle.kernel.model import Cancel, Patch, Receipt, Signal, Started
from treadle.kernel.values import decode, encode
from treadle.lang.definition import Definition
from treadle.runtime import tasks
from treadle.runtime.commands import (
    LATE,
    TASK,
    CheckpointSaved,
    Deliver,
    FrameSent,
    Inspect,
    Operate,
    message_to_bytes,
)
from treadle.runtime.core import RETRY_AFTER_NS, WARN_EVERY, Core
from treadle.runtime.deploys import row_of
from treadle.runtime.desk import Desk, NoOperations, Operations
from treadle.runtime.fetching import Beside, at_once
from treadle.runtime.hot import BlobCache, load_state
from treadle.runtime.meter import CoreMeter
from treadle.runtime.own_changes import HANDED_ON, OwnChange
from treadle.runtime.ports import Ack, Audience, NewRun, News, Work
from treadle.runtime.recovery import OFFER
from treadle.runtime.registry import Registry, machines_of
from treadle.store.open import open_sqlite
from treadle.store.rows import Batch, VersionRow
from treadle.store.sql import SqlStore
from treadle.testing.sim.drill_machine import DrillMachine

if TYPE_CHECKING:
    from treadle.runtime.ahead import Eager
    from treadle.runtime.commands import Elsewhere


DRILL = Definition("drill", "drill", "1.0.0", {"drill": True})
SECOND = 10**9


class FailingStore:
    """The real store, whose next commits or reads may fail."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.failing: list[TreadleError] = []
        self.batches: list[Batch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, batch: Batch) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self._store.commit(batch)
        self.batches.append(batch)


class Bench:
    """A core with everything around it in the test's hands; also its clock and its port."""

    def __init__(
        self,
        store: SqlStore | None = None,
        *,
        limits: Limits = LIMITS,
        machine: DrillMachine | None = None,
        eager: Eager | None = None,
        elsewhere: Elsewhere | None = None,
        wrap: Callable[[SqlStore], FailingStore] = FailingStore,
        machine_of: Callable[[str], Machine] | None = None,
        operations: Operations | None = None,
        beside: Beside = at_once,
    ) -> None:
        fresh = store is None
        self.real = store or open_sqlite(None)
        self.store = wrap(self.real)
        self.time_ns = 1_800_000_000 * SECOND
        self.answers: dict[str, Any] = {}
        self.works: list[Work] = []
        self.revoked: list[str] = []
        self.meter = CoreMeter()
        self.real.own()
        if fresh:
            version = VersionRow(name="drill", version="1.0.0", digest=DRILL.digest)
            self.real.commit(Batch(definitions=[row_of(DRILL)], versions=[version]))
        found = machine_of or machines_of({"drill": machine or DrillMachine()})
        registry = Registry(found, self.real)
        entropy = random.Random(1).randbytes
        self.core = Core(
            self.store,  # type: ignore[arg-type]
            registry,
            self,
            clock=self,
            entropy=entropy,
            operations=operations or NoOperations(),
            limits=limits,
            eager=eager,
            elsewhere=elsewhere,
            meter=self.meter,
            beside=beside,
        )

    def reborn(self, **more: Any) -> Bench:
        """The same database after a crash."""
        bench = Bench(self.real, **{"limits": self.core.limits, **more})
        bench.time_ns = self.time_ns
        return bench

    # --- the clock and the port ---

    def now_ns(self) -> int:
        return self.time_ns

    def answer(self, answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
        for ack, value, error in answers:
            ack(value, error)

    def dispatch(self, works: list[Work]) -> None:
        self.works += works

    def revoke(self, intents: list[str]) -> None:
        self.revoked += intents

    def publish_news(self, news: list[News]) -> None:
        """Nobody watches here."""

    @property
    def audience(self) -> Audience:
        return Audience()

    def wants_news(self, run: str, ended: bool) -> bool:
        return False

    # --- what tests do ---

    def ack(self, name: str) -> Ack:
        def ack(value: Any, error: TreadleError | None) -> None:
            assert name not in self.answers, f"{name} is answered twice"
            self.answers[name] = error or value

        return ack

    def item(self, run: str, event: Any, *, ack: str | None = None, **more: Any) -> Deliver:
        return Deliver(run, event, ack=self.ack(ack) if ack else None, **more)

    def start(
        self,
        run: str,
        *lanes: list[dict[str, Any]],
        ack: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        told = options or {}
        event = Started(definition=DRILL.digest, input={"lanes": list(lanes)}, seed=b"s", options=told)
        create = NewRun("drill", "drill", "1.0.0", DRILL.digest)
        self.core.submit(self.item(run, event, ack=ack or f"start {run}", create=create))

    def settle(self, turns: int = 100) -> Bench:
        for _ in range(turns):
            # Where code was loaded first, the next turn does what needs it.
            if not (self.core.turn() or self.core.turn()):
                break
            self.time_ns += RETRY_AFTER_NS
        return self

    def finish(self, *works: Work) -> None:
        for work in works or tuple(self.works):
            self.core.submit(
                Deliver(work.run, Receipt(intent=work.intent.id, value=work.intent.params["value"]))
            )

    def status(self, run: str) -> str:
        row = self.real.run(run)
        assert row is not None
        return row.status

    def kinds(self, run: str) -> list[str]:
        row = self.real.run(run)
        assert row is not None
        return [stored.record()["kind"] for stored in self.real.journal(row.no)]


def work(value: Any = 1) -> dict[str, Any]:
    return {"do": "work", "value": value}


def awaits(name: str = "go") -> dict[str, Any]:
    return {"do": "signal", "name": name}


# --- turns -----------------------------------------------------------------------------------------------


def test_runs_take_turns_one_event_each() -> None:
    bench = Bench()
    for run in ("busy", "quiet"):
        bench.start(run, [awaits()])
    bench.settle()
    bench.store.batches.clear()
    for number in range(20):
        bench.core.submit(bench.item("busy", Signal(name="other", data=number)))
    bench.core.submit(bench.item("quiet", Signal(name="other")))
    bench.settle()
    order = [bench.real.run_by_no(row[0]) for batch in bench.store.batches for row in batch.records]
    ids = [row.id for row in order if row is not None]
    assert ids.index("quiet") <= 1, "no run delays another by more than one event"
    assert ids.count("busy") == 20


def test_changes_that_wait_for_their_commits_do_not_keep_events_waiting() -> None:
    """As where two schedules catch up with all that they missed: each asks for its next tick as soon as the last one is there."""
    bench = Bench()
    bench.start("run", [awaits()])
    bench.settle()
    bench.store.batches.clear()

    def tick(name: str, number: int, desk: Desk) -> None:
        desk.batch.documents.append((name, str(number), 0, b""))
        if number < 50:
            bench.core.change(OwnChange(partial(tick, name, number + 1)))

    for name in ("one", "other"):
        bench.core.change(OwnChange(partial(tick, name, 0)))
    bench.core.submit(bench.item("run", Signal(name="go"), ack="go"))
    bench.core.turn()
    assert bench.answers["go"]["status"] == "completed"
    bench.settle(turns=200)
    assert len(bench.store.batches) == 2 * 51, "each has a commit"


def test_what_is_ready_together_is_one_commit() -> None:
    bench = Bench()
    for number in range(50):
        bench.start(f"run-{number}", [work()])
    bench.core.turn()
    assert len(bench.store.batches) == 1
    assert len(bench.works) == 50
    assert len(bench.answers) == 50


def test_a_child_that_does_not_wait_runs_within_one_commit() -> None:
    bench = Bench()
    bench.start("parent", [{"do": "child", "program": {"lanes": []}}, work()])
    bench.core.turn()
    assert len(bench.store.batches) == 1
    assert bench.kinds("parent") == ["started", "receipt"]


def test_hot_runs_are_bounded() -> None:
    bench = Bench(limits=Limits(hot_runs=2))
    for number in range(10):
        bench.start(f"run-{number}", [work()])
    bench.settle()
    assert len(bench.core.hot) <= 2
    bench.finish()
    bench.settle()
    assert {bench.status(f"run-{n}") for n in range(10)} == {"completed"}


# --- failed commits --------------------------------------------------------------------------------------


def test_what_the_store_did_not_take_is_not_counted_until_it_does() -> None:
    bench = Bench()
    bench.store.failing = [StoreFull()]
    bench.start("run", [awaits()])
    bench.settle()
    assert (bench.meter.records, sum(bench.meter.runs.values())) == (0, 0)
    assert bench.meter.commits_failed == {"STORE_FULL": 1}
    bench.start("run", [awaits()], ack="again")
    bench.settle()
    assert bench.meter.records == 1
    assert bench.meter.runs == {("drill", "started"): 1}


def test_a_failed_commit_publishes_nothing_and_tells_the_caller() -> None:
    bench = Bench()
    bench.store.failing = [StoreFull()]
    bench.start("run", [work()])
    bench.core.turn()
    assert isinstance(bench.answers.pop("start run"), StoreFull)
    assert bench.works == []
    assert bench.real.run("run") is None
    bench.time_ns += RETRY_AFTER_NS
    bench.settle()
    assert bench.real.run("run") is None, "what was refused does not happen later"
    bench.start("run", [work()])
    bench.settle()
    assert bench.answers["start run"]["seq"] == 1


def test_what_has_happened_is_tried_again_in_order() -> None:
    bench = Bench()
    bench.start("run", [work(1)], [work(2)], [awaits()])
    bench.settle()
    bench.store.failing = [StoreFull(), StoreUnavailable()]
    bench.finish()
    bench.settle()
    values = [r.record()["event"].get("value") for r in bench.real.journal(1)[1:]]
    assert values == [1, 2]


def test_what_the_engine_asks_of_itself_is_tried_again() -> None:
    """Nobody waits for it, so nobody would ask again: there was room for work of this run, and the store did not take it."""
    bench = Bench()
    bench.start("r", [work()])
    bench.settle()
    (offered,) = bench.works
    bench.works.clear()
    bench.store.failing.append(StoreFull("no room"))
    bench.core.submit(Operate("r", OFFER, {"runs": ["r"]}))
    bench.settle()
    assert bench.works == [offered]


def test_who_waits_for_the_store_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "treadle.core")
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    bench.store.failing = [StoreFull("no room left for x.db")]
    bench.start("refused", [awaits()])
    bench.settle()
    bench.start("accepted", [awaits()])
    bench.settle()
    assert caplog.messages == [], "a caller who is told the error needs no second line"
    bench.store.failing = [StoreFull("no room left for x.db")] * (2 * WARN_EVERY)
    bench.finish()
    bench.settle(turns=3 * WARN_EVERY)
    assert bench.status("run") == "completed"
    waiting = [said for said in caplog.messages if "no room left for x.db" in said]
    assert len(waiting) == 3, "at once, and from time to time"
    assert caplog.messages[-1] == f"the store takes commits again, after {2 * WARN_EVERY} that it did not"


def test_a_failed_commit_does_not_lose_recovered_work() -> None:
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    again = bench.reborn()
    again.store.failing = [StoreFull(), StoreUnavailable()]
    again.settle()
    assert [w.intent.id for w in again.works] == [bench.works[0].intent.id]


def test_a_refused_change_does_not_lose_recovered_work_or_other_answers() -> None:
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    again = bench.reborn()

    def refuse(desk: Desk) -> None:
        raise TreadleError("no", code="NO")

    again.core.change(OwnChange(lambda desk: "fine", again.ack("first")))
    again.core.change(OwnChange(refuse, again.ack("second")))
    again.core.change(OwnChange(lambda desk: 1 / 0, again.ack("third")))
    again.settle()
    assert again.answers["first"] == "fine"
    assert again.answers["second"].code == "NO"
    assert isinstance(again.answers["third"], TreadleError), "a broken change is an answer, not the end"
    assert len(again.works) == 1


def test_a_change_that_refuses_itself_halfway_starts_nothing_and_takes_nothing_of_others_with_it() -> None:
    bench = Bench()

    def start(run: str, desk: Desk) -> object:
        event = Started(definition=DRILL.digest, input={"lanes": []}, seed=b"s")
        create = NewRun("drill", "drill", "1.0.0", DRILL.digest)
        desk.post(Deliver(run, event, create=create, derived=True, message=f"start:{run}"))
        return HANDED_ON

    def halfway(desk: Desk) -> None:
        start("half", desk)
        raise TreadleError("no", code="NO")

    bench.core.change(OwnChange(partial(start, "whole")))
    bench.core.change(OwnChange(halfway, bench.ack("change")))
    bench.settle()
    assert bench.answers["change"].code == "NO"
    assert bench.real.run("half") is None
    assert bench.status("whole") == "completed"


def test_an_owed_continuation_survives_a_later_failed_commit() -> None:
    bench = Bench(limits=Limits(batch_records=1))
    bench.start("run", [{"do": "many", "count": 5}])
    bench.core.turn()
    bench.store.failing = [StoreFull()]
    bench.settle()
    assert bench.kinds("run") == ["started", "continue", "continue"]
    assert len(bench.works) == 5


@pytest.mark.parametrize("first", ["continuation", "signal"])
@pytest.mark.parametrize("recovered", ["before", "after"])
def test_what_a_run_owes_itself_comes_first_after_a_restart(first: str, recovered: str) -> None:
    bench = Bench(limits=Limits(batch_records=1, recover_per_turn=1))
    if recovered == "after":
        bench.start("earlier", [work()])
        bench.settle()
    if first == "continuation":
        bench.start("run", [{"do": "many", "count": 3}], [awaits()])
        bench.core.turn()
    else:
        bench.start("run", [work(), awaits()], [work()])
        bench.settle()
        bench.core.submit(bench.item("run", Signal(name="go", data={"token": "early"})))
        bench.core.turn()
        bench.finish(*[w for w in bench.works if w.run == "run"][:1])
        bench.core.turn()
    again = bench.reborn()
    again.core.submit(again.item("run", Signal(name="go", data={"token": "late"})))
    again.settle()
    if first == "continuation":
        assert again.kinds("run")[:3] == ["started", "continue", "signal"]
        return
    row = again.real.run("run")
    assert row is not None
    events = [stored.record()["event"] for stored in again.real.journal(row.no)[1:]]
    tokens = [event.get("data") or event.get("value") for event in events]
    early, late = {"token": "early"}, {"token": "late"}
    assert tokens == [early, 1, early, late], "kept, done, given; only then the late one"


def test_a_clock_that_is_set_back_does_not_stop_the_engine() -> None:
    bench = Bench()
    bench.store.failing = [StoreFull()]
    bench.start("lost", [work()])
    bench.core.turn()
    bench.time_ns -= 3_600 * SECOND
    bench.start("run", [work()])
    bench.core.turn()
    assert bench.answers["start run"]["seq"] == 1


def test_an_operation_from_another_process_survives_a_failed_commit() -> None:
    bench = Bench()
    bench.start("run", [{"do": "task"}])
    bench.settle()
    (task,) = bench.real.tasks()
    claim = tasks.Operation(name="claim", task=task.id, actor=tasks.Actor("ann", ("admin",)))
    bench.real.post([("guest:1", message_to_bytes(Operate("run", "task", claim.to_value())))])
    bench.core._intake.look()
    bench.store.failing = [StoreFull()]
    bench.settle()
    (task,) = bench.real.tasks()
    assert task.assignee == "ann"
    assert bench.real.inbox(1) == []


def test_a_refused_completion_does_not_happen_later() -> None:
    bench = Bench()
    bench.start("run", [{"do": "task"}, work()])
    bench.settle()
    (task,) = bench.real.tasks()
    done = tasks.Operation(
        name="complete", task=task.id, actor=tasks.Actor("ann", ("admin",)), data={"by": "ann"}
    )
    bench.store.failing = [StoreFull()]
    bench.core.submit(Operate("run", "task", done.to_value(), bench.ack("complete")))
    bench.settle()
    assert isinstance(bench.answers.pop("complete"), StoreFull)
    assert bench.kinds("run") == ["started"]
    bench.core.submit(Operate("run", "task", done.to_value(), bench.ack("complete")))
    bench.settle()
    assert bench.answers["complete"]["seq"] == 2


def test_a_completion_is_refused_if_the_task_was_given_away_before_its_turn() -> None:
    """What allowed it was looked at when it came; the batch was full then, and somebody else came first."""
    bench = Bench(limits=replace(LIMITS, batch_records=1))
    bench.start("busy", [awaits()])
    bench.start("run", [{"do": "task"}])
    bench.settle()
    (task,) = bench.real.tasks()
    ann, boss = tasks.Actor("ann", ("clerk",)), tasks.Actor("boss", ("admin",))

    def ask(name: str, actor: tasks.Actor, to: str | None = None) -> None:
        asked = tasks.Operation(name=name, task=task.id, actor=actor, to=to)
        bench.core.submit(Operate("run", TASK, asked.to_value(), bench.ack(name)))

    ask("assign", boss, "ann")
    bench.settle()
    del bench.answers["assign"]
    bench.core.submit(bench.item("busy", Signal(name="other")))
    ask("complete", ann)
    ask("assign", boss, "bob")
    bench.settle()
    assert isinstance(bench.answers["complete"], Forbidden)
    assert bench.answers["assign"]["assignee"] == "bob"
    assert bench.kinds("run") == ["started"]


def test_a_refused_signal_may_be_sent_again_under_its_key() -> None:
    """A refusal changed nothing: what was missing may be there by then."""
    bench = Bench()
    once = {"submission": ("run:run", "signal:k")}
    bench.core.submit(bench.item("run", Signal(name="x"), ack="early", **once))
    bench.settle()
    assert isinstance(bench.answers["early"], RunNotFound)
    bench.start("run", [awaits("never")])
    bench.settle()
    wrong = bench.item("run", Signal(name="x"), ack="wrong", expected_version=7, **once)
    bench.core.submit(wrong)
    bench.settle()
    assert isinstance(bench.answers["wrong"], VersionMismatch)
    for ack in ("right", "again"):
        bench.core.submit(bench.item("run", Signal(name="x"), ack=ack, **once))
        bench.settle()
    assert bench.answers["right"]["seq"] == 2
    assert bench.answers["again"]["duplicate"]
    assert bench.kinds("run") == ["started", "signal"]


def test_a_repeated_submission_is_answered_through_a_failed_commit() -> None:
    bench = Bench()
    bench.start("run", [awaits("never")])
    bench.settle()
    once = {"submission": ("run:run", "k")}
    bench.core.submit(bench.item("run", Signal(name="x"), ack="first", **once))
    bench.settle()
    bench.store.failing = [StoreFull()]
    bench.core.submit(bench.item("run", Signal(name="x"), ack="second", **once))
    bench.settle()
    assert isinstance(bench.answers["second"], StoreFull), "told, and free to ask again"
    bench.core.submit(bench.item("run", Signal(name="x"), ack="third", **once))
    bench.settle()
    assert bench.answers["third"]["duplicate"]
    assert bench.kinds("run") == ["started", "signal"]


# --- recovery --------------------------------------------------------------------------------------------------


def test_recovery_reaches_runs_that_were_touched_before_it_came_to_them() -> None:
    bench = Bench(limits=Limits(recover_per_turn=1))
    for number in range(4):
        bench.start(f"run-{number}", [work(number)], [awaits()])
    bench.settle()
    again = bench.reborn()
    again.core.submit(again.item("run-3", Signal(name="other"), ack="touched"))
    again.start("run-4", [work()])
    again.settle()
    assert again.answers["touched"]["seq"] == 2
    assert sorted(w.run for w in again.works) == [f"run-{n}" for n in range(5)], "each once, none twice"


def test_recovery_hands_out_the_last_checkpoint() -> None:
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    intent = bench.works[0].intent.id
    bench.core.submit(CheckpointSaved("run", intent, {"mark": 7}, [], {}, bench.ack("saved")))
    bench.settle()
    assert "saved" in bench.answers
    again = bench.reborn().settle()
    assert again.works[0].checkpoint == {"mark": 7}


# --- refusals, stale events ---------------------------------------------------------------------------------------


def test_the_same_id_again_is_the_same_run_and_another_input_is_refused_even_in_one_commit() -> None:
    bench = Bench()
    bench.start("run", [work(1)], ack="first")
    bench.start("run", [work(1)], ack="same")
    bench.start("run", [work(2)], ack="other")
    bench.core.turn()
    assert bench.answers["same"]["existing"]
    assert isinstance(bench.answers["other"], RunExists)
    bench.start("run", [work(2)], ack="later")
    bench.settle()
    assert isinstance(bench.answers["later"], RunExists)
    assert bench.kinds("run") == ["started"]


def test_stale_receipts_are_counted_visible_and_change_nothing() -> None:
    bench = Bench()
    bench.start("run", [work()], [awaits()])
    bench.settle()
    bench.finish(bench.works[0], bench.works[0])
    bench.settle()
    assert bench.kinds("run") == ["started", "receipt"]
    assert [d["code"] for d in bench.real.diagnostics("run")] == ["receipt.stale"]
    assert b"stale" in bench.real.frames(1)[0][2]


def test_the_late_end_of_work_is_counted_once_it_is_settled_and_settles_nothing_itself() -> None:
    """Work is also given up when a run goes to another member: there its intent is open, in other hands."""
    bench = Bench()
    bench.start("run", [work()], [awaits()])
    bench.settle()
    (handed,) = bench.works
    bench.core.submit(FrameSent("run", handed.intent.id, 0, LATE, None))
    bench.settle()
    assert bench.kinds("run") == ["started"]
    assert list(bench.real.diagnostics("run")) == []
    assert bench.real.frames(1) == [], "nor is it shown"
    bench.finish(handed)
    bench.settle()
    bench.core.submit(FrameSent("run", handed.intent.id, 0, LATE, None))
    bench.settle()
    assert bench.kinds("run") == ["started", "receipt"]
    assert [d["code"] for d in bench.real.diagnostics("run")] == ["receipt.stale"]
    assert b"stale" in bench.real.frames(1)[0][2]


def test_refusals_name_what_is_wrong() -> None:
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    bench.core.submit(bench.item("ghost", Signal(name="x"), ack="ghost"))
    bench.core.submit(bench.item("run", Signal(name="x"), ack="version", expected_version=9))
    bench.core.submit(bench.item("run", Cancel(), ack="cancel"))
    bench.settle()
    assert isinstance(bench.answers["ghost"], RunNotFound)
    assert isinstance(bench.answers["version"], VersionMismatch)
    assert bench.status("run") == "cancelled"
    assert bench.revoked == [bench.works[0].intent.id]
    bench.core.submit(bench.item("run", Signal(name="x"), ack="late"))
    bench.start("run", [work()], ack="again")
    bench.settle()
    assert bench.answers["late"]["stale"]
    assert not isinstance(bench.answers["again"], RunEnded), "the same start is the same run"


def test_a_run_that_was_refused_before_it_began_leaves_its_id_free() -> None:
    bench = Bench()
    event = Started(definition=DRILL.digest, input={"lanes": [[work()]]}, seed=b"s")
    for ack, workflow, version in (("early", "drill", 9), ("other", "another", None)):
        create = NewRun("drill", workflow, "1.0.0", DRILL.digest)
        bench.core.submit(bench.item("run", event, ack=ack, create=create, expected_version=version))
    bench.settle()
    assert isinstance(bench.answers["early"], VersionMismatch)
    assert bench.answers["other"]["run"] == "run"
    row = bench.real.run("run")
    assert row is not None
    assert row.workflow == "another"


def test_cancel_cascades_to_children() -> None:
    bench = Bench()
    bench.start("parent", [{"do": "child", "program": {"lanes": [[work()]]}}])
    bench.settle()
    (child,) = bench.real.runs(parent="parent")
    bench.core.submit(bench.item("parent", Cancel()))
    bench.settle()
    assert bench.status(child.id) == "cancelled"
    assert bench.revoked == [bench.works[0].intent.id]


def test_work_that_is_cancelled_by_the_commit_that_opens_it_is_never_begun() -> None:
    """It was handed out after it had been revoked, and nobody revoked it again."""
    bench = Bench()
    bench.start("r", [work()])
    bench.core.submit(bench.item("r", Cancel()))
    bench.settle()
    assert bench.status("r") == "cancelled"
    assert (len(bench.store.batches), bench.works) == (1, [])


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(bench: Bench, run: str) -> None:
    row = bench.real.run(run)
    assert row is not None
    connection = bench.real._connection
    connection.execute(
        "UPDATE journal SET body = CAST(body || x'00' AS BLOB) WHERE run = ? AND seq = 1", (row.no,)
    )


def test_a_damaged_run_is_left_alone_and_the_others_go_on() -> None:
    bench = Bench()
    for run in ("bad", "good"):
        bench.start(run, [work()])
    bench.settle()
    damaged(bench, "bad")
    again = bench.reborn()
    again.core.submit(again.item("bad", Signal(name="x"), ack="bad"))
    again.settle()
    again.finish(*bench.works)
    again.settle()
    assert isinstance(again.answers["bad"], JournalCorrupt)
    assert again.status("good") == "completed"
    assert again.status("bad") == "running", "untouched"
    assert "run.unreadable" in [d["code"] for d in again.real.diagnostics("bad")]


def test_a_first_record_is_held_against_its_digest_before_it_is_read() -> None:
    bench = Bench()
    bench.start("r", [work()])
    bench.settle()
    row = bench.real.run("r")
    assert row is not None
    bench.real._connection.execute(
        "UPDATE journal SET body = ? WHERE seq = 1", (encode({"kind": "started"}),)
    )
    registry = bench.core.desk.registry
    with pytest.raises(JournalCorrupt, match="record 1 does not match"):
        load_state(row, bench.real, registry, BlobCache(bench.real))


def test_a_due_timer_of_a_damaged_run_does_not_keep_the_core_awake() -> None:
    bench = Bench()
    bench.start("bad", [{"do": "timer", "ms": 1}])
    bench.settle()
    damaged(bench, "bad")
    again = bench.reborn()
    again.time_ns += SECOND
    for _ in range(10):
        again.core.turn()
    wait = again.core.wait_ns()
    assert wait is None or wait > 0, "it would spin"


def test_a_step_that_fails_after_frames_in_the_same_commit_keeps_the_numbers_apart() -> None:
    bench = Bench()
    bench.start("run", [{"do": "crash"}], [awaits()])
    bench.settle()
    intent = bench.works[0].intent.id
    bench.core.submit(FrameSent("run", intent, 1, "progress", {}))
    for _ in range(2):
        bench.core.submit(Deliver("run", Receipt(intent=intent, value=1)))
    bench.settle()
    assert bench.status("run") == "failed"
    numbers = [no for no, _, _ in bench.real.frames(1)]
    assert len(numbers) == len(set(numbers)) == 2, "the frame, and the stale receipt"


class HeedingMachine(DrillMachine):
    """Decides on what its work says."""

    def wants_frames(self, definition: Any) -> bool:
        return True


def test_what_work_said_is_decided_before_its_receipt_also_in_a_run_that_is_not_in_memory() -> None:
    bench = Bench(machine=HeedingMachine())
    bench.start("run", [work()])
    bench.settle()
    intent = bench.works[0].intent.id
    again = bench.reborn(machine=HeedingMachine())
    for number in (1, 2):
        again.core.submit(FrameSent("run", intent, number, "said", {}))
    again.core.submit(Deliver("run", Receipt(intent=intent, value=1)))
    again.settle()
    assert again.kinds("run") == ["started", "frame", "frame", "receipt"]
    assert again.status("run") == "completed"


def test_a_task_that_is_completed_lets_no_receipt_overtake_the_frame_before_it() -> None:
    bench = Bench()
    bench.start("asked", [{"do": "task"}])
    bench.start("busy", [work()])
    bench.settle()
    (task,) = bench.real.tasks()
    intent = bench.works[-1].intent.id
    done = tasks.Operation(name="complete", task=task.id, actor=tasks.Actor("ann", ("admin",)))
    bench.core.submit(FrameSent("busy", intent, 1, "said", {}))
    bench.core.submit(Deliver("busy", Receipt(intent=intent, value=1)))
    bench.core.submit(Operate("asked", TASK, done.to_value(), bench.ack("complete")))
    bench.settle()
    assert {bench.status("asked"), bench.status("busy")} == {"completed"}
    told = [decode(frame)["type"] for _, _, frame in bench.real.frames(2)]
    assert told == ["said"], "it is not taken for that of work that is over"


class OddMachine(DrillMachine):
    """Refuses patches with an error that cannot be written down."""

    def step(self, definition: Any, state: Any, event: Any, ctx: Any) -> Any:
        if isinstance(event, Patch):
            raise TreadleError("odd \ud800", details={"thing": object()})
        return super().step(definition, state, event, ctx)


def test_an_error_that_is_no_value_is_refused_without_harm() -> None:
    bench = Bench(machine=OddMachine())
    bench.start("run", [work()])
    bench.core.submit(bench.item("run", Patch(data={}), ack="odd", submission=("run:run", "p")))
    bench.settle()
    assert isinstance(bench.answers["odd"], TreadleError)
    bench.finish()
    bench.settle()
    assert bench.status("run") == "completed"


@pytest.mark.parametrize("run", ["", "\ud800", "x" * 513])
def test_a_name_that_no_store_can_hold_is_refused_and_the_engine_goes_on(run: str) -> None:
    bench = Bench()
    bench.core.submit(bench.item(run, Signal(name="x"), ack="signal"))
    bench.start(run, [work()], ack="start")
    bench.start("good", [work()])
    bench.core.submit(bench.item("good", Signal(name="x"), ack="key", submission=("run:good", "\ud800")))
    bench.settle()
    assert {bench.answers[name].code for name in ("signal", "start", "key")} == {"VALUE_REFUSED"}
    assert bench.status("good") == "running"


# --- time --------------------------------------------------------------------------------------------------------------


def test_a_timer_whose_commit_failed_is_told_once() -> None:
    """Another one that is due by then has all that is due looked for again."""
    bench = Bench()
    began_ns = bench.time_ns
    for run, ms in (("one", 1_000), ("other", 1_100)):
        bench.start(run, [{"do": "timer", "ms": ms}], [awaits()])
    bench.settle()
    bench.store.failing = [StoreFull()]
    bench.time_ns = began_ns + SECOND
    bench.core.turn()
    bench.time_ns += RETRY_AFTER_NS
    bench.settle()
    for run in ("one", "other"):
        assert bench.kinds(run) == ["started", "receipt"]
        assert list(bench.real.diagnostics(run)) == [], "nothing came too late"


def test_timers_fire_when_due_and_not_before() -> None:
    bench = Bench()
    bench.start("run", [{"do": "timer", "ms": 1_000}])
    bench.core.turn()
    bench.time_ns += SECOND - 1
    bench.core.turn()
    assert bench.status("run") == "waiting"
    assert bench.core.wait_ns() == 1
    bench.time_ns += 1
    bench.core.turn()
    assert bench.status("run") == "completed"


def test_a_deadline_settles_with_timeout_and_revokes_the_work() -> None:
    bench = Bench()
    bench.start("run", [{"do": "late", "ms": 1_000}])
    bench.core.turn()
    bench.time_ns += SECOND
    bench.store.failing = [StoreFull()]
    bench.settle()
    assert bench.status("run") == "completed"
    assert bench.revoked == [bench.works[0].intent.id], "also after a commit that failed"


def test_every_ack_is_called_once() -> None:
    """A storm of commits that fail: each caller is told, and told once (`Bench.ack` checks it)."""
    bench = Bench(limits=Limits(batch_records=2))
    chance = random.Random(7)
    make: list[Callable[[int], Deliver]] = [
        lambda n: bench.item("run-0", Signal(name="x", data=n), ack=f"signal {n}"),
        lambda n: bench.item("ghost", Signal(name="x"), ack=f"ghost {n}"),
        lambda n: bench.item(
            "run-1", Signal(name="x"), ack=f"keyed {n}", submission=("run:run-1", str(n % 3))
        ),
    ]
    for number in range(2):
        bench.start(f"run-{number}", [awaits("never")])
    bench.settle()
    for number in range(60):
        if chance.random() < 0.4:
            bench.store.failing.append(StoreFull())
        bench.core.submit(make[number % 3](number))
        if chance.random() < 0.5:
            bench.settle(2)
    bench.settle()
    assert len(bench.answers) == 62


def test_commands_may_be_taken_from_two_threads_at_once() -> None:
    """The core's thread waits for commands while a worker's turns the core: who comes second finds nothing."""
    bench = Bench()
    left = 20_000
    taken = 0

    def waiter() -> None:
        nonlocal taken
        while not over.is_set():
            taken += bench.core.wait(0) is not None

    over, noisy = Event(), Inspect(lambda view: None, lambda value, error: None)
    other = Thread(target=waiter)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)  # else a crowded machine may let the other run at no moment that counts
    other.start()
    try:
        while left and not taken > 500:
            for _ in range(4):
                bench.core.submit(noisy)
            left -= 1
            bench.core.turn()
    finally:
        over.set()
        other.join()
        sys.setswitchinterval(usual)
    assert taken, "the other thread was never first"
