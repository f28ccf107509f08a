"""One event of one run: find the run, decide whether the event still counts, step, record.

An event that is refused changes nothing and leaves a line in the diagnostics. An event that has
happened (a receipt) cannot be refused: if its step fails, the failure is recorded and the run fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from treadle.kernel.errors import PASSING, RunNotFound, TreadleError, Undecidable
from treadle.kernel.history import restore, snapshot_of
from treadle.kernel.limits import Limits
from treadle.kernel.model import (
    ENGINE_KINDS,
    PLACE,
    REFUSABLE,
    TERMINAL,
    Apply,
    Cancel,
    Continue,
    Domain,
    Event,
    OpenIntent,
    Receipt,
    Reset,
    Retry,
    Started,
    event_value,
)
from treadle.kernel.roles import CellMachine, CodeMachine, PastMachine, has_role, unavailable
from treadle.kernel.run import Step, advance, error_of, fault
from treadle.kernel.state import RunState
from treadle.kernel.values import Value
from treadle.store.place_rows import PlaceRow
from treadle.store.protocol import Reads, RunRow

from .effects import Records
from .gate import Gate
from .hot import BlobCache, Expected, Hot, HotRuns
from .lines import Lines
from .mail import Mail
from .mending import mended
from .payloads import disarming, handed_over, lightened
from .ports import Clock, Item, NewRun, Own
from .registry import Loaded, Registry
from .staging import Answers, Numbers, Staging
from .undecided import Undecided, is_lasting

log = logging.getLogger("treadle.core")

# So many runs are read together at most.
TOGETHER_MAX: Final = 100
# How soon an event is tried again that a barrier has stopped.
_LOOK_AGAIN_NS: Final = 20_000_000
# What people steer a run with.
_STEERING: Final = frozenset({Reset, Retry, Cancel})


class Admission:
    def __init__(
        self,
        reads: Reads,
        registry: Registry,
        hot: HotRuns,
        blobs: BlobCache,
        staging: Staging,
        answers: Answers,
        mail: Mail,
        gate: Gate,
        records: Records,
        lines: Lines,
        undecided: Undecided,
        numbers: Numbers,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        limits: Limits,
    ) -> None:
        self._reads = reads
        self._registry = registry
        self._hot = hot
        self._blobs = blobs
        self._staging = staging
        self._answers = answers
        self._mail = mail
        self._gate = gate
        self._records = records
        self._lines = lines
        self._undecided = undecided
        self._numbers = numbers
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        # What was read of runs that are decided elsewhere, for the event at hand.
        self._seen: dict[str, Value] = {}

    def admit(self, item: Item) -> bool:
        """Admits one event; False if what is staged must be committed before it can be. If it raises, its run is to be
        dropped."""
        self._staging.staged.taken.append(item)
        if self._staging.held.several:
            self._staging.belongs(item.run)
        if self._seen:
            self._seen = {}
        if item.submission is not None and self._answers.given_before(item):
            return True
        hot = self._hot.peek(item.run)
        if hot is None and (hot := self._find(item)) is None:
            return True
        event = item.event
        if event is None:
            return self._look(hot, item)
        state = hot.state
        owed = state.pending() if state.more or state.signals else None
        if owed is not None and event != owed:
            # After a restart something may come before what the run owes itself: it has to wait.
            self._staging.staged.taken.pop()
            self._mail.post(item, front=True)
            self._mail.owe(state.id, owed)
            return True
        if type(event) is Continue and owed is None:
            return True
        if type(event) is Receipt and event.intent == PLACE:
            if (given := self._lines.receipt(state)) is None:
                # It waits for none any more, or none was given to it.
                self._answers.settle(item, {"run": item.run, "seq": state.seq, "stale": True}, None)
                return True
            event = given
        if not _counts_plainly(hot, item, event) and self._gate.turns_away(hot, item, event):
            return True
        at_ns = self._clock.now_ns()
        if type(event) is Domain:
            if self._is_barred(hot, item, at_ns):
                return True
            event = self._to_cell(hot, item, event)
        elif type(event) in _STEERING and isinstance(hot.machine, CellMachine):
            if self._is_barred(hot, item, at_ns):
                return True
            self._move(hot, hot.machine.successor(hot.definition, self._state_of))
        elif (
            state.held is None
            and has_role(type(hot.machine), PastMachine)
            and not self._moved(hot, item, event)
        ):
            return self._undecided_now(hot)
        if type(event) is Retry and self._records.readable(hot):
            # It had only waited for its code.
            answer = {"run": item.run, "seq": state.seq, "status": state.status}
            self._answers.settle(item, answer, None)
            return True
        if (
            has_role(type(hot.machine), CodeMachine)
            and (problem := unavailable(hot.machine, hot.definition)) is not None
        ):
            self._hot.drop(item.run)
            self._leave(item, problem)
            return True
        if type(event) is Started or type(event) is Retry:
            return self._begin(hot, item, event, at_ns)
        return self._step(hot, item, event, at_ns)

    def _is_barred(self, hot: Hot, item: Item, at_ns: int) -> bool:
        """Whether a cell's event has to wait, because its application is about to move to another manifest and its
        members are being asked (`apps/barrier.py`)."""
        if not isinstance(hot.machine, CellMachine):
            return False
        staged, definition = self._staging.staged, hot.state.definition
        if definition not in staged.barring:
            if hot.machine.closed_until(hot.definition, self._state_of) <= at_ns:
                return False
            staged.barring.add(definition)
        staged.taken.pop()
        if hot.state.seq == 0:
            self._hot.drop(item.run)
        self._mail.bar(item, at_ns + _LOOK_AGAIN_NS)
        return True

    def _begin(self, hot: Hot, item: Item, event: Started | Retry, at_ns: int) -> bool:
        """An event with which a run begins, or begins again: where its workflow is limited it needs a place."""
        if type(event) is Retry and hot.no in self._staging.batch.runs_new:
            # What it was started with is read from the store.
            self._staging.staged.taken.pop()
            return False
        try:
            if self._lines.silent and self._registry.quota(event.definition or hot.state.definition) is None:
                return self._step(hot, item, event, at_ns)
            place = self._lines.place_for(hot, event, item.blobs)
        except PASSING:
            raise
        except TreadleError as error:
            return self._step_failed(hot, item, event, error, at_ns)
        if place is None:
            return self._step(hot, item, event, at_ns)
        placed = replace(event, place="held" if place.held else "queued")
        return self._step(hot, item, placed, at_ns, place)

    def _step(self, hot: Hot, item: Item, event: Event, at_ns: int, place: PlaceRow | None = None) -> bool:
        """Steps a run, and stages what comes of it."""
        if item.blobs:
            self._staging.hold(hot, item.blobs)
        state = hot.state
        if type(event) is Receipt:
            # What workers give is by reference already, and was marked where it came from.
            settled = state.open.get(event.intent)
            if settled is None or settled.kind in ENGINE_KINDS:
                event = self._taken_in(hot, event, settled)
        elif type(event) is not Started or event.parent is not None or event.continued_from is not None:
            event = self._taken_in(hot, event, None)
        try:
            if type(event) is Retry:
                event = self._prepared(hot, event, at_ns)
            step = advance(
                hot.state,
                hot.machine,
                hot.definition,
                event,
                at_ns=at_ns,
                blobs=self._blobs,
                limits=self._limits,
            )
        except PASSING:
            raise
        except Exception as error:
            return self._step_failed(hot, item, event, error, at_ns)
        if place is not None:
            self._lines.enter(place)
        self._records.add(hot, step, item)
        return True

    def _prepared(self, hot: Hot, event: Retry, at_ns: int) -> Retry:
        """A retry as it is decided: under the definition that it names, and tried before it has to wait."""
        if event.definition is not None:
            event = self._mend(hot, event, event.definition)
        if event.place == "queued":
            self._rehearse(hot, event, at_ns)
        return event

    def _rehearse(self, hot: Hot, event: Retry, at_ns: int) -> None:
        """A retry that has to wait is decided later; what its run refuses is refused now, as ever."""
        probe = restore(snapshot_of(hot.state))
        now = replace(event, place="")
        machine = hot.machine
        advance(probe, machine, hot.definition, now, at_ns=at_ns, blobs=self._blobs, limits=self._limits)
        if isinstance(machine, PastMachine):
            machine.forget(probe.state)

    def _find(self, item: Item) -> Hot | None:
        """A run that is not in memory, loaded or made; None, with whoever asks answered, if that cannot be."""
        try:
            if isinstance(item.event, Retry):
                self._undecided.try_again(item.run)
            if (reason := self._undecided.known.get(item.run)) is not None:
                raise reason
            hot = self._hot.get(item.run, self._expected(item.run))
            if hot is None and item.create is not None:
                hot = self._create(item)
        except PASSING:
            raise
        except Exception as error:
            self._hot.drop(item.run)
            known = error if isinstance(error, TreadleError) else TreadleError.from_value(error_of(error))
            if item.create is not None and self._reads.run(item.run) is None:
                self._answers.refuse(item, known)
            elif isinstance(item.event, Cancel) and (is_lasting(known) or isinstance(known, Undecidable)):
                self._undecided.end(item, known)
            else:
                # Damaged, or its code is not at hand here: left as it is, its open work stays open.
                self._undecided.quarantine(item, known)
            return None
        if hot is None:
            self._answers.refuse(
                item, RunNotFound(f"there is no run {item.run!r}; `treadle list` shows what is there")
            )
        return hot

    def _expected(self, run: str) -> Expected:
        """What this run is loaded from, read together with those whose turn comes next in this batch."""
        staged = self._staging.staged
        if run not in staged.expected.asked:
            room = min(self._limits.batch_records - len(staged.batch.records), TOGETHER_MAX)
            self._hot.expect([run, *self._mail.upcoming(room - 1)], staged.expected)
        return staged.expected

    def _taken_in(self, hot: Hot, event: Event, settled: OpenIntent | None) -> Event:
        """What people or other runs send, as the journal takes it."""
        # They stay for as long as this run does, also when the run that made them is gone.
        self._staging.batch.blob_refs += [(hot.no, checksum) for checksum in handed_over(event, settled)]
        event = disarming(event, settled)
        if hot.machine.traits.large_data:
            event, blobs = lightened(event, settled, hot.machine.dialect)
            if blobs:
                self._staging.hold(hot, blobs)
        return event

    def _create(self, item: Item) -> Hot:
        assert item.create is not None
        new = item.create
        loaded = self._current(new)
        definition = loaded.row.digest
        now = self._clock.now_ns()
        about: dict[str, Any] = {
            "id": item.run,
            "dialect": new.dialect,
            "workflow": new.workflow,
            "version": new.version,
            "definition": definition,
        }
        row = RunRow(no=self._numbers.next_run(), cell_key=new.key, started_ns=now, **about)
        state = RunState(key=new.key, **about)
        hot = Hot(state, row.no, 0, loaded.machine, loaded.definition, row, set())
        self._hot.add(hot)
        if not isinstance(item.event, Started | Domain):
            started = Started(definition=definition, seed=self._entropy(16), machine=loaded.machine.version)
            step = advance(
                state,
                loaded.machine,
                loaded.definition,
                started,
                at_ns=now,
                blobs=self._blobs,
                limits=self._limits,
            )
            self._records.add(hot, step, Item(item.run, started, derived=True))
        return hot

    def _to_cell(self, hot: Hot, item: Item, event: Domain) -> Event:
        """A cell comes to life with its first event, in one record. After an apply it moves to the new
        definition with the next one, which names it."""
        if hot.state.seq == 0:
            return Started(
                definition=hot.state.definition,
                input=event_value(event),
                seed=self._entropy(16),
                machine=hot.machine.version,
            )
        self._move(hot, self._current(item.create).row.digest if item.create is not None else None)
        return event

    def _current(self, new: NewRun) -> Loaded:
        """The definition of a run that events bring to life: what is active when the event is admitted. Its sender
        may have known an earlier version."""
        loaded = self._registry.load(new.definition)
        if not has_role(type(loaded.machine), CellMachine) or not isinstance(loaded.machine, CellMachine):
            return loaded
        other = loaded.machine.successor(loaded.definition, self._state_of)
        return loaded if other in (None, new.definition) else self._registry.load(other)

    def _move(self, hot: Hot, definition: str | None) -> None:
        """Moves a run to another definition, in a record of its own."""
        if definition in (None, hot.state.definition):
            return
        assert definition is not None
        moved = Apply(definition=definition, was=hot.state.definition)
        loaded = self._registry.load(definition)
        step = advance(
            hot.state,
            loaded.machine,
            loaded.definition,
            moved,
            at_ns=self._clock.now_ns(),
            limits=self._limits,
        )
        hot.machine, hot.definition = loaded.machine, loaded.definition
        self._records.add(hot, step, Item(hot.state.id, moved, derived=True))

    def _mend(self, hot: Hot, event: Retry, digest: str) -> Retry:
        """A run goes on under another definition from this event on. Refused, it is loaded again as it was."""
        loaded = mended(self._registry, hot.state, digest)
        hot.machine, hot.definition = loaded.machine, loaded.definition
        return replace(event, was=hot.state.definition)

    def _look(self, hot: Hot, item: Item) -> bool:
        """No event: the run looks what it owes itself, and whether there is code for it again."""
        if not self._moved(hot, item, None):
            return self._undecided_now(hot)
        if unavailable(hot.machine, hot.definition) is None:
            self._records.readable(hot)
        self._mail.owe(hot.state.id, hot.state.pending())
        return True

    def _moved(self, hot: Hot, item: Item, event: Event | None) -> bool:
        """Moves a run to the code that it takes an event under; False if that cannot take it on."""
        machine = hot.machine
        if not (isinstance(machine, PastMachine) and (other := machine.moves_on(hot.definition, event))):
            return True
        try:
            self._move(hot, other)
        except Undecidable as error:
            self._hot.drop(hot.state.id)
            if hot.batch != self._staging.staged.number:
                self._leave(item, error)
            return False
        return True

    def _leave(self, item: Item, error: TreadleError) -> None:
        """Leaves a run as it is, because this code cannot take it on; it can be ended all the same."""
        if isinstance(item.event, Cancel) and isinstance(error, Undecidable):
            self._undecided.end(item, error)
        else:
            self._undecided.quarantine(item, error)

    def _undecided_now(self, hot: Hot) -> bool:
        """False, with the event put back, if the run's part in this batch has to be committed first."""
        if hot.batch != self._staging.staged.number:
            return True
        self._staging.staged.taken.pop()
        return False

    def _state_of(self, run: str) -> Value:
        """The state of another run. One that is decided elsewhere is looked at once for each event."""
        if run in self._seen:
            return self._seen[run]
        hot = self._hot.get(run)
        state = None if hot is None else hot.state.state
        if hot is None or self._hot.peek(run) is None:
            self._seen[run] = state
        return state

    def _step_failed(self, hot: Hot, item: Item, event: Event, error: Exception, at_ns: int) -> bool:
        """A machine raised: its state may be half changed, so it is reloaded from what is durable."""
        self._hot.drop(item.run)
        if hot.batch == self._staging.staged.number:
            self._staging.staged.taken.pop()
            return False
        if not isinstance(error, TreadleError):
            log.error("the machine of %s raised on a %s event", item.run, event.kind, exc_info=error)
        if isinstance(error, Undecidable) and self._reads.run(item.run) is not None:
            self._leave(item, error)
            return True
        if _is_refusable(item, hot):
            known = error if isinstance(error, TreadleError) else TreadleError.from_value(error_of(error))
            self._answers.refuse(item, known)
            return True
        again = self._hot.get(item.run) or self._create(item)
        self._records.add(again, fault(again.state, event, error_of(error), at_ns=at_ns), item)
        return True

    def adopt(self, hot: Hot, step: Step) -> None:
        """Takes in a run that was made by other means than an event: a fork."""
        self._hot.add(hot)
        self._records.add(hot, step, Own(hot.state.id, None), forked=True)


def _counts_plainly(hot: Hot, item: Item, event: Event) -> bool:
    """Whether an event counts without a doubt, so that the gate need not be asked: nearly all do. The receipt for what
    is open, under no condition; the start of a run that is not there yet."""
    if item.provided is not None or item.expected_version is not None:
        return False
    state = hot.state
    if has_role(type(hot.machine), CellMachine) or state.status in TERMINAL:
        return False
    if type(event) is Receipt:
        return event.intent in state.open and item.create is None and not hot.machine.traits.signed
    new = item.create
    return (
        type(event) is Started
        and state.seq == 0
        and new is not None
        and (new.workflow, new.dialect) == (state.workflow, state.dialect)
    )


def _is_refusable(item: Item, hot: Hot) -> bool:
    """An event of another run has happened, like a receipt; only a cell that has failed before
    does not take it."""
    if isinstance(item.event, Domain) and item.event.source is not None:
        return hot.state.status == "failed"
    return isinstance(item.event, REFUSABLE)
