"""Runs that nothing can move any more: they wait, and what they wait for is not there.

A run that has not ended waits for what it asked for, and each of these is also a row somewhere: a timer, a task, a place in
line, a child. A row that is missing will never come back by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.model import PLACE, OpenIntent, child_id
from treadle.kernel.roles import CellMachine, has_role
from treadle.kernel.state import RunState
from treadle.store.run_rows import RunRow

from .document import view_of
from .registry import Registry

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


def why_stuck(reads: Reads, registry: Registry, row: RunRow, state: RunState) -> str | None:
    """What a run that has not ended waits for in vain; None where something can move it."""
    loaded = registry.load(state.definition)
    if state.ended or state.status == "stalled" or has_role(type(loaded.machine), CellMachine):
        return None  # people send on what is stalled; events move a cell that waits for nothing
    if not state.open and not state.more:
        # Some wait for what nobody was asked for: a gate of a playbook, which a patch opens.
        if view_of(loaded, state).get("waiting_for"):
            return None
        return "it waits for nothing, and has not ended"
    timers = {timer.intent for timer in reads.timers_of(row.no)}
    for intent in state.open.values():
        if lacks := _lacks(reads, row, intent, timers):
            return f"{intent.name or intent.ref}: {lacks}"
    return None


def _lacks(reads: Reads, row: RunRow, intent: OpenIntent, timers: set[str]) -> str | None:
    match intent.kind:
        case "timer" if intent.id not in timers:
            return "it waits for a timer that is not armed"
        case "task":
            return None if reads.task(intent.id) else "it waits for a task that is in nobody's inbox"
        case kind if kind == PLACE:
            return None if reads.place(row.id) else "it waits in a line in which it has no place"
        case "child":
            # A child that is not there yet may be a message on its way.
            there = reads.run(child_id(row.id, intent.id)) is not None or bool(reads.inbox(1))
            return None if there else "it waits for a run that is not there"
    return None
