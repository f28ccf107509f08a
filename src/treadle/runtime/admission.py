"""One event of one run: find the run, see whether the event still counts, step, record.

An event that is refused changes nothing and leaves a line in the diagnostics. An event that has
happened (a receipt) cannot be refused: if its step fails, the failure is recorded and the run fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from treadle.kernel.errors import PASSING, RunNotFound, TreadleError, Undecidable
from treadle.kernel.limits import Limits
from treadle.kernel.model import (
    ENGINE_KINDS,
    PLACE,
    REFUSABLE,
    TERMINAL,
    Cancel,
    Continue,
    Domain,
    Event,
    Frame,
    OpenIntent,
    Receipt,
    Rejected,
    Reset,
    Retry,
    Signal,
    Started,
)
from treadle.kernel.roles import CellMachine, CodeMachine, PastMachine, has_role
from treadle.kernel.run import Step, advance, error_of, fault
from treadle.kernel.values import is_slight
from treadle.store.place_rows import PlaceRow
from treadle.store.run_rows import RunRow

from .commands import Deliver, Own
from .effects import Records
from .fetching import Fetching, NotAtHand
from .gate import Gate
from .hot import BlobCache, Expected, Hot, HotRuns, fresh_state
from .lines import Lines
from .mail import Mail
from .moving import Moves
from .payloads import CARRIERS, disarming, handed_over, lightened
from .ports import Clock
from .registry import Registry
from .staging import Answers, Numbers, Staging
from .undecided import Undecided, is_lasting

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


log = logging.getLogger("treadle.core")

# So many runs are read together at most.
TOGETHER_MAX: Final = 100
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
        moves: Moves,
        undecided: Undecided,
        numbers: Numbers,
        fetching: Fetching,
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
        self._moves = moves
        self._undecided = undecided
        self._numbers = numbers
        self._fetching = fetching
        self._clock = clock
        self._entropy = entropy
        self._limits = limits

    def admit(self, item: Deliver) -> bool:
        """Admits one event; False if what is staged must be committed before it can be. If it raises, its run is to be
        dropped."""
        self._staging.staged.taken.append(item)
        if self._staging.held.several:
            self._staging.belongs(item.run)
        if self._moves.seen:
            self._moves.seen.clear()
        if item.submission is not None and self._answers.given_before(item):
            return True
        hot = self._hot.peek(item.run)
        if hot is None and (hot := self._find(item)) is None:
            return True
        event = item.event
        if event is None:
            return self._moves.look(hot, item)
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
        if not self._counts(hot, item, event):
            if state.seq == 0:
                self._hot.drop(item.run)  # it has not begun, and its id is free
            return True
        at_ns = self._clock.now_ns()
        if type(event) is Domain:
            if self._moves.is_barred(hot, item, at_ns):
                return True
            event = self._moves.to_cell(hot, item, event)
        elif type(event) in _STEERING and isinstance(hot.machine, CellMachine):
            if self._moves.is_barred(hot, item, at_ns):
                return True
            self._moves.follow(hot, hot.machine)
        elif (
            state.held is None
            and has_role(type(hot.machine), PastMachine)
            and not self._moves.moved(hot, item, event)
        ):
            return self._moves.put_off(hot)
        if type(event) is Retry and self._records.readable(hot):
            # It had only waited for its code.
            answer = {"run": item.run, "seq": state.seq, "status": state.status}
            self._answers.settle(item, answer, None)
            return True
        if has_role(type(hot.machine), CodeMachine):
            code = cast("CodeMachine", hot.machine)
            if (problem := code.unavailable(hot.definition)) is not None:
                self._hot.drop(item.run)
                self._undecided.leave(item, problem)
                return True
        if type(event) is Started or type(event) is Retry:
            return self._begin(hot, item, event, at_ns)
        return self._step(hot, item, event, at_ns)

    def _counts(self, hot: Hot, item: Deliver, event: Event) -> bool:
        """Whether an event still counts when its turn has come. If not, whoever sent it is answered (`gate.py`): what
        settles an intent that is not open, or steers a run that has ended, changes nothing; what asks for something that
        cannot be is refused."""
        state, traits, gate = hot.state, hot.machine.traits, self._gate
        match event:
            case Receipt() | Rejected() | Frame():
                if event.intent not in state.open:
                    self._answers.stale(hot, item, "receipt.stale", {"intent": event.intent})
                    return False
                if type(event) is Frame:
                    if gate.is_late(hot, item, event):
                        return False
                elif traits.signed and type(event) is Receipt and gate.is_forged(hot, item, event):
                    return False
            case Cancel() | Signal() if state.ended and (traits.final or type(event) is Cancel):
                self._answers.stale(hot, item, f"{event.kind}.stale", {"status": state.status})
                return False
        # Where nothing was changed since it was found to be allowed, it still is.
        is_older = item.changes != self._staging.changes
        if item.asked is not None and is_older and gate.is_withdrawn(item, item.asked):
            return False
        if type(event) is Started and state.seq > 0:
            gate.start_again(hot, item, event)
            return False
        new = item.create
        if new is not None and (new.workflow != state.workflow or new.dialect != state.dialect):
            gate.id_is_taken(hot, item, new)
            return False
        if has_role(type(hot.machine), CellMachine):
            cell = cast("CellMachine", hot.machine)
            if (barred := cell.bars(item.run, state.status, event)) is not None:
                self._answers.refuse(item, barred)
                return False
        if item.expected_version is not None and item.expected_version != state.seq:
            gate.is_at_another_version(hot, item, item.expected_version)
            return False
        if state.status in TERMINAL and traits.final and (type(event) is not Retry or state.state is None):
            gate.has_ended(hot, item, event)
            return False
        return True

    def _begin(self, hot: Hot, item: Deliver, event: Started | Retry, at_ns: int) -> bool:
        """An event with which a run begins, or begins again: where its workflow is limited it needs a place."""
        if type(event) is Retry and hot.no in self._staging.batch.runs_new:
            # What it was started with is read from the store.
            self._staging.staged.taken.pop()
            return False
        place, hot.rested = None, 0
        try:
            # Where operators say nothing, its definition alone says whether it is limited (`Lines.quota`).
            definition = event.definition or hot.state.definition
            if not self._lines.silent or self._registry.orders(definition).limits is not None:
                place = self._lines.place_for(hot, event, item.blobs)
        except PASSING:
            raise
        except TreadleError as error:
            return self._step_failed(hot, item, event, error, at_ns)
        if place is None:
            return self._step(hot, item, event, at_ns)
        placed = replace(event, place="held" if place.held else "queued")
        return self._step(hot, item, placed, at_ns, place)

    def _step(self, hot: Hot, item: Deliver, event: Event, at_ns: int, place: PlaceRow | None = None) -> bool:
        """Steps a run, and stages what comes of it."""
        if item.blobs:
            self._staging.hold(hot, item.blobs)
        state = hot.state
        if type(event) is Receipt:
            # What workers give is by reference already, and was marked where it came from.
            settled = state.open.get(event.intent)
            if settled is None or settled.kind in ENGINE_KINDS:
                event = self._taken_in(hot, event, settled)
        elif type(event) is not Started or item.derived or event.parent or event.continued_from:
            # What starts a run from outside was taken in where it was handed in (`Engine.start`); what another run or
            # an alert starts may hold what others keep.
            event = self._taken_in(hot, event, None)
        try:
            if type(event) is Retry:
                event = self._moves.prepared(hot, event, at_ns)
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

    def _find(self, item: Deliver) -> Hot | None:
        """A run that is not in memory, loaded or made; None, with whoever asks answered, if that cannot be."""
        try:
            if isinstance(item.event, Retry):
                self._undecided.try_again(item.run)
            if (reason := self._undecided.known.get(item.run)) is not None:
                raise reason
            hot = self._hot.get(item.run, self._expected(item.run))
            if hot is None and item.create is not None:
                hot = self._create(item)
        except NotAtHand as lacking:
            # Nothing of it is anywhere yet: it waits where it was, and all others go on.
            self._staging.staged.taken.pop()
            self._mail.post(item, front=True)
            lacking.run = item.run
            self._fetching.wait_for(lacking)
            return None
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
        if type(event) not in CARRIERS or (type(event) is Receipt and _is_slight(event)):
            return event
        # They stay for as long as this run does, also when the run that made them is gone.
        self._staging.batch.blob_refs += [(hot.no, checksum) for checksum in handed_over(event, settled)]
        event = disarming(event, settled)
        if hot.machine.traits.large_data:
            event, blobs = lightened(event, settled, hot.machine.traits.payload_hint)
            if blobs:
                self._staging.hold(hot, blobs)
        return event

    def _create(self, item: Deliver) -> Hot:
        assert item.create is not None
        new = item.create
        loaded = self._registry.load(new.definition)
        if has_role(type(loaded.machine), CellMachine):
            loaded = self._moves.current(loaded)
        definition = loaded.row.digest
        now = self._clock.now_ns()
        row = RunRow(
            no=self._numbers.next_run(),
            id=item.run,
            dialect=new.dialect,
            workflow=new.workflow,
            version=new.version,
            definition=definition,
            cell_key=new.key,
            started_ns=now,
        )
        state = fresh_state(row)
        hot = Hot(state, row.no, 0, loaded.machine, loaded.definition, row)
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
            self._records.add(hot, step, Deliver(item.run, started, derived=True))
        return hot

    def _step_failed(self, hot: Hot, item: Deliver, event: Event, error: Exception, at_ns: int) -> bool:
        """A machine raised: its state may be half changed, so it is reloaded from what is durable."""
        self._hot.drop(item.run)
        if hot.batch == self._staging.staged.number:
            self._staging.staged.taken.pop()
            return False
        if not isinstance(error, TreadleError):
            log.error("the machine of %s raised on a %s event", item.run, event.kind, exc_info=error)
        if isinstance(error, Undecidable) and self._reads.run(item.run) is not None:
            self._undecided.leave(item, error)
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


def _is_slight(receipt: Receipt) -> bool:
    """Whether nothing in a receipt can be a reference, or too large for the journal."""
    return receipt.error is None and is_slight(receipt.value)


def _is_refusable(item: Deliver, hot: Hot) -> bool:
    """An event of another run has happened, like a receipt; only a cell that has failed before
    does not take it."""
    if isinstance(item.event, Domain) and item.event.source is not None:
        return hot.state.status == "failed"
    return isinstance(item.event, REFUSABLE)
