"""What follows from an admitted step: its record, its run's row and its answer; rows for timers and tasks, messages to
other runs, work for workers.

Everything here only adds to the batch at hand. Messages between runs of one owner are put into the
other run's mailbox and usually stepped in the same batch, so that a child which does not wait
starts, runs and reports within one commit; what does not fit is committed as an inbox row.
"""

from __future__ import annotations

from treadle.kernel.model import ENGINE_KINDS, PLACE, QUEUED, Domain, OpenIntent, Receipt
from treadle.kernel.run import Step
from treadle.kernel.state import RunState
from treadle.kernel.tracing import OPTION
from treadle.lang.alerts import NO_ALERTS
from treadle.store.rows import TimerRow

from .ahead import Ahead
from .alerts import AlertBell
from .board import Board
from .children import Children
from .commands import Deliver
from .hot import Hot
from .lines import Lines
from .mail import Mail
from .meter import settled_as
from .narrative import events_of
from .opened import join_ids
from .ports import NewRun, Work
from .registry import Registry, kept_until
from .staging import Answers, Closed, RunTurn, Staging
from .timers import Timers
from .undecided import is_undecided


class Records:
    """How an admitted step gets into the commit: its record, what follows from it, its run's row, its answer."""

    def __init__(
        self,
        staging: Staging,
        answers: Answers,
        mail: Mail,
        effects: Effects,
        registry: Registry,
        bell: AlertBell,
        lines: Lines,
    ) -> None:
        self._staging = staging
        self._answers = answers
        self._mail = mail
        self._effects = effects
        self._registry = registry
        self._bell = bell
        self._lines = lines

    def add(self, hot: Hot, step: Step, item: Deliver, *, forked: bool = False) -> None:
        """Stages an admitted step, with all that follows from it."""
        state, batch = hot.state, self._staging.batch
        if hot.machine.traits.narrated:
            told = events_of(step.record, narrated=True)
        else:
            within = item.event.events if type(item.event) is Receipt else ()
            told = [*within, *step.events] if within else step.events
        first_no = hot.event_no + 1
        hot.event_no += len(told)
        self._staging.touch(hot)
        opens, closes = _turnover(step, state)
        batch.records.append((hot.no, step.seq, hot.event_no, opens, closes, step.digest, step.body))
        batch.dialects[hot.no] = state.dialect
        batch.bytes += len(step.body)
        if step.leaves:
            self._lines.leave(state.id)
        elif state.placed:
            waits = not step.working
            if waits == hot.row.working or step.seq == 1 or _got_place(step):
                self._lines.turned(state.id, step.seq, waits=waits)
        if step.blobs:
            self._staging.hold(hot, step.blobs)
        self._effects.apply(hot, step, item)
        self._write_row(hot, step)
        if step.status_changed and (step.seq == 1 or step.ended or step.status == "stalled"):
            alerts = self._registry.alerts(state.definition, is_root=state.parent is None)
            if alerts is not NO_ALERTS:
                self._bell.heed(hot, step, alerts)
            rests = step.status if step.ended or step.status == "stalled" else None
            trace = state.options.get(OPTION)
            turn = RunTurn(state.id, state.workflow, step.seq, rests, trace)
            self._staging.staged.turns.append(turn)
        if forked or step.wants_snapshot:
            self._staging.snapshot(hot)
        elif step.ended and not hot.machine.traits.final:
            self._staging.rest(hot, moved=step.status_changed)
        self._staging.tell(hot, told, first_no, step.seq, step.at_ns)
        if item.ack is not None or item.inbox is not None:
            self._answers.settle(item, {"run": state.id, "seq": step.seq, "status": step.shown}, None)
        if item.submission is not None:
            self._answers.remember(item.submission, {"run": state.id, "seq": step.seq})
        if state.more or state.signals:
            self._mail.owe(state.id, state.pending())

    def readable(self, hot: Hot) -> bool:
        """A run that could not be decided can be: its row says again how it stands. False if it said so already."""
        state, row = hot.state, hot.row
        if not is_undecided(row):
            return False
        row.status, row.error = state.shown, state.error
        self._staging.batch.runs_changed[row.no] = row
        hot.batch = self._staging.staged.number
        return True

    def _write_row(self, hot: Hot, step: Step) -> None:
        """The run's row changes only when what it says does."""
        state, row, batch = hot.state, hot.row, self._staging.batch
        working = step.working
        if not (
            step.status_changed
            or row.status == QUEUED
            or row.working != working
            or row.reference != state.reference
            or row.definition != state.definition
            or (row.error is not None and is_undecided(row))
        ):
            return
        row.status, row.working, row.reference = step.shown, working, state.reference
        if row.definition != state.definition:  # it goes by the version of what it goes on under
            row.version = self._registry.load(state.definition).row.version or row.version
        row.definition, row.seq, row.updated_ns = state.definition, step.seq, step.at_ns
        row.ended_ns, row.error, row.retain_ns = state.ended_ns, state.error, None
        if state.ended_ns is not None and hot.machine.traits.final:
            age_ns = self._registry.retention_ns(state.definition, row.status)
            row.retain_ns = kept_until(state.ended_ns, age_ns)
        if step.seq == 1:
            row.parent, row.parent_intent = state.parent, state.parent_intent
            row.continued_from, row.started_ns = state.continued_from, state.started_ns
            batch.runs_new[row.no] = row
            if (family := self._registry.unwritten(state.definition)) is not None:
                family.write(batch, step.at_ns)
        elif row.no not in batch.runs_new:
            batch.runs_changed[row.no] = row


