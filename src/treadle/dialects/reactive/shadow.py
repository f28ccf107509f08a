"""Shadow: what a candidate does with what has happened so far.

Each run's recorded inputs are given, in order, to the candidate's code beside the real run. Receipts are
matched by effect and ref, for the ids are the candidate's own. The report holds only what was observed:
effects asked for, what is still pending, statuses, allow-lists, states that came out differently, and
inputs that found no taker. Nothing is dispatched, nothing is delivered, nothing is said of other branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from treadle.kernel.errors import TreadleError
from treadle.kernel.history import restore, snapshot_of
from treadle.kernel.model import Apply, Event, Frame, OpenIntent, Receipt, Rejected, event_from_value
from treadle.kernel.run import Step, advance, error_of, fault
from treadle.kernel.state import RunState
from treadle.kernel.values import Value

from .app import App
from .machine import ReactiveMachine, effect_name, timer_params

RECORDS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class History:
    """A run as it was recorded, and as it is."""

    run: str
    workflow: str
    key: Value
    records: list[dict[str, Value]]
    now: RunState


def shadow(app: App, histories: list[History]) -> dict[str, Value]:
    report: dict[str, Value] = {
        "effects": [],
        "pending": [],
        "statuses": {},
        "allowlists": {name: sorted(workflow.emits) for name, workflow in app.workflows.items()},
        "changes": [],
    }
    machine, left = ReactiveMachine(), RECORDS_MAX
    machine.attach(app)
    for history in histories:
        if history.workflow not in app.workflows:
            skipped = {"run": history.run, "reason": "the candidate has no such workflow"}
            report.setdefault("skipped", []).append(skipped)
            continue
        _Shadow(machine, app, history, report).run(history.records[:left])
        left = max(0, left - len(history.records))
    return report


class _Shadow:
    def __init__(
        self, machine: ReactiveMachine, app: App, history: History, report: dict[str, Value]
    ) -> None:
        self.machine, self.history, self.report = machine, history, report
        definition = app.definition(history.workflow)
        self.definition = machine.load(definition.body)
        self.state = RunState(
            id=history.run,
            dialect=machine.dialect,
            workflow=history.workflow,
            version=None,
            definition=definition.digest,
            key=history.key,
        )
        # Intents of the recorded run: what they were, to find their like among the candidate's.
        self.recorded: dict[str, tuple[str, str]] = {}

    def run(self, records: list[dict[str, Value]]) -> None:
        for record in records:
            for value in record.get("opened", ()):
                self.recorded[value["id"]] = (value["kind"], value.get("ref", ""))
            self._give(record)
        about = {"workflow": self.history.workflow, "key": self.history.key}
        report, was = self.report, self.history.now
        report["statuses"][self.history.run] = self.state.status
        report["pending"] += [{**about, **_shown(intent)} for intent in self.state.open.values()]
        if was.state != self.state.state:
            report["changes"].append({**about, "before": was.state, "after": self.state.state})

    def _give(self, record: dict[str, Value]) -> None:
        value = dict(record["event"])
        event = event_from_value(value.pop("kind") if record["kind"] == "fault" else record["kind"], value)
        if isinstance(event, Apply):
            return
        given = self._translated(event)
        if given is None:
            self._skip(record, "the candidate has asked for no such effect")
            return
        before = snapshot_of(self.state)
        try:
            step = advance(self.state, self.machine, self.definition, given, at_ns=record["at"])
        except Exception as error:
            self.state = restore(before)
            if not isinstance(given, Receipt | Rejected | Frame):
                self._skip(record, f"refused: {_message(error)}")
                return
            step = fault(self.state, given, error_of(error), at_ns=record["at"])
        self._observe(step)

    def _translated(self, event: Event) -> Event | None:
        if not isinstance(event, Receipt | Rejected | Frame):
            return event
        like = self.recorded.get(event.intent)
        for intent in self.state.open.values():
            if (intent.kind, intent.ref) == like:
                if isinstance(event, Rejected):
                    return Receipt(intent=intent.id, status=event.status, value=event.payload)
                return _with_intent(event, intent.id)
        return None

    def _observe(self, step: Step) -> None:
        about = {"workflow": self.history.workflow, "key": self.history.key, "seq": step.seq}
        self.report["effects"] += [
            {**about, **_shown(intent)} for intent in step.opened if intent.kind != "deliver"
        ]

    def _skip(self, record: dict[str, Value], reason: str) -> None:
        skipped = {"run": self.history.run, "seq": record["seq"], "reason": reason}
        self.report.setdefault("skipped", []).append(skipped)


def _with_intent(event: Receipt | Frame, intent: str) -> Event:
    return replace(event, intent=intent)


def _shown(intent: OpenIntent) -> dict[str, Value]:
    params = timer_params(intent) if intent.kind == "timer" else intent.params["params"]
    return {"effect": effect_name(intent), "params": params, "ref": intent.ref or None, "intent": intent.id}


def _message(error: Exception) -> str:
    return error.message if isinstance(error, TreadleError) else str(error)
