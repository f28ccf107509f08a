"""Code that the core lacks is loaded beside it: who needs it waits, and all others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import to_builtins

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.machine import Machine
from treadle.kernel.model import Signal, Started
from treadle.kernel.values import decode, encode
from treadle.lang.definition import Definition
from treadle.lang.schedules import Schedule
from treadle.runtime import keeping
from treadle.runtime.commands import FORK, SCHEDULE, CheckpointSaved, FrameSent, Operate, message_to_bytes
from treadle.runtime.deploys import row_of
from treadle.runtime.desk import Handing, NoOperations
from treadle.runtime.fetching import NotAtHand
from treadle.runtime.ports import NewRun
from treadle.runtime.schedules import ScheduleRow
from treadle.runtime.schedules_due import SchedulesDue
from treadle.runtime.undecided import UNDECIDED
from treadle.store.rows import Batch, Message, VersionRow
from treadle.testing.sim.drill_machine import DrillMachine

from .test_core import SECOND, Bench, awaits, work

LATE = Definition("late", "late", "1.0.0", {"drill": True})
# What children of a drill are, once it is deployed.
NEXT = Definition("late", "drill", "2.0.0", {"drill": True})


class Late:
    """A dialect that is loaded when the test says so; and an operation that needs something too."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {"drill": DrillMachine()}
        self.failure: TreadleError | None = None
        self.loading: list[Callable[[], None]] = []
        self.bench = Bench(machine_of=self.machine_of, beside=self.loading.append, operations=Learns())
        version = VersionRow(name="late", version="1.0.0", digest=LATE.digest)
        self.bench.real.commit(Batch(definitions=[row_of(LATE), row_of(NEXT)], versions=[version]))

    def machine_of(self, dialect: str) -> Machine:
        if self.failure is not None:
            raise self.failure
        if dialect not in self.machines:
            raise NotAtHand(dialect, lambda: self.machines.update({dialect: LateMachine()}))
        return self.machines[dialect]

    def load(self) -> None:
        while self.loading:
            self.loading.pop()()
        self.bench.settle()

    def start(self, run: str, *lanes: list[dict[str, Any]]) -> None:
        event = Started(definition=LATE.digest, input={"lanes": list(lanes)}, seed=b"s")
        create = NewRun("late", "late", "1.0.0", LATE.digest)
        self.bench.core.submit(self.bench.item(run, event, ack=f"start {run}", create=create))


class LateMachine(DrillMachine):
    dialect = "late"


def broken() -> None:
    raise SystemExit("not today")


class Learns(NoOperations):
    def perform(self, desk: Handing, asked: Operate) -> Any:
        if asked.name == FORK:
            return keeping.perform_fork(desk, asked.body)
        if asked.name == "never there":
            raise NotAtHand("what is broken", broken)
        desk.diagnose("", "half", {})
        desk.batch.documents.append(("half", asked.name, 0, None))
        for what in asked.body["needs"]:
            if what not in asked.fetched:
                raise NotAtHand(what, lambda what=what: asked.body["loaded"].append(what))
        return list(asked.fetched)


def test_a_run_waits_for_its_dialect_and_others_go_on() -> None:
    late = Late()
    bench = late.bench
    late.start("waits", [awaits()])
    bench.core.submit(bench.item("waits", Signal(name="go"), ack="signal"))
    bench.start("goes on", [work()])
    bench.settle()
    assert "start waits" not in bench.answers
    assert bench.real.run("waits") is None
    assert bench.answers["start goes on"]["run"] == "goes on"
    bench.start("later", [work()])
    bench.settle()
    assert len(late.loading) == 1, "it is loaded once"
    assert [found.run for found in bench.works] == ["goes on", "later"]

    late.load()
    assert bench.answers["start waits"]["seq"] == 1
    assert bench.answers["signal"]["status"] == "completed", "and its events are told in their order"


def test_a_parent_waits_for_the_dialect_of_its_child() -> None:
    late = Late()
    bench = late.bench
    bench.real.commit(Batch(versions=[VersionRow(name="drill", version="2.0.0", digest=NEXT.digest)]))
    bench.start("parent", [{"do": "child", "program": {"lanes": []}}])
    bench.start("goes on", [work()])
    bench.settle()
    assert "start parent" not in bench.answers
    assert bench.real.run("parent") is None, "nothing is half there"
    assert bench.status("goes on") == "running"
    assert len(bench.works) == 1
    late.load()
    assert bench.status("parent") == "completed"
    assert [row.dialect for row in bench.real.runs(parent="parent", limit=9)] == ["late"]


