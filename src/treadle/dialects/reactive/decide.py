"""From a step's output to a decision: validate all of it, then say what should be so.

Effects are admitted here: declared by the workflow, params fitting their type, limits kept. Events are
routed here, by the pure routing of the application, and leave as `deliver` intents, which the runtime
commits together with this step. A refusal is a function of the input alone, so it is the same on replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from treadle.kernel.errors import DecisionRefused, LimitExceeded, TreadleError
from treadle.kernel.limits import (
    PAYLOAD_INLINE_BYTES_MAX,
    STEP_BYTES_MAX,
    STEP_EVENTS_MAX,
    STEP_INTENTS_MAX,
)
from treadle.kernel.model import Context as KernelContext
from treadle.kernel.model import Decision, Intent, Status
from treadle.kernel.showing import shown
from treadle.kernel.values import Value, encode, to_value

from .app import App
from .effects import Emission
from .family import Family
from .names import TIMER_EFFECT, is_name
from .shapes import Misfit, Shape, canonical
from .step import Output
from .types import shape_of
from .workflow import Workflow


@dataclass(frozen=True, slots=True)
class Bound:
    """A workflow of a live application: what `Machine.load` makes of a definition's body."""

    app: App
    workflow: Workflow

    @property
    def family(self) -> Family:
        return self.app.families[self.workflow.name]

    @property
    def declares(self) -> frozenset[str]:
        return self.workflow.emits


@dataclass(frozen=True, slots=True)
class CodeAbsent:
    """A workflow whose code is not here. It can be looked at, not run."""

    app: str
    manifest: str
    workflow: str


@dataclass(slots=True)
class Checked:
    """An output in canonical form. This is also what `decision_log` journals."""

    state: Value
    events: list[list[Value]]
    effects: list[dict[str, Value]]
    annotations: Value
    terminal: bool
    # The state's bytes, where they are known already.
    body: bytes = b""

    def to_log(self) -> Value:
        return [self.state, self.events, self.effects, self.annotations, self.terminal]


def check(bound: Bound, output: object, terminal: bool) -> Checked:
    """The canonical form of an output, or a refusal that names the rule."""
    workflow = bound.workflow
    if not isinstance(output, Output):
        raise _refused(workflow, f"a step returns rx.Output(...), not {type(output).__name__}")
    asks, tells = _listed(workflow, "effects", output.effects), _listed(workflow, "events", output.events)
    if len(asks) > STEP_INTENTS_MAX:
        raise LimitExceeded(f"{len(asks)} effects in one step; at most {STEP_INTENTS_MAX} are allowed")
    if len(tells) > STEP_EVENTS_MAX:
        raise LimitExceeded(f"{len(tells)} events in one step; at most {STEP_EVENTS_MAX} are allowed")
    state = None if output.state is None else _fit(workflow.state, output.state, f"{workflow.name}: state")
    events = [[*_event(workflow, event)] for event in tells] if tells else []
    effects = [_effect(workflow, emission) for emission in asks] if asks else []
    annotations = None if output.annotations is None else _annotations(output.annotations)
    body = encode(state)
    size = len(body) + (0 if annotations is None else len(encode(annotations)))
    for _, value in events:
        size += len(encode(value))
    for effect in effects:
        size += len(encode(effect["params"]))
    if size > STEP_BYTES_MAX:
        raise LimitExceeded(
            f"a step of {size} bytes (state, annotations, events, params); at most {STEP_BYTES_MAX} are allowed"
        )
    return Checked(state, events, effects, annotations, terminal, body)


def _listed(workflow: Workflow, what: str, given: object) -> Sequence[object]:
    if not isinstance(given, (list, tuple)):
        raise _refused(workflow, f"{what} is a list, not {type(given).__name__}")
    return given


def _refused(workflow: Workflow, message: str, **details: Value) -> DecisionRefused:
    return DecisionRefused(f"{workflow.name}: {message}", where=workflow.name, details=details)


def _fit(shape: Shape, raw: object, what: str) -> Value:
    try:
        return canonical(shape, raw, what=what)
    except TreadleError as error:
        raise DecisionRefused(error.message, where=what, details=error.details) from None


def _event(workflow: Workflow, event: object) -> tuple[str, Value]:
    shape = shape_of(type(event))
    if shape is None or shape.schema is None:
        raise _refused(
            workflow, f"an event is an object of a class with rx.schema, not {type(event).__name__}"
        )
    return shape.schema, _fit(shape, event, f"{workflow.name}: {shape.schema}")


