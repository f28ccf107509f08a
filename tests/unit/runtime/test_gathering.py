"""One operation for several runs, which came in a message: each takes its event once and says who asked once, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import Signal
from treadle.runtime.commands import (
    SHARED,
    AuditEntry,
    Deliver,
    Operate,
    message_to_bytes,
    reply_from_bytes,
)
from treadle.runtime.desk import Handing, NoOperations
from treadle.store.rows import GUEST, Message

from .test_core import Bench, awaits

KEY = "guest:me:1"
ENTRY = AuditEntry("ann", "tell", "", request="one")
RUNS = ["one", "other", "third"]
# A commit takes one event.
NARROW = Limits(batch_records=1)


class Tells(NoOperations):
    """An operation that signals several runs, as an application publishes an event."""

    def perform(self, desk: Handing, asked: Operate) -> object:
        items = [
            Deliver(run, Signal(name="go"), submission=(f"run:{run}", asked.inbox or "here")) for run in RUNS
        ]
        return desk.share(asked, items, combined)


def combined(answers: Mapping[str, TreadleError | None]) -> tuple[object, TreadleError | None]:
    return list(answers), next((error for error in answers.values() if error is not None), None)


def begun() -> Bench:
    bench = Bench(operations=Tells(), limits=NARROW)
    for run in RUNS:
        bench.start(run, [awaits()])
    return bench.settle()


def audited(bench: Bench) -> list[tuple[str, str]]:
    return sorted((row.request, row.target) for row in bench.real.audit(limit=100))


@pytest.mark.parametrize("turns", range(6))
def test_it_is_performed_again_by_whoever_takes_over_and_audited_once(turns: int) -> None:
    bench = begun()
    bench.real.post([Message(KEY, message_to_bytes(Operate("", "tell", {}, entry=ENTRY)), "")])
    bench = bench.reborn(operations=Tells())
    for _ in range(turns):
        bench.core.turn()
    bench = bench.reborn(operations=Tells()).settle()
    assert [bench.kinds(run) for run in RUNS] == [["started", "signal"]] * 3
    assert audited(bench) == [("one", run) for run in RUNS]
    assert reply_from_bytes(bench.real.replies([KEY])[KEY]) == (RUNS, None)
    assert bench.real.inbox(9) == []


def test_what_two_who_performed_it_told_a_run_elsewhere_is_audited_once() -> None:
    """Each waits for the answer to a message of its own."""
    bench = begun().reborn()
    told = Deliver("one", Signal(name="go"), submission=("run:one", KEY), entry=ENTRY)
    keys = [f"{GUEST}{asker}:{SHARED}tell:{asker}:0" for asker in ("first", "second")]
    bench.real.post([Message(key, message_to_bytes(told), "one") for key in keys])
    bench.settle()
    assert bench.kinds("one") == ["started", "signal"]
    assert audited(bench) == [("one", "")]
    assert all(reply_from_bytes(body)[1] is None for body in bench.real.replies(keys).values())
    assert len(bench.real.replies(keys)) == 2


def test_who_asked_here_is_in_the_audit_as_who_asked_through_a_message() -> None:
    bench = begun()
    bench.core.submit(Operate("", "tell", {}, bench.ack("told"), entry=ENTRY))
    bench.settle()
    assert bench.answers["told"] == RUNS
    assert audited(bench) == [("one", run) for run in RUNS]
