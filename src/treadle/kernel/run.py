"""One run, taken one event further.

`advance` is the whole kernel loop: call the machine, validate its decision, write the record, apply it.

A `RunState` on which `advance` raised must be dropped: machines change state in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from . import holding
from .errors import DecisionRefused, KernelBug, LimitExceeded, TreadleError, ValueRefused
from .limits import (
    DUE_NS_MAX,
    LIMITS,
    SIGNALS_BUFFERED_MAX,
    STEP_BYTES_MAX,
    STEP_EVENTS_MAX,
    STEP_INTENTS_MAX,
    Limits,
)
from .machine import Machine
from .model import (
    DETACHED_KINDS,
    ENGINE_KINDS,
    PLACE,
    QUEUED,
    TERMINAL,
    UNSET,
    Apply,
    Cancel,
    Context,
    Continue,
    Decision,
    Event,
    Frame,
    Intent,
    OpenIntent,
    Receipt,
    Rejected,
    Retry,
    Signal,
    Started,
    event_value,
    intent_id,
)
from .roles import JudgingMachine, has_role, judged
from .state import RunState
from .values import Value, encode

Blobs = Callable[[str], Value]


class Step(msgspec.Struct, gc=False):
    """One admitted event: its record, the record's bytes, and what the runtime has to do about it."""

    seq: int
    kind: str
    at_ns: int
    body: bytes
    digest: bytes
    events: list[dict[str, Any]]
    opened: list[OpenIntent]
    settled: OpenIntent | None
    cancelled: list[OpenIntent]
    status: str
    status_changed: bool
    ended: bool
    # Its status as people know it, and whether something will move it on without time, people or other runs.
    shown: str
    working: bool
    record: dict[str, Any]
    # Whether its place in line is free with it.
    leaves: bool
    # Whether the tail has become long enough to be replaced by a snapshot.
    wants_snapshot: bool
    # Payloads that the machine made; they are committed with the record.
    blobs: dict[str, bytes]

    def carried(self, deliver: OpenIntent) -> Value:
        """The value of the event that a `deliver` intent carries, or names by its place in this step."""
        event = deliver.params["event"]
        return self.events[event["index"]]["value"] if "index" in event else event.get("value")


def advance(
    run: RunState,
    machine: Machine,
    definition: Any,
    event: Event,
    *,
    at_ns: int,
    blobs: Blobs | None = None,
    logged: Value = None,
    recorded: dict[str, Any] | None = None,
    limits: Limits = LIMITS,
) -> Step:
    """Admits one event. Raises without a trace in the journal; then `run` must be dropped."""
    at_ns = at_ns if at_ns > run.last_ns else run.last_ns
    intent: OpenIntent | None = None
    seen: Event = event
    match event:
        case Receipt() | Rejected():
            intent = run.open.get(event.intent)
            if intent is None:
                raise KernelBug(f"{run.id}: receipt for {event.intent}, which is not open")
            if type(event) is Receipt and intent.kind != PLACE:
                if has_role(type(machine), JudgingMachine):
                    seen = judged(machine, definition, intent, event)
                if intent.kind == "signal":
                    _unbuffer(run, intent.params["name"], event)
        case Signal():
            intent = _awaiting(run, event.name)
            if intent is None:
                return _buffer(run, event, at_ns, limits)
            seen = Receipt(intent=intent.id, value=event.data, by=event.by)
        case Started():
            _begin(run, event, at_ns)
        case Continue():
            run.more = run.more[1:]
        case Frame():
            run.open[event.intent].frame = event.seq
    if intent is not None:
        close_intent(run, intent)
    placed = (type(event) is Started or type(event) is Retry) and event.place != ""
    own = holding.decided(run, event, intent, at_ns) if placed or run.held is not None else None
    if own is not None and not isinstance(own, Decision):
        seen, own = own, None
    ctx = Context(
        now_ns=at_ns,
        run=run.id,
        seq=run.seq + 1,
        definition=run.definition,
        key=run.key,
        seed=run.seed,
        machine=run.machine,
        options=run.options,
        open=run.open,
        # A place is the kernel's own affair.
        intent=None if intent is not None and intent.kind == PLACE else intent,
        reference=run.reference,
        started_ns=run.started_ns,
        blobs=blobs,
        status=run.status,
        logged=logged,
        recorded=recorded,
    )
    decision = _asked(run, machine, definition, seen, ctx) if own is None else own
    if ctx.stored:
        decision.blobs = {**ctx.stored, **decision.blobs}
    told = seen if type(seen) is Rejected else event
    return admit(
        run,
        told.kind,
        event_value(told),
        decision,
        at_ns,
        intent,
        allowed=None if own is not None else machine.kinds(definition),
        final=machine.traits.final,
        event=event,
        bytes_max=machine.traits.record_bytes_max,
        events_max=machine.traits.record_events_max,
        limits=limits,
    )