def test_what_a_run_did_while_its_dialect_was_there_is_taken_up_without_it() -> None:
    late = Late()
    late.start("waits", [awaits()])
    late.bench.settle()
    late.load()
    bench = late.bench = late.bench.reborn(machine_of=late.machine_of, beside=late.loading.append)
    del late.machines["late"]
    bench.core.submit(bench.item("waits", Signal(name="go"), ack="signal"))
    bench.core.submit(FrameSent("waits", "none", 1, "said", None))
    bench.settle()
    assert "signal" not in bench.answers
    late.load()
    assert bench.answers["signal"]["status"] == "completed"


def test_what_work_says_of_a_run_waits_for_its_dialect_and_others_go_on() -> None:
    late = Late()
    late.start("waits", [work()])
    late.bench.settle()
    late.load()
    (given,) = late.bench.works
    bench = late.bench = late.bench.reborn(machine_of=late.machine_of, beside=late.loading.append)
    del late.machines["late"]
    bench.core.submit(CheckpointSaved("waits", given.intent.id, "half", [], {}, bench.ack("saved")))
    bench.core.submit(FrameSent("waits", given.intent.id, 1, "said", None))
    bench.finish(given)
    bench.start("goes on", [work()])
    bench.settle()
    assert bench.answers["start goes on"]["run"] == "goes on"
    assert bench.status("waits") == "running"
    assert bench.core.wait_ns() is None, "and nobody is busy with it"
    late.load()
    assert bench.answers["saved"] == {}, "it is saved before its receipt is decided"
    assert bench.status("waits") == "completed"
    (frame,) = bench.real.frames(1)
    assert decode(frame[2])["type"] == "said"


def test_a_run_that_could_not_be_decided_is_recovered_when_its_dialect_is_there_and_others_are_before() -> (
    None
):
    late = Late()
    late.start("waits", [work()])
    late.bench.settle()
    late.load()
    late.bench.start("goes on", [work()])
    late.bench.settle()
    row = late.bench.real.run("waits")
    assert row is not None
    row.error = {UNDECIDED: True}
    late.bench.real.commit(Batch(runs_changed={row.no: row}))
    bench = late.bench = late.bench.reborn(machine_of=late.machine_of, beside=late.loading.append)
    del late.machines["late"]
    bench.start("begins", [])
    bench.settle()
    assert [found.run for found in bench.works] == ["goes on"]
    assert bench.answers["start begins"]["status"] == "completed"
    late.load()
    assert [found.run for found in bench.works] == ["goes on", "waits"]


def test_what_cannot_be_loaded_is_refused_with_why() -> None:
    late = Late()
    late.start("waits", [awaits()])
    late.bench.settle()
    late.failure = TreadleError("it is broken", code="BROKEN")
    late.load()
    assert late.bench.answers["start waits"].code == "BROKEN"


def test_an_operation_waits_for_all_that_it_needs() -> None:
    late = Late()
    bench = late.bench
    loaded: list[str] = []
    asked = Operate("", "apply", {"needs": ["one", "two"], "loaded": loaded}, bench.ack("apply"))
    bench.core.submit(asked)
    bench.start("goes on", [work()])
    bench.settle()
    assert "apply" not in bench.answers
    assert bench.answers["start goes on"]["run"] == "goes on"
    assert bench.real.document("half", "apply") is None
    late.load()
    assert loaded == ["one"]
    assert "apply" not in bench.answers
    late.load()
    assert loaded == ["one", "two"]
    assert bench.answers["apply"] == ["one", "two"]


def test_a_call_that_waits_for_code_may_be_passed_by_one_that_came_later_and_not_by_one_that_waited_for_its_answer() -> (
    None
):
    """Who asks for the next thing before the last one is answered has not said which of them comes first."""
    late = Late()
    bench = late.bench
    for name, needs in (("first", ["one"]), ("second", []), ("third", ["one"])):
        bench.core.submit(Operate("", name, {"needs": needs, "loaded": []}, bench.ack(name)))
    bench.settle()
    assert [*bench.answers] == ["second"]
    late.load()
    assert [*bench.answers] == ["second", "first", "third"], "those who wait for the same keep their order"


def test_what_is_not_there_after_it_was_loaded_is_refused_and_not_tried_without_end() -> None:
    late = Late()
    bench = late.bench
    bench.core.submit(Operate("", "never there", {}, bench.ack("asked")))
    bench.settle()
    late.load()
    assert late.loading == []
    assert bench.answers["asked"].code == "CODE_MISSING"


