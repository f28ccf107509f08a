"""Runs that go on under another definition: cells after an apply, functions whose code was changed, a retry under a mended
definition, a fork. Each moves in a record of its own, or with the event that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from msgspec.structs import replace

from treadle.kernel.errors import Undecidable, Unsupported
from treadle.kernel.history import restore, snapshot_of
from treadle.kernel.limits import Limits
from treadle.kernel.model import Apply, Domain, Event, Retry, Started, event_value
from treadle.kernel.roles import (
    CellMachine,
    CodeMachine,
    PastMachine,
    has_role,
    is_cell,
    is_past,
    unavailable,
)
from treadle.kernel.run import advance
from treadle.kernel.state import RunState
from treadle.kernel.values import Value

from .commands import Deliver
from .effects import Records
from .hot import BlobCache, Hot, HotRuns
from .mail import Mail
from .ports import Clock
from .registry import Loaded, Registry
from .staging import Staging
from .undecided import Undecided

# How soon an event is tried again that a barrier has stopped.
_LOOK_AGAIN_NS: Final = 20_000_000


def check_compatible(loaded: Loaded, run: RunState, *, moves: bool = True) -> None:
    """Refuses a definition of another dialect, and one that the run's state does not fit."""
    if loaded.row.dialect != run.dialect:
        raise Unsupported(f"{run.id} is a {run.dialect} run; the definition is a {loaded.row.dialect}")
    if moves and (problem := loaded.machine.compatible(loaded.definition, run.state)):
        raise Unsupported(
            f"{run.id} cannot go on under {loaded.row.name}: {problem}", code="INCOMPATIBLE_DEFINITION"
        )


def mended(registry: Registry, run: RunState, digest: str) -> Loaded:
    """The definition under which a run goes on from where it stopped."""
    loaded = registry.load(digest)
    if isinstance(loaded.machine, CellMachine | CodeMachine):
        raise Unsupported(
            f"{run.id} takes its code from what is deployed: deploy the mended one, then retry without a definition"
        )
    check_compatible(loaded, run)
    if loaded.row.name != run.workflow:
        raise Unsupported(
            f"{run.id} is a run of {run.workflow}, and the definition is {loaded.row.name}; fork it instead",
            code="INCOMPATIBLE_DEFINITION",
        )
    return loaded