def _got_place(step: Step) -> bool:
    """Whether a run begins with this step that was in line."""
    return step.settled is not None and step.settled.kind == PLACE


def _turnover(step: Step, state: RunState) -> tuple[bytes | None, bytes | None]:
    """The ids that a step opened and that are open after it; those that it settled or cancelled. Nearly always there is
    one of each."""
    opens = closes = None
    if len(step.opened) == 1:
        id = step.opened[0].id
        opens = bytes.fromhex(id) if id in state.open else None
    elif step.opened:
        opens = join_ids([intent.id for intent in step.opened if intent.id in state.open])
    if step.cancelled:
        gone = step.cancelled if step.settled is None else [step.settled, *step.cancelled]
        closes = join_ids([intent.id for intent in gone])
    elif step.settled is not None:
        closes = bytes.fromhex(step.settled.id)
    return opens, closes


class Effects:
    """What a step opened, settled and cancelled, done about."""

    def __init__(
        self,
        staging: Staging,
        mail: Mail,
        timers: Timers,
        board: Board,
        children: Children,
        ahead: Ahead,
    ) -> None:
        self._staging = staging
        self._mail = mail
        self._timers = timers
        self._board = board
        self._children = children
        self._ahead = ahead

    def apply(self, hot: Hot, step: Step, item: Deliver) -> None:
        state, staged = hot.state, self._staging.staged
        if (settled := step.settled) is not None:
            if self._ahead.begun:
                self._ahead.settled(settled.id)
            else:
                staged.firm = True
            self._close(hot, settled)
            status = item.event.status if type(item.event) is Receipt else settled_as(item.event)
            staged.closed.append(Closed(settled, status, step.at_ns))
            if settled.kind == "task":
                self._settle_task(settled, item)
            elif status == "timeout" and settled.kind not in ENGINE_KINDS:
                staged.revoked.append(settled.id)
        for intent in step.cancelled:
            self._cancel(hot, intent)
            staged.closed.append(Closed(intent, "cancelled", step.at_ns))
        for intent in step.opened:
            if intent.due_ns is not None and intent.id in state.open:
                self._arm(hot, intent, intent.due_ns)
            if intent.kind in ENGINE_KINDS:
                self._open(hot, step, intent)
            else:
                work = Work(state.id, state.workflow, state.dialect, state.definition, state.options, intent)
                # Nobody can read a payload of this very commit before it is durable.
                if not staged.batch.blobs and self._ahead.is_pure(work, hot.definition):
                    self._ahead.opened(work)
                else:
                    staged.dispatched.append(work)
        if step.ended and state.parent_intent is not None:
            self._children.report_end(hot, step, item)
        if item.reply is not None and step.seq == 1 and state.parent_intent is None:
            self._children.report_start(hot, item.reply)

    def _settle_task(self, intent: OpenIntent, item: Deliver) -> None:
        receipt = item.event if isinstance(item.event, Receipt) else None
        status = receipt.status if receipt is not None else "ok"
        outcome = {"ok": "completed", "timeout": "expired"}.get(status, "cancelled")
        answer = {"answer": receipt.value} if receipt is not None and status == "ok" else {}
        self._board.close(intent.id, outcome, None if receipt is None else receipt.by, **answer)

    def _cancel(self, hot: Hot, intent: OpenIntent) -> None:
        self._close(hot, intent)
        if intent.kind == "task":
            self._board.close(intent.id, "cancelled", None)
        elif intent.kind == "child":
            self._children.cancel(hot, intent)
        elif intent.kind not in ENGINE_KINDS:
            self._staging.staged.revoked.append(intent.id)
            self._ahead.cancelled(intent.id)

    def _arm(self, hot: Hot, intent: OpenIntent, due_ns: int) -> None:
        self._staging.batch.timers[intent.id] = TimerRow(
            intent.id, hot.no, due_ns, intent.kind == "timer", hot.state.id
        )
        self._timers.arm(due_ns)

    def _open(self, hot: Hot, step: Step, intent: OpenIntent) -> None:
        match intent.kind:
            case "task":
                self._board.open(hot, intent)
            case "child" | "start":
                self._children.start(hot, intent)
            case "deliver":
                self._deliver(hot, step, intent)

    def _deliver(self, hot: Hot, step: Step, intent: OpenIntent) -> None:
        params = intent.params
        create = NewRun(hot.state.dialect, params["workflow"], None, params["definition"], params.get("key"))
        event = Domain(schema=params["event"]["schema"], value=step.carried(intent), source=intent.id)
        self._mail.send(params["run"], event, f"deliver:{intent.id}", create=create)

    def _close(self, hot: Hot, intent: OpenIntent) -> None:
        """Nobody waits for it any more: its time and its checkpoint go."""
        batch = self._staging.batch
        if intent.due_ns is not None and batch.timers.pop(intent.id, None) is None:
            batch.timers_done[intent.id] = hot.no
        if batch.checkpoints:
            batch.checkpoints.pop(intent.id, None)
        if intent.id in hot.checkpoints:
            hot.checkpoints -= {intent.id}
            batch.checkpoints_done.append(intent.id)