def _effect(workflow: Workflow, emission: object) -> dict[str, Value]:
    if not isinstance(emission, Emission):
        raise _refused(workflow, f"an effect is asked for by calling it, not with {type(emission).__name__}")
    name = emission.effect
    if not is_name(name):
        raise _refused(
            workflow, f"{name!r} is not the name of an effect; write it as payment/charge@1", effect=str(name)
        )
    if name not in workflow.emits:
        raise _refused(
            workflow, f"{name} is not declared; add it to effects=[...]", effect=name, rule="effects_emitted"
        )
    if emission.ref is not None and not isinstance(emission.ref, str):
        raise _refused(workflow, f"{name}: ref is text, not {type(emission.ref).__name__}", effect=name)
    value: dict[str, Value] = {"effect": name, "ref": emission.ref or ""}
    if name == TIMER_EFFECT:
        try:
            value["params"] = _timer(emission.params)
        except Misfit as misfit:
            raise _refused(workflow, f"{name}: {misfit.message}", effect=name) from None
        return value
    value["params"] = _fit(workflow.effects[name].params, emission.params, f"{workflow.name}: {name}")
    key: object = emission.idempotency_key
    if isinstance(key, str | bytes):
        value["key"] = key if isinstance(key, str) else "0x" + key.hex()
    elif key is not None:
        what = type(key).__name__
        raise _refused(workflow, f"{name}: idempotency_key is text or bytes, not {what}", effect=name)
    return value


def _timer(params: object) -> Value:
    """The instant of a timer, with its key where it has one; asked for by name it is {deliver_at_ns, key?}."""
    given = params if isinstance(params, dict) else {"deliver_at_ns": params}
    at_ns, key = given.get("deliver_at_ns"), given.get("key")
    if not isinstance(key, str | None) or given.keys() - {"deliver_at_ns", "key"}:
        raise Misfit(f"a timer has deliver_at_ns and a key that is text, not {shown(params, 80)}")
    if isinstance(at_ns, int) and not isinstance(at_ns, bool) and 0 <= at_ns < 2**63:
        return int(at_ns) if key is None else {"deliver_at_ns": int(at_ns), "key": str(key)}
    raise Misfit(
        f"a timer takes a time, nanoseconds since 1970, or {{deliver_at_ns}}, not {shown(at_ns, 80)}"
    )


def _annotations(raw: object) -> Value:
    shape = shape_of(type(raw))
    try:
        return shape.canon(raw) if shape is not None else to_value(raw)
    except Misfit as misfit:
        raise DecisionRefused(f"annotations{''.join(misfit.path)}: {misfit.message}") from None


def decision(bound: Bound, was: Value, checked: Checked, ctx: KernelContext) -> Decision:
    """What the kernel is asked to make so."""
    workflow = bound.workflow
    deleted = was is not None and checked.state is None
    intents: list[Intent] = []
    events: list[dict[str, Value]] = []
    if checked.events:
        intents = _deliveries(bound, checked.events)
        events = [{"type": "event", "schema": s, "value": v} for s, v in checked.events]
    for effect in checked.effects:
        intents.append(_intent(bound, effect))
    if checked.annotations is not None:
        events.append({"type": "annotation", "value": checked.annotations})
    open_after = len(checked.effects) + (0 if deleted else len(ctx.open))
    log: dict[str, Value] = {"state": sha256(checked.body or encode(checked.state)).hexdigest()}
    if workflow.determinism == "decision_log":
        log["output"] = checked.to_log()
    return Decision(
        state=checked.state,
        events=events,
        intents=intents,
        cancel=[intent.ref for intent in ctx.open.values()] if deleted else [],
        status=status_of(checked.state, checked.terminal, open_after),
        log=log,
    )


def status_of(state: Value, terminal: bool, open_intents: int) -> Status:
    if open_intents:
        return "waiting"
    return "completed" if state is None or terminal else "running"


def _deliveries(bound: Bound, events: Sequence[Sequence[Value]]) -> list[Intent]:
    routed = [bound.app.route(schema, value) for schema, value in events]
    # Copies of small events stand with their deliveries; else the record would grow with the audience.
    copied = sum(len(encode(event[1])) * len(to) for event, to in zip(events, routed, strict=True) if to)
    inline = copied <= PAYLOAD_INLINE_BYTES_MAX
    return [
        Intent(
            kind="deliver",
            params={
                "run": delivery.run,
                "definition": bound.app.definition(delivery.workflow).digest,
                "workflow": delivery.workflow,
                "key": delivery.key,
                "event": {
                    "schema": delivery.schema,
                    **({"value": delivery.value} if inline else {"index": index}),
                },
            },
        )
        for index, deliveries in enumerate(routed)
        for delivery in deliveries
    ]


def _intent(bound: Bound, effect: dict[str, Value]) -> Intent:
    if effect["effect"] == TIMER_EFFECT:
        timer = effect["params"]
        if not isinstance(timer, dict):
            return Intent(kind="timer", params={}, ref=effect["ref"], due_ns=timer)
        keyed: dict[str, Value] = {"key": timer["key"]}
        return Intent(kind="timer", params=keyed, ref=effect["ref"], due_ns=timer["deliver_at_ns"])
    return Intent(
        kind=effect["effect"],
        params={"params": effect["params"]},
        ref=effect["ref"],
        idempotency_key=effect.get("key"),
        pool=_pool(bound, effect["effect"]),
    )


def _pool(bound: Bound, name: str) -> str:
    declared = bound.app.effects.get(name)
    return "" if declared is None else declared.pool
