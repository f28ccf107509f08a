"""From records to spans: run, step, attempt.

A step is what a run asks for; each attempt at it is an intent of its own, under one idempotency key. What the engine
settles itself (timers, tasks, signals, children) is a step without attempts. A step whose attempt failed is over unless
the same key comes again: at once, or when a timer that was set with the failure is through.

Spans tell names, times, counts and codes. They never tell values: inputs, results and the texts of errors may hold
what is for nobody else's eyes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from treadle.kernel.history import opened_by
from treadle.kernel.model import ENGINE_KINDS, PLACE, TERMINAL, OpenIntent, child_id
from treadle.kernel.state import RunState
from treadle.kernel.tracing import TraceContext, TraceIds
from treadle.store.run_rows import RunRow

Attribute = str | int | float | bool
# What a dialect says of its work besides how it settled: told the kind, the parameters and the value that came back.
Measured = Callable[[str, Mapping[str, Any], Any], Mapping[str, Attribute]]

ERROR: Final = "error.type"
# What happened to one run from outside; more is not kept.
EVENTS_MAX: Final = 64
_FROM_OUTSIDE: Final = frozenset({"signal", "patch", "retry", "apply", "reset", "cancel"})


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    at_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One span, complete. Ids in hexadecimal; without a `parent` it begins its trace."""

    trace: str
    id: str
    parent: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    events: tuple[SpanEvent, ...] = ()
    kind: Literal["internal", "consumer", "client"] = "internal"

    @property
    def error(self) -> str:
        """The code of what went wrong; "" if nothing did."""
        return str(self.attributes.get(ERROR, ""))


