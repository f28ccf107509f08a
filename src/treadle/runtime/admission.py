"""One event of one run: find the run, decide whether the event still counts, step, record.

An event that is refused changes nothing and leaves a line in the diagnostics. An event that has
happened (a receipt) cannot be refused: if its step fails, the failure is recorded and the run fails.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import (
    PASSING,
    RunEnded,
    RunExists,
    RunNotFound,
    TreadleError,
    VersionMismatch,
)
from treadle.kernel.model import (
    ENGINE_KINDS,
    REFUSABLE,
    Apply,
    Cancel,
    Continue,
    Domain,
    Event,
    Frame,
    Receipt,
    Rejected,
    Reset,
    Retry,
    Signal,
    Started,
    event_value,
)
from treadle.kernel.run import RunState, Step, advance, error_of, fault
from treadle.kernel.values import Value, decode_trusted
from treadle.store.protocol import RunRow

from . import effects, undecided
from .hot import Hot, join_ids
from .narrative import events_of
from .payloads import disarming, handed_over, input_digest, lightened
from .ports import Item, NewRun, Own

if TYPE_CHECKING:
    from .core import Core

log = logging.getLogger("treadle.core")


def admit(core: Core, item: Item) -> bool:
    """Admits one event; False if what is staged must be committed before it can be."""
    core.staged.taken.append(item)
    if item.submission is not None and core.answered_before(item):
        return True
    try:
        hot = _find(core, item)
    except PASSING:
        raise
    except Exception as error:
        core.hot.drop(item.run)
        known = error if isinstance(error, TreadleError) else TreadleError.from_value(error_of(error))
        if item.create is not None and core.store.run(item.run) is None:
            core.refuse(item, known)
        elif isinstance(item.event, Cancel) and undecided.is_lasting(known):
            undecided.end(core, item, known)
        else:
            # Damaged, or its code is not at hand here: left as it is, its open work stays open.
            core.quarantine(item, known)
        return True
    if hot is None:
        core.refuse(item, RunNotFound(f"there is no run {item.run!r}; `treadle list` shows what is there"))
        return True
    event = item.event
    if event is None:
        core.owe(hot)
        return True
    if (owed := hot.state.pending()) is not None and event != owed:
        # After a restart something may come before what the run owes itself: it has to wait.
        core.staged.taken.pop()
        core.put_back(item)
        core.owe(hot)
        return True
    if type(event) is Continue and owed is None:
        return True
    if _is_stale(core, hot, item, event) or _is_barred(core, hot, item, event):
        return True
    at_ns = core.clock.now_ns()
    if isinstance(event, Domain):
        event = _to_cell(core, hot, item, event)
    elif isinstance(event, Reset | Retry | Cancel) and hot.machine.by_events:
        _move(core, hot, hot.machine.successor(hot.definition, partial(_state_of, core)))
    if (problem := hot.machine.unavailable(hot.definition)) is not None:
        core.quarantine(item, problem)
        return True
    if item.blobs:
        core.stage_blobs(hot, item.blobs)
    settled = hot.state.open.get(event.intent) if isinstance(event, Receipt) else None
    # They stay for as long as this run does, also when the run that made them is gone.
    core.staged.batch.blob_refs += [(hot.no, checksum) for checksum in handed_over(event, settled)]
    event = disarming(event, settled)
    if hot.machine.large_data:
        event, blobs = lightened(event, settled, hot.machine.dialect)
        core.stage_blobs(hot, blobs)
    try:
        step = advance(
            hot.state, hot.machine, hot.definition, event, at_ns=at_ns, blobs=core.blobs, limits=core.limits
        )
    except PASSING:
        raise
    except Exception as error:
        return _step_failed(core, hot, item, event, error, at_ns)
    record(core, hot, step, item)
    return True


def _find(core: Core, item: Item) -> Hot | None:
    hot = core.hot.peek(item.run)
    if hot is None:
        core.raise_if_unreadable(item.run)
        hot = core.hot.get(item.run)
    if hot is None and item.create is not None:
        return _create(core, item)
    return hot


def _create(core: Core, item: Item) -> Hot:
    assert item.create is not None
    new = item.create
    definition = _current(core, new)
    loaded = core.registry.load(definition)
    now = core.clock.now_ns()
    about: dict[str, Any] = {
        "id": item.run,
        "dialect": new.dialect,
        "workflow": new.workflow,
        "version": new.version,
        "definition": definition,
    }
    row = RunRow(no=core.next_run_no, cell_key=new.key, started_ns=now, **about)
    state = RunState(key=new.key, **about)
    core.next_run_no += 1
    hot = Hot(state, row.no, 0, loaded.machine, loaded.definition, row, set())
    core.hot.add(hot)
    if not isinstance(item.event, Started | Domain):
        started = Started(definition=definition, seed=core.entropy(16), machine=loaded.machine.version)
        step = advance(
            state, loaded.machine, loaded.definition, started, at_ns=now, blobs=core.blobs, limits=core.limits
        )
        record(core, hot, step, Item(item.run, started, derived=True))
    return hot


def _to_cell(core: Core, hot: Hot, item: Item, event: Domain) -> Event:
    """A cell comes to life with its first event, in one record. After an apply it moves to the new
    definition with the next one, which names it."""
    if hot.state.seq == 0:
        return Started(
            definition=hot.state.definition,
            input=event_value(event),
            seed=core.entropy(16),
            machine=hot.machine.version,
        )
    _move(core, hot, _current(core, item.create) if item.create is not None else None)
    return event


def _current(core: Core, new: NewRun) -> str:
    """The definition of a run that events bring to life: what is active when the event is admitted. Its sender
    may have known an earlier version."""
    loaded = core.registry.load(new.definition)
    if not loaded.machine.by_events:
        return new.definition
    return loaded.machine.successor(loaded.definition, partial(_state_of, core)) or new.definition


def _move(core: Core, hot: Hot, definition: str | None) -> None:
    """Moves a run to another definition, in a record of its own."""
    if definition in (None, hot.state.definition):
        return
    assert definition is not None
    moved = Apply(definition=definition, was=hot.state.definition)
    loaded = core.registry.load(definition)
    step = advance(
        hot.state, loaded.machine, loaded.definition, moved, at_ns=core.clock.now_ns(), limits=core.limits
    )
    hot.machine, hot.definition = loaded.machine, loaded.definition
    record(core, hot, step, Item(hot.state.id, moved, derived=True))


def _state_of(core: Core, run: str) -> Value:
    hot = core.hot.get(run)
    return None if hot is None else hot.state.state


def _is_stale(core: Core, hot: Hot, item: Item, event: Event) -> bool:
    """What settles an intent that is not open, or steers a run that has ended, changes nothing."""
    if isinstance(event, Receipt | Rejected | Frame):
        if event.intent in hot.state.open:
            if isinstance(event, Frame):
                return _is_late(core, hot, item, event)
            return isinstance(event, Receipt) and _is_forged(core, hot, item, event)
        core.note_stale(hot, item, "receipt.stale", {"intent": event.intent})
        return True
    if hot.state.ended and isinstance(event, Signal | Cancel if hot.machine.final else Cancel):
        core.note_stale(hot, item, f"{event.kind}.stale", {"status": hot.state.status})
        return True
    return False


def _is_forged(core: Core, hot: Hot, item: Item, receipt: Receipt) -> bool:
    """Where receipts are signed, one without the node's signature settles nothing: the intent stays
    open. What the engine settles itself (a deadline, a timer, a task) needs no signature."""
    if not hot.machine.signed or core.verify is None or type(item) is Own:
        return False
    if hot.state.open[receipt.intent].kind in ENGINE_KINDS or core.verify(receipt):
        return False
    core.note_stale(hot, item, "receipt.unsigned", {"intent": receipt.intent})
    return True


def _is_late(core: Core, hot: Hot, item: Item, frame: Frame) -> bool:
    """Frames count up. One that does not is dropped; a gap is noted."""
    last = hot.state.open[frame.intent].frame
    about = {"intent": frame.intent, "frame": frame.seq, "last": last}
    if frame.seq > last + 1:
        core.diagnose(item.run, "stream.gap", about)
    if frame.seq <= last:
        core.note_stale(hot, item, "stream.non_monotonic", about)
    return frame.seq <= last


def _is_barred(core: Core, hot: Hot, item: Item, event: Event) -> bool:
    if type(event) is Started and hot.state.seq > 0:
        _start_again(core, hot, item, event)
        return True
    if item.create is not None and _is_another(hot, item.create):
        taken = f"the id {item.run!r} is taken by a run of {hot.state.workflow} ({hot.state.dialect})"
        core.refuse(item, RunExists(f"{taken}; a cell of {item.create.workflow} cannot have it"))
        return True
    if (barred := hot.machine.bars(item.run, hot.state.status, event)) is not None:
        core.refuse(item, barred)
        return True
    if item.expected_version is not None and item.expected_version != hot.state.seq:
        expected, found = item.expected_version, hot.state.seq
        message = f"{item.run} is at version {found}, not {expected}; look at it again, then decide"
        core.refuse(item, VersionMismatch(message, details={"expected": expected, "found": found}))
        return True
    if hot.state.ended and hot.machine.final and not isinstance(event, Retry):
        core.refuse(item, RunEnded(f"{item.run} is {hot.state.status}; it takes no {event.kind} any more"))
        return True
    return False


def _is_another(hot: Hot, asked: NewRun) -> bool:
    """Whether a run is of another workflow than whoever sent the event took it for."""
    return hot.state.dialect != asked.dialect or hot.state.workflow != asked.workflow


def _start_again(core: Core, hot: Hot, item: Item, event: Started) -> None:
    """The same id again: the same run, if definition and input are the same."""
    body = next((row[6] for row in core.staged.batch.records if row[0] == hot.no and row[1] == 1), None)
    if body is None:
        stored = core.store.record(hot.no, 1)
        assert stored is not None, "a run begins with a record"
        body = stored.body
    was: dict[str, Any] = decode_trusted(body)["event"]
    same = input_digest(hot.machine, was.get("input")) == input_digest(hot.machine, event.input)
    if was["definition"] == event.definition and same:
        core.answer(item, {"run": item.run, "existing": True})
        return
    other = [] if was["definition"] == event.definition else ["definition"]
    other += [] if same else ["input"]
    what = " and ".join(other)
    core.refuse(
        item,
        RunExists(
            f"a run {item.run!r} exists with another {what}; choose another id", details={"differs": other}
        ),
    )


def _step_failed(core: Core, hot: Hot, item: Item, event: Event, error: Exception, at_ns: int) -> bool:
    """A machine raised: its state may be half changed, so it is reloaded from what is durable."""
    core.hot.drop(item.run)
    if hot.batch == core.staged.number:
        core.staged.taken.pop()
        return False
    if not isinstance(error, TreadleError):
        log.error("the machine of %s raised on a %s event", item.run, event.kind, exc_info=error)
    if _is_refusable(item, hot):
        known = error if isinstance(error, TreadleError) else TreadleError.from_value(error_of(error))
        core.refuse(item, known)
        return True
    again = core.hot.get(item.run) or _create(core, item)
    record(core, again, fault(again.state, event, error_of(error), at_ns=at_ns), item)
    return True


def _is_refusable(item: Item, hot: Hot) -> bool:
    """An event of another run has happened, like a receipt; only a cell that has failed before
    does not take it."""
    if isinstance(item.event, Domain) and item.event.source is not None:
        return hot.state.status == "failed"
    return isinstance(item.event, REFUSABLE)


def record(core: Core, hot: Hot, step: Step, item: Item, *, forked: bool = False) -> None:
    """Stages an admitted step, with all that follows from it."""
    state, staged = hot.state, core.staged
    if hot.machine.narrated:
        told = events_of(step.record, narrated=True)
    else:
        told = [*item.event.events, *step.events] if type(item.event) is Receipt else step.events
    first_no = hot.event_no + 1
    hot.event_no += len(told)
    hot.batch = staged.number
    opens = join_ids([i.id for i in step.opened if i.id in state.open])
    closes = join_ids([i.id for i in (step.settled, *step.cancelled) if i is not None])
    staged.batch.records.append((hot.no, step.seq, hot.event_no, opens, closes, step.digest, step.body))
    staged.batch.bytes += len(step.body)
    core.stage_blobs(hot, step.blobs)
    effects.apply(core, hot, step, item)
    _write_row(core, hot, step)
    if forked or state.wants_snapshot(core.limits):
        core.stage_snapshot(hot)
    elif step.ended and not hot.machine.final:
        core.stage_rest(hot, moved=step.status_changed)
    core.tell(hot, told, first_no, step.seq, step.at_ns)
    core.answer(item, {"run": state.id, "seq": step.seq, "status": step.status})
    if item.submission is not None:
        core.remember(item.submission, {"run": state.id, "seq": step.seq})
    core.owe(hot)


def _write_row(core: Core, hot: Hot, step: Step) -> None:
    """The run's row changes only when what it says does."""
    state, row, batch = hot.state, hot.row, core.staged.batch
    working = state.working
    if not (
        step.status_changed
        or row.working != working
        or row.reference != state.reference
        or row.definition != state.definition
        or undecided.is_undecided(row)
    ):
        return
    row.status, row.working, row.reference = state.status, working, state.reference
    row.definition, row.version, row.seq, row.updated_ns = (
        state.definition,
        state.version,
        step.seq,
        step.at_ns,
    )
    row.ended_ns, row.error, row.retain_ns = state.ended_ns, state.error, None
    if state.ended_ns is not None and hot.machine.final:
        row.retain_ns = state.ended_ns + hot.machine.retention_ns(hot.definition)
    if step.seq == 1:
        row.parent, row.parent_intent = state.parent, state.parent_intent
        row.continued_from, row.started_ns = state.continued_from, state.started_ns
        batch.runs_new[row.no] = row
        core.registry.unwritten(state.definition).write(batch, step.at_ns)
    elif row.no not in batch.runs_new:
        batch.runs_changed[row.no] = row
