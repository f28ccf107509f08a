"""Why an event does not count, and what whoever sent it is told: late, forged, barred, an id that is taken, a version that is
not expected, a run that has ended. Which of it is asked when is one look (`Admission._counts`); this is for the few of which
something is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.kernel.errors import PASSING, RunEnded, RunExists, TreadleError, VersionMismatch
from treadle.kernel.model import (
    ENGINE_KINDS,
    Event,
    Frame,
    Receipt,
    Started,
)
from treadle.kernel.values import Value, decode_trusted

from .commands import Deliver, Operate, Own
from .hot import Hot
from .payloads import input_digest
from .ports import NewRun
from .staging import Answers, Staging

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


# Whether a receipt bears the node's signature.
Verify = Callable[[Receipt], bool]


class Gate:
    """`recheck` raises what an operation is refused with that may not be any more."""

    def __init__(
        self,
        staging: Staging,
        answers: Answers,
        reads: Reads,
        verify: Verify | None,
        recheck: Callable[[Operate], None],
    ) -> None:
        self._recheck = recheck
        self._staging = staging
        self._answers = answers
        self._reads = reads
        self._verify = verify

    def is_forged(self, hot: Hot, item: Deliver, receipt: Receipt) -> bool:
        """Where receipts are signed, one without the node's signature settles nothing: the intent stays
        open. What the engine settles itself (a deadline, a timer, a task) needs no signature."""
        if self._verify is None or type(item) is Own:
            return False
        if hot.state.open[receipt.intent].kind in ENGINE_KINDS or self._verify(receipt):
            return False
        self._answers.stale(hot, item, "receipt.unsigned", {"intent": receipt.intent})
        return True

    def is_late(self, hot: Hot, item: Deliver, frame: Frame) -> bool:
        """Frames count up. One that does not is dropped; a gap is noted."""
        last = hot.state.open[frame.intent].frame
        about = {"intent": frame.intent, "frame": frame.seq, "last": last}
        if frame.seq > last + 1:
            self._staging.diagnose(item.run, "stream.gap", about)
        if frame.seq <= last:
            self._answers.stale(hot, item, "stream.non_monotonic", about)
        return frame.seq <= last

    def is_withdrawn(self, item: Deliver, asked: Operate) -> bool:
        """Whether the operation that an event answers may not be any more."""
        try:
            self._recheck(asked)
        except PASSING:
            raise
        except TreadleError as error:
            self._answers.refuse(item, error)
            return True
        return False

    def id_is_taken(self, hot: Hot, item: Deliver, asked: NewRun) -> None:
        """A run is of another workflow than whoever sent the event took it for."""
        taken = f"the id {item.run!r} is taken by a run of {hot.state.workflow} ({hot.state.dialect})"
        self._answers.refuse(item, RunExists(f"{taken}; a cell of {asked.workflow} cannot have it"))

    def is_at_another_version(self, hot: Hot, item: Deliver, expected: int) -> None:
        found = hot.state.seq
        message = f"{item.run} is at version {found}, not {expected}; look at it again, then decide"
        self._answers.refuse(item, VersionMismatch(message, details={"expected": expected, "found": found}))

    def has_ended(self, hot: Hot, item: Deliver, event: Event) -> None:
        state = hot.state
        if state.state is None:
            message = f"{item.run} was {state.status} before it had begun; start it anew"
        else:
            message = f"{item.run} is {state.status}; it takes no {event.kind} any more"
        self._answers.refuse(item, RunEnded(message))

    def start_again(self, hot: Hot, item: Deliver, event: Started) -> None:
        """The same id again: the same run, if definition and input are the same."""
        body = next((row[6] for row in self._staging.batch.records if row[0] == hot.no and row[1] == 1), None)
        if body is None:
            stored = self._reads.record(hot.no, 1)
            assert stored is not None, "a run begins with a record"
            body = stored.body
        was: dict[str, Value] = decode_trusted(body)["event"]
        if (forked := was.get("forked_from")) is not None:
            taken = f"the id {item.run!r} is taken by a fork of {forked['run']}; choose another id"
            self._answers.refuse(item, RunExists(taken, details={"differs": ["forked_from"]}))
            return
        same = input_digest(hot.machine, was.get("input")) == input_digest(hot.machine, event.input)
        if was["definition"] == event.definition and same:
            self._answers.settle(item, {"run": item.run, "existing": True}, None)
            return
        other = [] if was["definition"] == event.definition else ["definition"]
        other += [] if same else ["input"]
        what = " and ".join(other)
        if "definition" in other:
            was_version = f"{hot.row.workflow}@{hot.row.version or '?'} {was['definition'][:19]}…"
            asked = (
                f"{item.create.workflow}@{item.create.version or '?'}" if item.create is not None else "this"
            )
            what += f" ({was_version}, not {asked} {event.definition[:19]}…)"
        self._answers.refuse(
            item,
            RunExists(
                f"a run {item.run!r} exists with another {what}; choose another id",
                details={"differs": other, "definitions": [was["definition"], event.definition]},
            ),
        )
