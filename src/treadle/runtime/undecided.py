"""Runs that cannot be decided: their journal is damaged, is decided differently now, or is too old.

Such a run is left as it is, and says so: its row carries the reason, so that a list shows it and nobody waits
for it. It can be ended all the same, without its machine: the end is a record like any other, made from
what the store knows of the run (open ids, timers, tasks, children), never from its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.machine import RETENTION_NS
from treadle.kernel.model import TERMINAL, Cancel, OpenIntent, Receipt
from treadle.kernel.run import RunState, Step, abandon, error_of
from treadle.store.protocol import RunRow

from . import effects
from .hot import join_ids, split_ids
from .narrative import events_of
from .ports import Item, News
from .progress import numbered

if TYPE_CHECKING:
    from .core import Core

# Key of a row's error that tells it from the error of a run that has failed or stalled.
UNDECIDED = "undecided"


def is_undecided(row: RunRow) -> bool:
    return row.error is not None and row.error.get(UNDECIDED) is True and row.status not in TERMINAL


def is_lasting(error: TreadleError) -> bool:
    """Whether nothing but an end helps, as far as we know: code that is not at hand may come."""
    return error.cls in ("consistency", "internal")


def note(core: Core, run: str, error: TreadleError) -> None:
    """Writes down that a run cannot be decided, in the diagnostics and, where that will last, in its row."""
    value = error_of(error)
    core.diagnose(run, "run.unreadable", {"error": value})
    row = core.store.run(run)
    if row is None or row.status in TERMINAL or not is_lasting(error):
        return
    row = core.staged.batch.runs_changed.get(row.no, row)
    row.error = {**value, "details": {}, UNDECIDED: True}
    core.staged.batch.runs_changed[row.no] = row


def end(core: Core, item: Item, error: TreadleError) -> None:
    """Cancels a run that cannot be decided: what it has open is settled, its parent is told."""
    assert isinstance(item.event, Cancel)
    row = core.store.run(item.run)
    assert row is not None, "what cannot be decided is there"
    if row.status in TERMINAL:
        core.answer(item, {"run": row.id, "seq": row.seq, "status": row.status, "stale": True})
        return
    state = _skeleton(core, row)
    open_ids = list(state.open)
    step = abandon(state, item.event, _reason(item.event, error), at_ns=core.clock.now_ns())
    _close(core, row, open_ids)
    _record(core, row, state, step, open_ids)
    if row.parent and row.parent_intent and item.event.by != effects.PARENT:
        about = {"run": row.id, "workflow": row.workflow, "version": row.version}
        told = {
            "class": "user",
            "code": "CHILD_CANCELLED",
            "message": f"{row.workflow} ({row.id}) cancelled: {item.event.reason}",
            "where": row.id,
            "details": {**about, "error": row.error, "result": None},
        }
        receipt = Receipt(intent=row.parent_intent, status="cancelled", error=told)
        _send(core, row.parent, receipt, f"end:{row.parent_intent}:{step.seq}")
    core.answer(item, {"run": row.id, "seq": step.seq, "status": step.status})


def _skeleton(core: Core, row: RunRow) -> RunState:
    """What a run's end needs to be recorded: where its journal ends, and the ids of what is open."""
    opened: dict[str, OpenIntent] = {}
    seq = 0
    for number, opens, closes in core.store.open_ids(row.no, after_seq=0):
        seq = number
        for intent in split_ids(closes):
            opened.pop(intent.hex(), None)
        for intent in split_ids(opens):
            opened[intent.hex()] = OpenIntent(id=intent.hex(), kind="unknown", params={})
    last = core.store.record(row.no, seq)
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


def _reason(event: Cancel, error: TreadleError) -> dict[str, Any]:
    about = f"it could not be decided any more ({error.code})"
    value = TreadleError(event.reason or about, cls="user", code="CANCELLED").to_value()
    return {**value, "details": {"undecided": {"code": error.code, "message": error.message}}}


def _close(core: Core, row: RunRow, open_ids: list[str]) -> None:
    """Everything that stands in the store for what was open."""
    batch = core.staged.batch
    for timer in core.store.timers_of(row.no):
        core.fired(timer.intent)
        batch.timers_done[timer.intent] = row.no
    for task in core.store.tasks(run=row.id, status=("open", "claimed"), limit=100_000):
        effects.close_task(core, task.id, "cancelled", None)
    batch.checkpoints_done += list(core.store.checkpoints(row.no))
    core.staged.revoked += open_ids
    for child in core.store.runs(parent=row.id, limit=100_000):
        if child.status not in TERMINAL:
            cancel = Cancel(reason="its parent was cancelled", by=effects.PARENT)
            _send(core, child.id, cancel, f"cancel:{child.parent_intent}")


def _record(core: Core, row: RunRow, state: RunState, step: Step, open_ids: list[str]) -> None:
    batch = core.staged.batch
    told = events_of(step.record, narrated=core.registry.machine(row.dialect).narrated)
    first_no = core.store.last_event_no(row.no) + 1
    event_no = first_no + len(told) - 1
    batch.records.append((row.no, step.seq, event_no, None, join_ids(open_ids), step.digest, step.body))
    batch.bytes += len(step.body)
    row.status, row.working, row.error, row.seq = step.status, False, state.error, step.seq
    row.updated_ns = row.ended_ns = step.at_ns
    row.retain_ns = step.at_ns + RETENTION_NS
    batch.runs_changed[row.no] = row
    core.staged.news[row.id] = News(row.id, step.status, True, numbered(told, first_no, step.seq, step.at_ns))


def _send(core: Core, run: str, event: Any, key: str) -> None:
    core.post(Item(run, event, derived=True, message=key))
