"""How an admitted step gets into the commit: its record, what follows from it, its run's row, its answer."""

from __future__ import annotations

from treadle.kernel.model import PLACE, QUEUED, Receipt
from treadle.kernel.run import Step
from treadle.kernel.state import RunState
from treadle.kernel.tracing import OPTION
from treadle.lang.alerts import NO_ALERTS
from treadle.lang.retention import kept_until

from .alerts import AlertBell
from .answers import Answers
from .effects import Effects
from .hot import Hot
from .lines import Lines
from .mail import Mail
from .narrative import events_of
from .opened import join_ids
from .ports import Item
from .registry import Registry
from .staging import RunTurn, Staging
from .undecided import is_undecided


class Records:
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

    def add(self, hot: Hot, step: Step, item: Item, *, forked: bool = False) -> None:
        """Stages an admitted step, with all that follows from it."""
        state, batch = hot.state, self._staging.batch
        if hot.machine.traits.narrated:
            told = events_of(step.record, narrated=True)
        else:
            told = [*item.event.events, *step.events] if type(item.event) is Receipt else step.events
        first_no = hot.event_no + 1
        hot.event_no += len(told)
        self._staging.touch(hot)
        opens = _opens(step, state) if step.opened else None
        closes = _closes(step)
        batch.records.append((hot.no, step.seq, hot.event_no, opens, closes, step.digest, step.body))
        batch.dialects[hot.no] = state.dialect
        batch.bytes += len(step.body)
        if step.leaves:
            self._lines.leave(state.id)
        elif state.placed:
            waits = not state.working
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
            turn = RunTurn(state.id, state.workflow, step.seq == 1, rests, trace)
            self._staging.staged.turns.append(turn)
        if forked or step.wants_snapshot:
            self._staging.snapshot(hot)
        elif step.ended and not hot.machine.traits.final:
            self._staging.rest(hot, moved=step.status_changed)
        self._staging.tell(hot, told, first_no, step.seq, step.at_ns)
        if item.ack is not None or item.inbox is not None:
            self._answers.settle(item, {"run": state.id, "seq": step.seq, "status": state.shown}, None)
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
        working = state.working
        if not (
            step.status_changed
            or row.status == QUEUED
            or row.working != working
            or row.reference != state.reference
            or row.definition != state.definition
            or (row.error is not None and is_undecided(row))
        ):
            return
        row.status, row.working, row.reference = state.shown, working, state.reference
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


def _opens(step: Step, state: RunState) -> bytes | None:
    """The ids that a step opened, and that are open after it."""
    if len(step.opened) == 1:
        id = step.opened[0].id
        return bytes.fromhex(id) if id in state.open else None
    return join_ids([intent.id for intent in step.opened if intent.id in state.open])


def _closes(step: Step) -> bytes | None:
    """The ids that a step settled or cancelled."""
    if step.cancelled:
        gone = step.cancelled if step.settled is None else [step.settled, *step.cancelled]
        return join_ids([intent.id for intent in gone])
    return None if step.settled is None else bytes.fromhex(step.settled.id)
