"""Whether an event still counts when its turn has come: stale, forged, too late, or barred.

What settles an intent that is not open any more changes nothing, and is noted. What asks for something that cannot
be is refused, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.kernel.errors import PASSING, RunEnded, RunExists, TreadleError, VersionMismatch
from treadle.kernel.model import (
    ENGINE_KINDS,
    TERMINAL,
    Cancel,
    Event,
    Frame,
    Receipt,
    Rejected,
    Retry,
    Signal,
    Started,
)
from treadle.kernel.roles import CellMachine, has_role
from treadle.kernel.values import decode_trusted
from treadle.store.protocol import Reads

from .hot import Hot
from .payloads import input_digest
from .ports import Item, NewRun, Own
from .staging import Answers, Staging

# Whether a receipt bears the node's signature.
Verify = Callable[[Receipt], bool]


class Gate:
    def __init__(self, staging: Staging, answers: Answers, reads: Reads, verify: Verify | None) -> None:
        self._staging = staging
        self._answers = answers
        self._reads = reads
        self._verify = verify

    def turns_away(self, hot: Hot, item: Item, event: Event) -> bool:
        """Whether an event does not count; then whoever sent it is answered. What settles an intent that is not
        open, or steers a run that has ended, changes nothing."""
        match event:
            case Receipt() | Rejected() | Frame():
                if event.intent not in hot.state.open:
                    self._answers.stale(hot, item, "receipt.stale", {"intent": event.intent})
                    return True
                if type(event) is Frame:
                    if self._is_late(hot, item, event):
                        return True
                elif (
                    hot.machine.traits.signed and type(event) is Receipt and self._is_forged(hot, item, event)
                ):
                    return True
            case Cancel() | Signal() if hot.state.ended and (
                hot.machine.traits.final or type(event) is Cancel
            ):
                self._answers.stale(hot, item, f"{event.kind}.stale", {"status": hot.state.status})
                return True
        return self._is_barred(hot, item, event)

    def _is_forged(self, hot: Hot, item: Item, receipt: Receipt) -> bool:
        """Where receipts are signed, one without the node's signature settles nothing: the intent stays
        open. What the engine settles itself (a deadline, a timer, a task) needs no signature."""
        if self._verify is None or type(item) is Own:
            return False
        if hot.state.open[receipt.intent].kind in ENGINE_KINDS or self._verify(receipt):
            return False
        self._answers.stale(hot, item, "receipt.unsigned", {"intent": receipt.intent})
        return True

    def _is_late(self, hot: Hot, item: Item, frame: Frame) -> bool:
        """Frames count up. One that does not is dropped; a gap is noted."""
        last = hot.state.open[frame.intent].frame
        about = {"intent": frame.intent, "frame": frame.seq, "last": last}
        if frame.seq > last + 1:
            self._staging.diagnose(item.run, "stream.gap", about)
        if frame.seq <= last:
            self._answers.stale(hot, item, "stream.non_monotonic", about)
        return frame.seq <= last

    def _is_barred(self, hot: Hot, item: Item, event: Event) -> bool:
        if item.provided is not None:
            try:
                item.provided()
            except PASSING:
                raise
            except TreadleError as error:
                self._answers.refuse(item, error)
                return True
        if type(event) is Started and hot.state.seq > 0:
            self._start_again(hot, item, event)
            return True
        if item.create is not None and _is_another(hot, item.create):
            taken = f"the id {item.run!r} is taken by a run of {hot.state.workflow} ({hot.state.dialect})"
            self._answers.refuse(item, RunExists(f"{taken}; a cell of {item.create.workflow} cannot have it"))
            return True
        if (
            has_role(type(hot.machine), CellMachine)
            and isinstance(hot.machine, CellMachine)
            and (barred := hot.machine.bars(item.run, hot.state.status, event)) is not None
        ):
            self._answers.refuse(item, barred)
            return True
        if item.expected_version is not None and item.expected_version != hot.state.seq:
            expected, found = item.expected_version, hot.state.seq
            message = f"{item.run} is at version {found}, not {expected}; look at it again, then decide"
            self._answers.refuse(
                item, VersionMismatch(message, details={"expected": expected, "found": found})
            )
            return True
        if hot.state.status in TERMINAL and hot.machine.traits.final:
            if hot.state.state is None:
                message = f"{item.run} was {hot.state.status} before it had begun; start it anew"
            elif not isinstance(event, Retry):
                message = f"{item.run} is {hot.state.status}; it takes no {event.kind} any more"
            else:
                return False
            self._answers.refuse(item, RunEnded(message))
            return True
        return False

    def _start_again(self, hot: Hot, item: Item, event: Started) -> None:
        """The same id again: the same run, if definition and input are the same."""
        body = next((row[6] for row in self._staging.batch.records if row[0] == hot.no and row[1] == 1), None)
        if body is None:
            stored = self._reads.record(hot.no, 1)
            assert stored is not None, "a run begins with a record"
            body = stored.body
        was: dict[str, Any] = decode_trusted(body)["event"]
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


def _is_another(hot: Hot, asked: NewRun) -> bool:
    """Whether a run is of another workflow than whoever sent the event took it for."""
    return hot.state.dialect != asked.dialect or hot.state.workflow != asked.workflow
