"""Runs that must not begin yet: their workflow is limited, and they wait for a place in line.

What such a run was told first (its start, a retry, what it was forked with) is held. The record of it opens one
intent, a place; the receipt for that is what lets it happen. The machine sees none of this: it is told the same event
as ever, only later. A run that is held can be cancelled, and signals to it are kept; all else has to wait.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import RunQueued
from .model import (
    PLACE,
    Cancel,
    Decision,
    Event,
    Intent,
    OpenIntent,
    Retry,
    Started,
    event_from_value,
    event_value,
)
from .state import RunState


def decided(run: RunState, event: Event, settled: OpenIntent | None, at_ns: int) -> Decision | Event:
    """What is decided about a run that is held, or begins with a place, without the machine; else the event that it is
    told. Raises what is refused."""
    if run.held is None:
        assert isinstance(event, Started | Retry)
        run.placed = True
        return _held(run, event) if event.place == "queued" else event
    if settled is not None and settled.kind == PLACE:
        return _released(run, at_ns)
    if isinstance(event, Cancel):
        run.held = None
        return Decision(state=run.state, status="cancelled", error=_cancelled(event))
    raise RunQueued(f"{run.id} waits for its place in line; it takes no {event.kind} before it has begun")


def place(run: RunState) -> Intent:
    return Intent(kind=PLACE, params={"name": run.workflow}, ref=PLACE)


def _held(run: RunState, event: Started | Retry) -> Decision:
    run.held = {"kind": event.kind, "event": event_value(event)}
    told = {"type": "run.queued", "workflow": run.workflow}
    return Decision(state=run.state, events=[told], intents=[place(run)], status="waiting")


def _released(run: RunState, at_ns: int) -> Decision | Event:
    assert run.held is not None
    held, run.held = run.held, None
    if held["kind"] == "fork":
        intents = [Intent(**intent) for intent in held["intents"]]
        return Decision(state=run.state, intents=intents, status=held["status"], error=held["error"])
    event = event_from_value(held["kind"], held["event"])
    if isinstance(event, Started):
        # Its deadlines count from when it could begin.
        run.started_ns = at_ns
    return event


def fork(run: RunState, decision: Decision) -> None:
    """Holds back what a fork goes on with. One of a run that was itself held is so already."""
    run.placed = True
    if run.held is None:
        intents = [msgspec.structs.asdict(intent) for intent in decision.intents]
        run.held = {"kind": "fork", "intents": intents, "status": decision.status, "error": decision.error}
        decision.intents, decision.status, decision.error = [place(run)], "waiting", None


def _cancelled(event: Cancel) -> dict[str, Any]:
    message = event.reason or "cancelled"
    return {"class": "user", "code": "CANCELLED", "message": message, "where": None, "details": {}}