@dataclass(slots=True)
class _Step:
    """What was begun and is not told yet."""

    id: str
    name: str
    kind: str
    key: str
    start_ns: int
    tries: int = 0
    open: int = 0
    # Timers that may lead to one more attempt.
    awaits: set[str] = field(default_factory=set)
    end_ns: int = 0
    about: dict[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Try:
    intent: OpenIntent
    step: _Step
    number: int


class RunTrace:
    """The spans of one run, found by reading its records in order."""

    def __init__(self, ids: TraceIds, row: RunRow, measured: Measured) -> None:
        self._ids = ids
        self._row = row
        self._measured = measured
        self._origin = TraceContext("", "", False)
        self._parent = ""
        # The record that the run began with; or began again with, after an end.
        self._life, self._began_ns = 1, 0
        self._span = ids.run(row.id)
        self._ended = False
        self._tries: dict[str, _Try] = {}
        self._steps: dict[str, _Step] = {}
        # By the timers that they wait for.
        self._waiting: dict[str, _Step] = {}
        self._events: list[SpanEvent] = []
        self.seq = 0

    def restore(self, state: RunState) -> None:
        """Goes on from a snapshot, where a journal is too long to be read from its beginning."""
        self._begin(state.options, state.parent_intent, state.continued_from, state.started_ns)
        self._ended = state.ended
        for intent in state.open.values():
            self._open(intent)
        self.seq = state.seq

    def read(self, record: dict[str, Any]) -> list[Span]:
        """What the next record completes."""
        kind, event, at_ns = record["kind"], record["event"], record["at"]
        kind = event["kind"] if kind == "fault" else kind
        self.seq = record["seq"]
        if self.seq == 1:
            given = event if kind == "started" else {}
            self._begin(
                given.get("options") or {}, given.get("parent_intent"), given.get("continued_from"), at_ns
            )
        if not self._origin.sampled:
            return []
        ends = record["status"] in TERMINAL
        if self._ended and not ends:
            self._life, self._began_ns, self._ended, self._events = self.seq, at_ns, False, []
            self._span = self._ids.run(self._row.id, self._life)
        if kind in _FROM_OUTSIDE:
            self._note(kind, at_ns, {"treadle.name": event["name"]} if kind == "signal" else {})
        spans: list[Span] = []
        touched: dict[str, _Step] = {}
        for id, status, receipt in _over(record, kind, event):
            spans += self._close(id, at_ns, status, receipt, touched)
        opened = opened_by(record)
        for intent in opened:
            self._open(intent)
        timers = [] if ends else [intent.id for intent in opened if _leads_to_retry(intent)]
        for step in touched.values():
            if not step.open and ERROR in step.about and timers and step.end_ns == at_ns:
                step.awaits.update(timers)
                self._waiting.update(dict.fromkeys(timers, step))
            if not step.open and not step.awaits:
                spans.append(self._told(step))
        if record["status"] == "stalled":
            self._note("stalled", at_ns, error_attributes(record.get("error")))
        if ends and not self._ended:
            spans += [self._told(step) for step in list(self._steps.values())]
            self._waiting.clear()
            spans.append(self._run(record, at_ns))
            self._ended = True
        return spans

    # --- the run ---

    def _begin(
        self, options: Mapping[str, Any], caller: str | None, continued: str | None, at_ns: int
    ) -> None:
        self._origin = self._ids.origin(self._row.id, options)
        self._began_ns = at_ns
        if caller is not None:
            self._parent = self._ids.step(caller)
        else:
            self._parent = self._origin.span if continued is None else self._ids.run(continued)

    def _run(self, record: Mapping[str, Any], at_ns: int) -> Span:
        row = self._row
        about: dict[str, Attribute] = {
            "treadle.run": row.id,
            "treadle.workflow": row.workflow,
            "treadle.dialect": row.dialect,
            "treadle.status": record["status"],
        }
        if row.version is not None:
            about["treadle.version"] = row.version
        if self._life > 1:
            about["treadle.resumed_at"] = self._life
        if record["status"] == "failed":
            about |= error_attributes(record.get("error")) or {ERROR: "failed"}
        return Span(
            self._origin.trace,
            self._span,
            self._parent,
            f"run {row.workflow}",
            self._began_ns,
            at_ns,
            about,
            tuple(self._events),
        )

    def _note(self, name: str, at_ns: int, about: Mapping[str, Attribute]) -> None:
        if len(self._events) < EVENTS_MAX:
            self._events.append(SpanEvent(name, at_ns, about))

    # --- steps and attempts ---

    def _open(self, intent: OpenIntent) -> None:
        key = intent.idempotency_key or intent.id
        if intent.kind in ENGINE_KINDS:
            key = intent.id
        if (step := self._steps.get(key)) is None:
            name = intent.params.get("name") or intent.params.get("step") or intent.params.get("node") or ""
            kind = "place" if intent.kind == PLACE else intent.kind
            step = _Step(self._ids.step(intent.id), str(name), kind, key, intent.at_ns)
            self._steps[key] = step
        for timer in step.awaits:
            self._waiting.pop(timer, None)
        step.awaits.clear()
        step.tries += 1
        step.open += 1
        self._tries[intent.id] = _Try(intent, step, step.tries)

    def _close(
        self,
        id: str,
        at_ns: int,
        status: str,
        event: Mapping[str, Any],
        touched: dict[str, _Step],
    ) -> list[Span]:
        """An intent is over: its attempt is told; its step knows how it went, and may be over too."""
        if (waiting := self._waiting.pop(id, None)) is not None and waiting.key in self._steps:
            waiting.awaits.discard(id)
            touched[waiting.key] = waiting
        if (made := self._tries.pop(id, None)) is None:
            return []
        intent, step = made.intent, made.step
        about: dict[str, Attribute] = {
            **self._whose(step),
            "treadle.intent": id,
        }
        if (tried := event.get("attempts", 1)) > 1:
            # Within this one: a policy that whoever performed it kept to.
            about["treadle.retries"] = tried - 1
        about |= settled_attributes(status, event.get("error"), self._measured, intent, event.get("value"))
        if intent.pool:
            about["treadle.pool"] = intent.pool
        if intent.kind == "child":
            about["treadle.child"] = child_id(self._row.id, id)
        step.open -= 1
        step.end_ns, step.about = at_ns, about
        touched[step.key] = step
        if intent.kind in ENGINE_KINDS:
            return []
        return [
            Span(
                self._origin.trace,
                self._ids.attempt(id),
                step.id,
                f"attempt {step.name}".rstrip(),
                intent.at_ns,
                at_ns,
                {**about, "treadle.attempt": made.number},
            )
        ]

    def _told(self, step: _Step) -> Span:
        del self._steps[step.key]
        about = {**(step.about or self._whose(step))}
        if step.kind not in ENGINE_KINDS:
            about["treadle.attempts"] = step.tries
        name = f"{step.kind} {step.name}".rstrip()
        return Span(self._origin.trace, step.id, self._span, name, step.start_ns, step.end_ns, about)

    def _whose(self, step: _Step) -> dict[str, Attribute]:
        return {
            "treadle.run": self._row.id,
            "treadle.workflow": self._row.workflow,
            "treadle.kind": step.kind,
            "treadle.step": step.name,
        }


def _leads_to_retry(intent: OpenIntent) -> bool:
    """Whether this may be the wait before another attempt; if it is not, the step is told later, and that is all."""
    return intent.kind == "timer" and intent.name.startswith("retry")


def _over(
    record: Mapping[str, Any], kind: str, event: Mapping[str, Any]
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The intents that a record closes, how, and by which receipt."""
    if kind == "receipt":
        yield event["intent"], event.get("status", "ok"), event
    elif kind == "rejected":
        yield event["intent"], "rejected", event
    for id in record.get("cancelled", ()):
        yield id, "cancelled", {}


def settled_attributes(
    status: str, error: Any, measured: Measured, intent: OpenIntent, value: Any
) -> dict[str, Attribute]:
    """How work settled, and what its dialect says of what came back."""
    if status in ("error", "timeout", "rejected"):
        return {"treadle.status": status, **(error_attributes(error) or {ERROR: status})}
    about = {
        "treadle.status": status,
        **(measured(intent.kind, intent.params, value) if status == "ok" else {}),
    }
    return {**about, "treadle.status": "error"} if ERROR in about else about


def error_attributes(error: Any) -> dict[str, Attribute]:
    """The code and the class of an error; not its words."""
    if not isinstance(error, Mapping) or "code" not in error:
        return {}
    return {ERROR: str(error["code"]), "treadle.error.class": str(error.get("class", ""))}