def _asked(run: RunState, machine: Machine, definition: Any, event: Event, ctx: Context) -> Decision:
    if type(event) is Started:
        return machine.start(definition, event, ctx)
    if type(event) is Cancel:
        return machine.cancel(definition, run.state, event, ctx)
    return machine.step(definition, run.state, event, ctx)


def _tell_move(event: Retry, decision: Decision) -> None:
    if event.definition is not None:
        moved = {"type": "definition.changed", "definition": event.definition, "was": event.was}
        decision.events = [moved, *decision.events]


def _begin(run: RunState, event: Started, at_ns: int) -> None:
    run.seed, run.machine, run.options = event.seed, event.machine, event.options
    run.reference, run.parent, run.parent_intent = event.reference, event.parent, event.parent_intent
    run.depth, run.continued_from, run.started_ns = event.depth, event.continued_from, at_ns


def fault(run: RunState, event: Event, error: dict[str, Any], *, at_ns: int) -> Step:
    """Something that has happened cannot be refused: if its step fails, that is recorded, the
    intent is settled, and the run fails with everything else it had open cancelled."""
    intent = run.open.get(event.intent) if isinstance(event, Receipt | Rejected) else None
    if intent is not None:
        close_intent(run, intent)
    if isinstance(event, Continue):
        run.more = run.more[1:]
    if isinstance(event, Started):
        _begin(run, event, max(at_ns, run.last_ns))
    run.held = None
    decision = Decision(state=run.state, status="failed", error=error)
    journaled = {"kind": event.kind, **event_value(event)}
    return _closed(run, "fault", journaled, decision, at_ns, intent, event)


def abandon(run: RunState, event: Cancel, error: dict[str, Any], *, at_ns: int) -> Step:
    """Ends a run without asking its machine: it cannot be decided any more. Only what is open counts."""
    decision = Decision(state=run.state, status="cancelled", error=error)
    decision.events = [{"type": "run.abandoned", "error": error}]
    return _closed(run, "abandon", event_value(event), decision, at_ns, None, event)


def _closed(
    run: RunState,
    kind: str,
    journaled: dict[str, Any],
    decision: Decision,
    at_ns: int,
    settled: OpenIntent | None,
    event: Event,
) -> Step:
    """A run ended by the kernel itself, which no limit may refuse."""
    at_ns = max(at_ns, run.last_ns)
    return admit(
        run, kind, journaled, decision, at_ns, settled, allowed=None, final=True, event=event, bytes_max=None
    )


def error_of(exception: Exception) -> dict[str, Any]:
    """The error of a step that raised, in the form that is journaled."""
    if isinstance(exception, TreadleError):
        value = exception.to_value()
        try:
            encode(value)
        except ValueRefused:
            # Whoever raised it put something into it that is no value: the fault is recorded without.
            message = exception.message.encode(errors="replace").decode()
            value = {**value, "message": message, "where": None, "details": {}}
        return value
    # Its text is Python's or a library's: it may differ from version to version, and hold an address.
    message = f"the machine raised {type(exception).__name__}; the log has its text"
    return TreadleError(message, code="MACHINE_ERROR").to_value()


def _awaiting(run: RunState, name: str) -> OpenIntent | None:
    awaits = (i for i in run.open.values() if i.kind == "signal" and i.params["name"] == name)
    return next(awaits, None)