class Moves:
    """Moves runs to other definitions."""

    def __init__(
        self,
        registry: Registry,
        hot: HotRuns,
        blobs: BlobCache,
        staging: Staging,
        mail: Mail,
        records: Records,
        undecided: Undecided,
        clock: Clock,
        entropy: Callable[[int], bytes],
        limits: Limits,
    ) -> None:
        self._registry = registry
        self._hot = hot
        self._blobs = blobs
        self._staging = staging
        self._mail = mail
        self._records = records
        self._undecided = undecided
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        # What was read of runs that are decided elsewhere, for the event at hand.
        self.seen: dict[str, Value] = {}

    def is_barred(self, hot: Hot, item: Deliver, at_ns: int) -> bool:
        """Whether a cell's event has to wait, because its application is about to move to another manifest and its
        members are being asked (`apps/barrier.py`)."""
        if not has_role(type(hot.machine), CellMachine):
            return False
        staged, definition = self._staging.staged, hot.state.definition
        if definition not in staged.barring:
            if cast("CellMachine", hot.machine).closed_until(hot.definition, self._state_of) <= at_ns:
                return False
            staged.barring.add(definition)
        staged.taken.pop()
        if hot.state.seq == 0:
            self._hot.drop(item.run)
        self._mail.bar(item, at_ns + _LOOK_AGAIN_NS)
        return True

    def to_cell(self, hot: Hot, item: Deliver, event: Domain) -> Event:
        """A cell comes to life with its first event, in one record. After an apply it moves to the new
        definition with the next one, which names it."""
        if hot.state.seq == 0:
            return Started(
                definition=hot.state.definition,
                input=event_value(event),
                seed=self._entropy(16),
                machine=hot.machine.version,
            )
        if item.create is not None:
            asked, machine = item.create.definition, hot.machine
            if asked == hot.state.definition and has_role(type(machine), CellMachine):
                self.follow(hot, cast("CellMachine", machine))
            else:
                self._move(hot, self.current(self._registry.load(asked)).row.digest)
        return event

    def current(self, asked: Loaded) -> Loaded:
        """The definition of a run that events bring to life: what is active when the event is admitted. Its sender
        may have known an earlier version."""
        machine = asked.machine
        if not is_cell(machine):
            return asked
        other = machine.successor(asked.definition, self._state_of)
        return asked if other in (None, asked.row.digest) else self._registry.load(other)

    def follow(self, hot: Hot, machine: CellMachine) -> None:
        """A cell that is steered goes under what is active by now."""
        self._move(hot, machine.successor(hot.definition, self._state_of))

    def _move(self, hot: Hot, definition: str | None) -> None:
        """Moves a run to another definition, in a record of its own."""
        if definition is None or definition == hot.state.definition:
            return
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
        self._records.add(hot, step, Deliver(hot.state.id, moved, derived=True))

    def moved(self, hot: Hot, item: Deliver, event: Event | None) -> bool:
        """Moves a run to the code that it takes an event under; False if that cannot take it on."""
        machine = hot.machine
        if not (is_past(machine) and (other := machine.moves_on(hot.definition, event))):
            return True
        try:
            self._move(hot, other)
        except Undecidable as error:
            self._hot.drop(hot.state.id)
            if hot.batch != self._staging.staged.number:
                self._undecided.leave(item, error)
            return False
        return True

    def look(self, hot: Hot, item: Deliver) -> bool:
        """No event: the run looks what it owes itself, and whether there is code for it again."""
        if not self.moved(hot, item, None):
            return self.put_off(hot)
        if unavailable(hot.machine, hot.definition) is None:
            self._records.readable(hot)
        self._mail.owe(hot.state.id, hot.state.pending())
        return True

    def put_off(self, hot: Hot) -> bool:
        """False, with the event put back, if the run's part in this batch has to be committed first."""
        if hot.batch != self._staging.staged.number:
            return True
        self._staging.staged.taken.pop()
        return False

    def prepared(self, hot: Hot, event: Retry, at_ns: int) -> Retry:
        """A retry as it is decided: under the definition that it names, and tried before it has to wait."""
        if event.definition is not None:
            event = self._mend(hot, event, event.definition)
        if event.place == "queued":
            self._rehearse(hot, event, at_ns)
        return event

    def _mend(self, hot: Hot, event: Retry, digest: str) -> Retry:
        """A run goes on under another definition from this event on. Refused, it is loaded again as it was."""
        loaded = mended(self._registry, hot.state, digest)
        hot.machine, hot.definition = loaded.machine, loaded.definition
        return replace(event, was=hot.state.definition)

    def _rehearse(self, hot: Hot, event: Retry, at_ns: int) -> None:
        """A retry that has to wait is decided later; what its run refuses is refused now, as ever."""
        probe = restore(snapshot_of(hot.state))
        now = replace(event, place="")
        machine = hot.machine
        advance(probe, machine, hot.definition, now, at_ns=at_ns, blobs=self._blobs, limits=self._limits)
        if isinstance(machine, PastMachine):
            machine.forget(probe.state)

    def _state_of(self, run: str) -> Value:
        """The state of another run. One that is decided elsewhere is looked at once for each event."""
        if (hot := self._hot.peek(run)) is not None:
            return hot.state.state
        if run in self.seen:
            return self.seen[run]
        hot = self._hot.get(run)
        state = None if hot is None else hot.state.state
        if hot is None or self._hot.peek(run) is None:
            self.seen[run] = state
        return state
