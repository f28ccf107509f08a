"""What comes for a run that waits for other code is kept durably, whoever sent it and whatever becomes of the commit."""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import StoreFull, Undecidable
from treadle.kernel.machine import Machine
from treadle.kernel.model import Cancel, Signal
from treadle.runtime.commands import Deliver, message_to_bytes, reply_from_bytes
from treadle.runtime.own_changes import OwnChange
from treadle.store.rows import Message
from treadle.testing.sim.drill_machine import DrillMachine

from .test_core import Bench, awaits, work


class Codeless(DrillMachine):
    def load(self, body: Any) -> Any:
        raise Undecidable("its code is not here")


class Uncoded:
    """A run `r` whose code is not here, until the test says so."""

    def __init__(self, *lanes: list[dict[str, Any]]) -> None:
        self.is_there = True
        self.bench = Bench(machine_of=self.machine_of)
        self.bench.start("r", *lanes)
        self.bench.settle()
        self.works = self.bench.works
        self.is_there = False
        self.bench = self.bench.reborn(machine_of=self.machine_of)

    def machine_of(self, dialect: str) -> Machine:
        return DrillMachine() if self.is_there else Codeless()

    def come(self, *failing: StoreFull) -> None:
        """Its code is there, as a deploy says."""
        self.is_there = True
        self.bench.store.failing = list(failing)
        self.bench.core.change(OwnChange(lambda desk: desk.readable()))
        self.bench.settle()

    @property
    def kept(self) -> list[str]:
        return [key.partition(":")[0] for key, _ in self.bench.real.inbox(10)]


def test_who_sends_something_that_a_failed_commit_was_to_keep_is_told_so_and_it_does_not_happen() -> None:
    code = Uncoded([awaits()])
    bench = code.bench
    bench.store.failing = [StoreFull()]
    bench.core.submit(bench.item("r", Signal(name="go"), ack="signal"))
    bench.settle()
    assert isinstance(bench.answers["signal"], StoreFull)
    assert code.kept == []
    code.come()
    assert bench.kinds("r") == ["started"]


def test_what_has_happened_is_kept_although_the_first_commit_fails_and_the_run_says_that_it_is_stalled() -> (
    None
):
    code = Uncoded([work()])
    bench = code.bench
    bench.store.failing = [StoreFull()]
    bench.finish(*code.works)
    bench.settle()
    assert code.kept == ["held"]
    assert bench.status("r") == "stalled"
    code.is_there = True
    again = bench.reborn(machine_of=code.machine_of)
    again.settle()
    assert again.status("r") == "completed"


def test_a_guest_whose_signal_is_kept_is_told_so_as_anybody_is() -> None:
    code = Uncoded([awaits()])
    bench = code.bench
    bench.core.submit(bench.item("r", Signal(name="other"), ack="owner"))
    bench.real.post([Message("guest:me:1", message_to_bytes(Deliver("r", Signal(name="go"))), "r")])
    bench.core._intake.look()
    bench.settle()
    answers = bench.real.replies(["guest:me:1"])
    assert reply_from_bytes(answers["guest:me:1"]) == (bench.answers["owner"], None)
    assert code.kept == ["held", "held"]
    code.come()
    assert bench.kinds("r") == ["started", "signal", "signal"]
    assert bench.status("r") == "completed"
    assert code.kept == []


def test_what_was_kept_is_decided_once_although_the_commit_fails_that_decides_it() -> None:
    code = Uncoded([awaits(), awaits()])
    bench = code.bench
    bench.core.submit(bench.item("r", Signal(name="go"), ack="signal"))
    bench.settle()
    assert bench.answers["signal"]["held"]
    code.come(StoreFull())
    assert bench.kinds("r") == ["started", "signal"]
    assert code.kept == []


def test_what_was_kept_for_a_run_goes_with_its_end() -> None:
    """Nobody would ever take it, and whoever reads messages would pass over it for ever."""
    code = Uncoded([awaits()])
    bench = code.bench
    bench.core.submit(bench.item("r", Signal(name="go"), ack="signal"))
    bench.settle()
    assert code.kept == ["held"]
    bench.core.submit(bench.item("r", Cancel(), ack="cancel"))
    bench.settle()
    assert bench.answers["cancel"]["status"] == "cancelled"
    assert code.kept == []