def _buffer(run: RunState, event: Signal, at_ns: int, limits: Limits) -> Step:
    """A signal that nobody awaits yet is kept, first in first out per name."""
    if len(run.signals) >= SIGNALS_BUFFERED_MAX:
        raise LimitExceeded(
            f"{SIGNALS_BUFFERED_MAX} signals wait in {run.id} already; it consumes none of them"
        )
    run.signals += (event_value(event),)
    decision = Decision(state=run.state, status=run.status, result=run.result, error=run.error)
    decision.events = [{"type": "signal.received", "name": event.name, "buffered": True}]
    kept = event_value(event)
    return admit(
        run, "signal", kept, decision, at_ns, None, allowed=None, final=False, event=event, limits=limits
    )


def _unbuffer(run: RunState, name: str, receipt: Receipt) -> None:
    if receipt.status != "ok":
        return
    for index, signal in enumerate(run.signals):
        if signal["name"] == name:
            run.signals = run.signals[:index] + run.signals[index + 1 :]
            return


def admit(
    run: RunState,
    kind: str,
    journaled: dict[str, Any],
    decision: Decision,
    at_ns: int,
    settled: OpenIntent | None,
    *,
    allowed: frozenset[str] | None,
    final: bool,
    event: Event,
    bytes_max: int | None = STEP_BYTES_MAX,
    events_max: int = STEP_EVENTS_MAX,
    limits: Limits = LIMITS,
) -> Step:
    """Validates a decision as a whole, writes its record, applies it. Without `bytes_max` it is the
    kernel's own (a fault, a fork), which no limit may refuse."""
    if type(event) is Retry:
        _tell_move(event, decision)
    seq, count = run.seq + 1, len(decision.intents)
    if bytes_max is not None and (count > STEP_INTENTS_MAX or len(decision.events) > events_max):
        _check_limits(decision, events_max)
    opened: list[OpenIntent] = []
    for index, intent in enumerate(decision.intents):
        opened.append(_identify(run, intent, seq, index, at_ns, allowed))
    ends = final and decision.status in TERMINAL
    cancelled = _open_and_cancel(run, decision, opened, ends=ends) if count or ends or decision.cancel else []
    status = decision.status or ("running" if run.performed else "waiting")
    record: dict[str, Any] = {"seq": seq, "kind": kind, "at": at_ns, "event": journaled, "status": status}
    _describe(record, decision, opened, cancelled)
    body = encode(record)
    if bytes_max is not None and (size := len(body)) > bytes_max:
        raise LimitExceeded(f"a step of {size} bytes; at most {bytes_max} are allowed")
    run.tail_bytes += len(body)
    run.tail_records += 1
    wants_snapshot = _wants_snapshot(run, limits)
    # What the record does not hold must be made of values too, or the next snapshot could not be written,
    # with the record committed. The state is looked at when a snapshot is due, and at the start.
    if decision.result is not None and "result" not in record:
        encode(decision.result)
    if wants_snapshot or seq == 1:
        encode(decision.state)

    was, over = run.status, status in TERMINAL
    run.seq, run.last_ns, run.state, run.status = seq, at_ns, decision.state, status
    run.digest = hashlib.sha256(run.digest + body).digest()
    run.result, run.error = decision.result, decision.error
    if decision.reference is not UNSET:
        run.reference = decision.reference
    run.ended_ns = at_ns if over else None
    run.intents += count
    if type(event) is Receipt:
        run.retries += event.attempts - 1
    elif (type(event) is Apply or type(event) is Retry) and event.definition is not None:
        run.move(event.definition)
    if decision.more is not None:
        run.more += (decision.more,)
    leaves, run.placed = run.placed and over, run.placed and not over
    if over and final and (run.more or run.signals):
        run.more = run.signals = ()
    return Step(
        seq=seq,
        kind=kind,
        at_ns=at_ns,
        body=body,
        digest=run.digest,
        events=decision.events,
        opened=opened,
        settled=settled,
        cancelled=cancelled,
        status=status,
        status_changed=status != was or seq == 1,
        ended=over,
        shown=status if run.held is None else QUEUED,
        working=run.working if run.more or run.signals else run.performed > 0,
        record=record,
        leaves=leaves,
        wants_snapshot=wants_snapshot,
        blobs=decision.blobs,
    )