def test_a_fork_that_stops_halfway_for_want_of_code_leaves_nothing_and_is_made_whole() -> None:
    """What it has open is reissued: the child under a name that means a workflow of another dialect by now."""
    late = Late()
    bench = late.bench
    bench.start("origin", [work(), {"do": "child", "program": {"lanes": [[awaits()]]}}])
    bench.settle()
    bench.finish(bench.works[0])
    bench.settle()
    bench.real.commit(Batch(versions=[VersionRow(name="drill", version="2.0.0", digest=NEXT.digest)]))
    asked = keeping.fork_asked("origin", at=None, definition=None, new_id="fork", by=None)
    bench.core.submit(Operate("fork", FORK, asked, bench.ack("fork")))
    bench.start("goes on", [work()])
    bench.settle()
    assert "fork" not in bench.answers
    assert bench.real.run("fork") is None
    assert bench.core.hot.peek("fork") is None
    assert bench.real.runs(parent="fork", limit=9) == []
    assert bench.status("goes on") == "running"
    late.load()
    assert bench.answers["fork"] == {"run": "fork"}
    assert [row.dialect for row in bench.real.runs(parent="fork", limit=9)] == ["late"]
    assert [row.status for row in bench.real.runs(parent="origin", limit=9)] == ["waiting"]


def test_a_message_that_waits_for_code_is_read_once_and_stays_until_it_is_decided() -> None:
    late = Late()
    bench = late.bench
    message = message_to_bytes(Operate("", "apply", {"needs": ["one"], "loaded": []}))
    bench.real.post([Message("guest:me:1", message, "")])
    for _ in range(3):
        bench.core.poll()
        bench.settle()
    assert len(late.loading) == 1
    assert len(bench.real.inbox(9, None)) == 1
    late.load()
    assert bench.real.inbox(9, None) == []


def due_now(bench: Bench) -> None:
    """A schedule of drills that is due."""
    said = {"name": "s", "workflow": "drill", "every": "1h", "input": {"lanes": []}, "overlap": "allow"}
    row = ScheduleRow(schedule=Schedule.read(said), next_ns=bench.time_ns)
    bench.real.commit(Batch(documents=[(SCHEDULE, "s", 0, encode(to_builtins(row)))]))


def test_where_schedules_need_their_code_first_nobody_else_waits_for_it() -> None:
    late = Late()
    bench = late.bench
    due_now(bench)
    bench.start("goes on", [work()])
    bench.settle()
    assert bench.answers["start goes on"]["run"] == "goes on"
    assert bench.core.wait_ns() is None, "nor is anybody busy with it"
    assert len(late.loading) == 1
    late.load()
    assert [row.id for row in bench.real.runs() if row.id.startswith("s@")], "the tick was not forgotten"


def test_code_of_schedules_that_cannot_be_loaded_is_tried_again_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Late()
    bench = late.bench
    due_now(bench)
    with monkeypatch.context() as patched:
        patched.setattr(SchedulesDue, "_fetch", lambda due: broken())
        bench.settle()
        late.loading.pop()()
        bench.core.turn()
        assert late.loading == [], "not at once"
        bench.time_ns += SECOND
        bench.settle()
        late.loading.pop()()
    bench.settle()
    bench.time_ns += 2 * SECOND
    bench.settle()
    late.load()
    assert [row.id for row in bench.real.runs() if row.id.startswith("s@")]


def undecided(late: Late, *runs: str) -> None:
    """As runs that could not be decided in a life before."""
    for run in runs:
        row = late.bench.real.run(run)
        assert row is not None
        row.error = {UNDECIDED: True}
        late.bench.real.commit(Batch(runs_changed={row.no: row}))


def test_runs_that_are_taken_up_when_their_code_is_there_hold_up_nobody_and_are_looked_for_once() -> None:
    late = Late()
    runs = [f"waits {number}" for number in range(5)]
    for run in runs:
        late.start(run, [work()])
    late.bench.settle()
    late.load()
    undecided(late, *runs)
    few = Limits(recover_per_turn=2)
    bench = late.bench = late.bench.reborn(limits=few, machine_of=late.machine_of, beside=late.loading.append)
    del late.machines["late"]
    pages: list[int] = []
    working = bench.real.working

    def noted(**asked: Any) -> Any:
        pages.append(asked["after_no"])
        return working(**asked)

    bench.store.working = noted  # type: ignore[attr-defined]
    bench.start("begins", [])
    bench.core.turn()
    assert bench.answers["start begins"]["status"] == "completed", "in the first commit of all"
    bench.settle()
    assert pages == sorted(set(pages)), "no page is read twice"
    assert len(late.loading) == 1
    late.load()
    assert sorted(found.run for found in bench.works) == runs


def test_what_a_run_opened_while_its_recovery_waited_for_code_is_not_handed_out_twice() -> None:
    late = Late()
    late.start("waits", [awaits(), work(2)], [work(1)])
    late.bench.settle()
    late.load()
    undecided(late, "waits")
    bench = late.bench = late.bench.reborn(machine_of=late.machine_of, beside=late.loading.append)
    machine = late.machines.pop("late")
    bench.settle()
    late.machines["late"] = machine  # somebody else has imported it, and our own thread is not there yet
    bench.core.submit(bench.item("waits", Signal(name="go"), ack="go"))
    bench.settle()
    assert [found.intent.params["value"] for found in bench.works] == [2]
    late.load()
    assert [found.intent.params["value"] for found in bench.works] == [2, 1]
