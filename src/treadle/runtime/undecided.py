"""Runs that cannot be decided: their journal is damaged, is decided differently now, or is too old.

Such a run is left as it is, and says so: its row carries the reason, so that a list shows it and nobody waits
for it. It can be ended all the same, without its machine: the end is a record like any other, made from
what the store knows of the run (open ids, timers, tasks, children), never from its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.kernel.errors import TreadleError, Undecidable
from treadle.kernel.machine import RETENTION_NS
from treadle.kernel.model import TERMINAL, Cancel, OpenIntent, Patch, Receipt, Signal
from treadle.kernel.run import Step, abandon, error_of
from treadle.kernel.state import RunState
from treadle.kernel.values import Value
from treadle.store.rows import GUEST, Message
from treadle.store.run_rows import RunRow

from .board import Board
from .children import PARENT
from .commands import Deliver, Own, message_to_bytes
from .lines import Lines
from .mail import Mail
from .narrative import events_of, numbered
from .opened import join_ids, split_ids
from .ports import Clock, News
from .registry import Registry
from .shards import Held
from .staging import Answers, Staged, Staging

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


# Key of a row's error that tells it from the error of a run that has failed or stalled.
UNDECIDED = "undecided"


def is_undecided(row: RunRow) -> bool:
    return row.error is not None and row.error.get(UNDECIDED) is True and row.status not in TERMINAL


def is_lasting(error: TreadleError) -> bool:
    """Whether nothing but an end helps, as far as we know: code that is not at hand may come."""
    return error.cls in ("consistency", "internal")


class Undecided:
    def __init__(
        self,
        reads: Reads,
        registry: Registry,
        staging: Staging,
        answers: Answers,
        mail: Mail,
        board: Board,
        lines: Lines,
        *,
        clock: Clock,
    ) -> None:
        self._reads = reads
        self._registry = registry
        self._staging = staging
        self._answers = answers
        self._mail = mail
        self._board = board
        self._lines = lines
        self._clock = clock
        # Why they cannot be decided, by run. Nearly always there is none, and nobody asks further.
        self.known: dict[str, TreadleError] = {}
        # What came for runs that wait for other code, by the key it is stored under.
        self._held: dict[str, Deliver] = {}

    def forget(self) -> None:
        """Gives such runs another chance, after what they need was registered."""
        for run in list(self.known):
            self.try_again(run)

    def try_again(self, run: str) -> None:
        """Gives one run another chance; what came for it meanwhile is told first."""
        if not isinstance(self.known.pop(run, None), Undecidable):
            return
        for key in [key for key, item in self._held.items() if item.run == run]:
            self._mail.post(self._held.pop(key))
        self._mail.post(Own(run, None))

    def undo(self, staged: Staged) -> None:
        """A commit failed: what it found out, and kept, is nowhere."""
        for run in staged.undecided:
            self.known.pop(run, None)
        for key in staged.kept:
            self._held.pop(key, None)

    def drop_foreign(self, held: Held) -> list[Deliver]:
        """Shards were lost: others see whether they can decide their runs. What was kept for these, whose messages are theirs."""
        self.known = {run: error for run, error in self.known.items() if held.holds(run)}
        foreign = {key: item for key, item in self._held.items() if not held.holds(item.run)}
        for key in foreign:
            del self._held[key]
        return list(foreign.values())

    def leave(self, item: Deliver, error: TreadleError) -> None:
        """Leaves a run as it is, because this code cannot take it on; it can be ended all the same."""
        if isinstance(item.event, Cancel) and isinstance(error, Undecidable):
            self.end(item, error)
        else:
            self.quarantine(item, error)

    def quarantine(self, item: Deliver, error: TreadleError) -> None:
        """A run that cannot be loaded is left as it is; its open work stays open."""
        if item.run not in self.known:
            self.known[item.run] = error
            self._staging.staged.undecided.append(item.run)
            self._note(item.run, error)
        if isinstance(error, Undecidable) and isinstance(item.event, Signal | Patch | Receipt):
            self._hold(item)
            return
        if item.inbox is not None and item.inbox.startswith(GUEST):
            self._answers.refuse(item, error)
        elif item.ack is not None:
            if item.entry is not None:
                self._answers.write_down(item.entry, None, error)
            self._answers.tell(item.ack, None, error)

    def _hold(self, item: Deliver) -> None:
        """What came for a run that waits for other code waits too, durably; whoever sent it is answered."""
        assert item.event is not None
        if type(item) is Own:
            # A deadline: its row is there until it is told.
            self._held[f"own:{item.event.intent if isinstance(item.event, Receipt) else item.run}"] = item
            return
        key, is_guests = item.inbox, item.inbox is not None and item.inbox.startswith(GUEST)
        if key is None or is_guests:
            about = item.event.intent if isinstance(item.event, Receipt) else len(self._held)
            key = f"held:{item.run}:{self._clock.now_ns()}:{about}"
            self._staging.batch.inbox.append(Message(key, message_to_bytes(item), item.run))
        # Not the item itself: should this commit fail, that comes again as it was.
        self._held[key] = replace(item, inbox=key, ack=None)
        self._staging.staged.kept.append(key)
        if item.ack is not None or is_guests:
            row = self._reads.run(item.run)
            seq = row.seq if row is not None else None
            told = {"run": item.run, "seq": seq, "status": "stalled", "held": True}
            # Who did it is written down with what is decided.
            inbox = item.inbox if is_guests else None
            self._answers.settle(replace(item, inbox=inbox, entry=None), told, None)

    def _note(self, run: str, error: TreadleError) -> None:
        """Writes down that a run cannot be decided, in the diagnostics and, where that will last, in its row."""
        value = error_of(error)
        self._staging.diagnose(run, "run.unreadable", {"error": value})
        row = self._reads.run(run)
        if row is None or row.status in TERMINAL or not (is_lasting(error) or isinstance(error, Undecidable)):
            return
        self._staging.belongs(run)
        row = self._staging.batch.runs_changed.get(row.no, row)
        row.error = {**value, "details": {}, UNDECIDED: True}
        if isinstance(error, Undecidable):
            row.status, row.error["details"] = "stalled", value["details"]
        self._staging.batch.runs_changed[row.no] = row

    def end(self, item: Deliver, error: TreadleError) -> None:
        """Cancels a run that cannot be decided: what it has open is settled, its parent is told."""
        assert isinstance(item.event, Cancel)
        row = self._reads.run(item.run)
        assert row is not None, "what cannot be decided is there"
        if row.status in TERMINAL:
            self._answers.settle(
                item, {"run": row.id, "seq": row.seq, "status": row.status, "stale": True}, None
            )
            return
        state = self._skeleton(row)
        open_ids = list(state.open)
        step = abandon(state, item.event, _reason(item.event, error), at_ns=self._clock.now_ns())
        self._close(row, open_ids)
        self._record(row, state, step, open_ids)
        if row.parent and row.parent_intent and item.event.by != PARENT:
            about = {"run": row.id, "workflow": row.workflow, "version": row.version}
            told = {
                "class": "user",
                "code": "CHILD_CANCELLED",
                "message": f"{row.workflow} ({row.id}) cancelled: {item.event.reason}",
                "where": row.id,
                "details": {**about, "error": row.error, "result": None},
            }
            receipt = Receipt(intent=row.parent_intent, status="cancelled", error=told)
            self._mail.send(row.parent, receipt, f"end:{row.parent_intent}:{step.seq}")
        self._answers.settle(item, {"run": row.id, "seq": step.seq, "status": step.status}, None)

    def _skeleton(self, row: RunRow) -> RunState:
        """What a run's end needs to be recorded: where its journal ends, and the ids of what is open."""
        opened: dict[str, OpenIntent] = {}
        seq = 0
        for number, opens, closes in self._reads.open_ids(row.no, after_seq=0):
            seq = number
            for intent in split_ids(closes):
                opened.pop(intent.hex(), None)
            for intent in split_ids(opens):
                opened[intent.hex()] = OpenIntent(id=intent.hex(), kind="unknown", params={})
        last = self._reads.record(row.no, seq)
        return RunState(
            id=row.id,
            dialect=row.dialect,
            workflow=row.workflow,
            version=row.version,
            definition=row.definition,
            key=row.cell_key,
            seq=seq,
            digest=last.digest if last is not None else bytes(32),
            status="running",
            open=opened,
        )

    def _close(self, row: RunRow, open_ids: list[str]) -> None:
        """Everything that stands in the store for what was open."""
        batch = self._staging.batch
        for timer in self._reads.timers_of(row.no):
            batch.timers_done[timer.intent] = row.no
        for task in self._reads.tasks(run=row.id, status=("open", "claimed"), limit=100_000):
            self._board.close(task.id, "cancelled", None)
        self._lines.leave(row.id)
        # What was kept for it is for nobody.
        batch.inbox_done += [key for key, item in self._held.items() if item.run == row.id and item.inbox]
        batch.checkpoints_done += list(self._reads.checkpoints(row.no))
        self._staging.staged.revoked += open_ids
        for child in self._reads.runs(parent=row.id, limit=100_000):
            if child.status not in TERMINAL:
                cancel = Cancel(reason="its parent was cancelled", by=PARENT)
                self._mail.send(child.id, cancel, f"cancel:{child.parent_intent}")

    def _record(self, row: RunRow, state: RunState, step: Step, open_ids: list[str]) -> None:
        batch = self._staging.batch
        told = events_of(step.record, narrated=self._registry.machine(row.dialect).traits.narrated)
        first_no = self._reads.last_event_no(row.no) + 1
        event_no = first_no + len(told) - 1
        self._staging.belongs(row.id)
        batch.records.append((row.no, step.seq, event_no, None, join_ids(open_ids), step.digest, step.body))
        batch.dialects[row.no] = row.dialect
        batch.bytes += len(step.body)
        row.status, row.working, row.error, row.seq = step.status, False, state.error, step.seq
        row.updated_ns = row.ended_ns = step.at_ns
        row.retain_ns = step.at_ns + RETENTION_NS
        batch.runs_changed[row.no] = row
        self._staging.staged.news[row.id] = News(
            row.id, step.status, True, numbered(told, first_no, step.seq, step.at_ns), row.no
        )


def _reason(event: Cancel, error: TreadleError) -> dict[str, Value]:
    about = f"it could not be decided any more ({error.code})"
    value = TreadleError(event.reason or about, cls="user", code="CANCELLED").to_value()
    return {**value, "details": {"undecided": {"code": error.code, "message": error.message}}}