def _wants_snapshot(run: RunState, limits: Limits) -> bool:
    """Whether its tail is long enough to be replaced by a snapshot."""
    return (
        run.tail_records >= limits.snapshot_tail_records
        or (run.tail_bytes > limits.snapshot_tail_bytes and run.tail_bytes > run.snapshot_bytes)
    ) and run.tail_bytes * 4 >= run.snapshot_bytes


def _check_limits(decision: Decision, events_max: int) -> None:
    # Messages are bounded by the events they carry, not by the room for open work.
    opening = sum(intent.kind not in DETACHED_KINDS for intent in decision.intents)
    if opening > STEP_INTENTS_MAX:
        raise LimitExceeded(f"{opening} intents in one step; at most {STEP_INTENTS_MAX} are allowed")
    events = len(decision.events)
    if events > events_max:
        raise LimitExceeded(f"{events} events in one step; at most {events_max} are allowed")


def _describe(
    record: dict[str, Any], decision: Decision, opened: list[OpenIntent], cancelled: list[OpenIntent]
) -> None:
    """What was decided, as the journal holds it; nothing is written for what there is not."""
    if decision.events:
        record["events"] = decision.events
    if opened:
        record["opened"] = list(map(OpenIntent.to_value, opened))
    if cancelled:
        record["cancelled"] = [intent.id for intent in cancelled]
    if decision.more is not None:
        record["more"] = decision.more
    if decision.log is not None:
        record["log"] = decision.log
    if decision.blobs:
        record["blobs"] = sorted(decision.blobs)
    if decision.reference is not UNSET:
        record["reference"] = decision.reference
    if record["status"] in TERMINAL or decision.error is not None:
        record["result"], record["error"] = decision.result, decision.error


def _identify(
    run: RunState, intent: Intent, seq: int, index: int, at_ns: int, allowed: frozenset[str] | None
) -> OpenIntent:
    if allowed is not None and intent.kind not in allowed and intent.kind not in ENGINE_KINDS:
        raise DecisionRefused(f"the definition does not declare the kind {intent.kind!r}")
    if intent.kind == "timer" and intent.due_ns is None:
        raise DecisionRefused("a timer needs due_ns")
    if intent.kind == "signal" and not isinstance(intent.params.get("name"), str):
        raise DecisionRefused("a signal intent needs params.name")
    return OpenIntent(
        id=intent_id(run.identity or run.identify(), intent, seq, index),
        kind=intent.kind,
        params=intent.params,
        ref=intent.ref,
        seq=seq,
        at_ns=at_ns,
        due_ns=None if intent.due_ns is None else min(intent.due_ns, DUE_NS_MAX),
        idempotency_key=intent.idempotency_key,
        pool=intent.pool,
    )


def _open_and_cancel(
    run: RunState, decision: Decision, opened: list[OpenIntent], *, ends: bool
) -> list[OpenIntent]:
    """What is open after a decision; gives what is not any more."""
    cancelled = _cancelled(run, decision.cancel) if decision.cancel else []
    if ends:
        # A run that ends wants nothing any more; intents it opens with its last step are still done.
        cancelled = list(run.open.values())
        if any(intent.kind not in ("start", "deliver") for intent in opened):
            raise DecisionRefused("a run that ends opens work it could never take back")
        opened = []
    for intent in cancelled:
        close_intent(run, intent)
    for intent in opened:
        if intent.kind not in DETACHED_KINDS:
            open_intent(run, intent)
    return cancelled


def open_intent(run: RunState, intent: OpenIntent) -> None:
    run.open[intent.id] = intent
    if intent.kind not in ENGINE_KINDS:
        run.performed += 1


def close_intent(run: RunState, intent: OpenIntent) -> None:
    del run.open[intent.id]
    if intent.kind not in ENGINE_KINDS:
        run.performed -= 1


def _cancelled(run: RunState, refs: list[str]) -> list[OpenIntent]:
    wanted = dict.fromkeys(refs)
    found = [intent for intent in run.open.values() if intent.ref in wanted]
    missing = wanted.keys() - {intent.ref for intent in found}
    if missing:
        raise DecisionRefused(f"cancels {sorted(missing)}, which is not open")
    return found
