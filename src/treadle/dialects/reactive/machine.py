"""The reactive machine: the kernel's own interface, handed to the author.

One event, one call of the author's step function, one decision. The machine knows live Python code only
through `attach`: a definition's body names the application, the digest of its manifest and the workflow,
and `load` finds the attached application with that digest. There is no registry but the instance.

A run of the application itself (`workflow: null`) keeps what belongs to no cell: events that nobody
subscribes to, and proposals (`governance.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import ClassVar, Final, TypeAlias, TypeVar, cast

from treadle.kernel.errors import (
    DecisionRefused,
    DefinitionError,
    InputInvalid,
    NotWaiting,
    TreadleError,
    UnknownWorkflow,
    Unsupported,
)
from treadle.kernel.limits import STEP_EVENTS_MAX
from treadle.kernel.machine import Traits
from treadle.kernel.model import (
    Apply,
    Cancel,
    Context,
    Decision,
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
    Status,
    is_reference,
)
from treadle.kernel.roles import CellMachine, CodeMachine, JudgingMachine, StreamingMachine
from treadle.kernel.stops import is_stop
from treadle.kernel.values import Value, decode_trusted, digest_bytes, encode
from treadle.lang.graph import Edge, Graph, Node

from . import governance, step
from .app import DIALECT_NAME, App
from .decide import Bound, Checked, CodeAbsent, check, decision, status_of
from .effects import TimerFired
from .governance import Books
from .guard import strictly
from .names import TIMER_EFFECT
from .shapes import Misfit
from .step import Output
from .workflow import Workflow

T = TypeVar("T")

# What the machine makes of a definition's body: code that is here, code that is not, or an application's own run.
ReactiveDefinition: TypeAlias = Bound | CodeAbsent | Books

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_RECEIPT_STATUSES: Final = ("ok", "error", "timeout", "cancelled")
INVALID_PAYLOAD: Final = "receipt.invalid_payload"
RECORD_BYTES_MAX: Final = 16 * 1024 * 1024


class StepFailed(TreadleError):
    """The step function of a workflow raised an exception."""

    cls = "user"
    code = "STEP_FAILED"


class CellFailed(TreadleError):
    """The cell has failed and takes no events. Look at its error, then reset it."""

    cls = "user"
    code = "CELL_FAILED"


def taken(workflow: str, owner: str, app: str) -> DefinitionError:
    """Two applications would decide each event of a cell twice, each by its own code."""
    return DefinitionError(
        f"{workflow} belongs to the application {owner!r} here, so {app!r} cannot have it; a workflow is in one "
        "application of a store: give it another name",
        code="NAME_TAKEN",
        details={"workflow": workflow, "app": owner},
    )


class ReactiveMachine(CellMachine, CodeMachine, JudgingMachine, StreamingMachine):
    dialect: ClassVar[str] = DIALECT_NAME
    # 2: a timer's receipt gives the key that it was asked for with, not its ref.
    version: ClassVar[int] = 2
    traits: ClassVar[Traits] = Traits(
        # A completed cell can be told more, and a deleted one is created anew by its next event.
        final=False,
        signed=True,
        # A step is the author's and tells nothing but what it emits.
        narrated=True,
        # The output is counted exactly, by `decide.check`; a record also holds the event and its deliveries.
        record_bytes_max=RECORD_BYTES_MAX,
        # What the step emits, which is counted there too, and its annotations.
        record_events_max=STEP_EVENTS_MAX + 1,
    )

    def __init__(self) -> None:
        self._apps: dict[str, App] = {}

    def attach(self, app: App) -> None:
        """Makes an application's code available to the definitions that name its manifest."""
        for other in self._apps.values():
            shared = [name for name in app.workflows if name in other.workflows]
            if other.name != app.name and shared:
                raise taken(shared[0], other.name, app.name)
        self._apps[app.digest] = app

    def app(self, manifest: str) -> App | None:
        return self._apps.get(manifest)

    def apps(self) -> list[App]:
        return list(self._apps.values())

    def load(self, body: Value) -> ReactiveDefinition:
        if body["workflow"] is None:
            return Books(body["app"], body["manifest"])
        app = self._apps.get(body["manifest"])
        if app is None:
            return CodeAbsent(body["app"], body["manifest"], body["workflow"])
        return Bound(app, app.workflow(body["workflow"]))

    def unavailable(self, definition: ReactiveDefinition) -> TreadleError | None:
        if not isinstance(definition, CodeAbsent) or definition.manifest in self._apps:
            return None
        return UnknownWorkflow(
            f"the code of {definition.app} at {definition.manifest} is not here: these records were made by another "
            "version of the application. Give that version with --app FILE:ATTR (engine.deploy(app))",
            code="CODE_MISSING",
            details={"app": definition.app, "manifest": definition.manifest, "workflow": definition.workflow},
        )

    def bars(self, run: str, status: str, event: Event) -> TreadleError | None:
        match event:
            case Domain() if status == "failed":
                return CellFailed(f"{run} has failed; reset it before it takes events")
            case Reset() | Retry() if status != "failed":
                return NotWaiting(f"{run} is {status}; only a failed cell is reset", code="NOT_STALLED")
            case Retry() if event.how:
                asked = ", ".join(event.how)
                return Unsupported(f"{run} is a cell: it is reset as it is, without {asked}")
            case Signal():
                return Unsupported(f"{run} is a cell: it takes events (treadle publish), not signals")
            case _:
                return None

    def closed_until(self, definition: ReactiveDefinition, state_of: Callable[[str], Value]) -> int:
        if isinstance(definition, Books):
            return 0
        books = state_of(definition.app.name if isinstance(definition, Bound) else definition.app)
        return governance.closed_until(books) if books is not None and "closed" in books else 0

    def successor(self, definition: ReactiveDefinition, state_of: Callable[[str], Value]) -> str | None:
        """After an apply a cell is reset, retried and cancelled by the code that is active."""
        if isinstance(definition, Books):
            return None
        if isinstance(definition, Bound):
            name, manifest, workflow = definition.app.name, definition.app.digest, definition.workflow.name
        else:
            name, manifest, workflow = definition.app, definition.manifest, definition.workflow
        books = state_of(name)
        active = None if books is None else self._apps.get(books["manifest"])
        if active is None or active.digest == manifest or workflow not in active.workflows:
            return None
        return active.definition(workflow).digest

    def live(self, definition: ReactiveDefinition) -> ReactiveDefinition:
        """The definition with its code where that is here; it may have come after it was loaded."""
        if not isinstance(definition, CodeAbsent) or definition.manifest not in self._apps:
            return definition
        app = self._apps[definition.manifest]
        return Bound(app, app.workflow(definition.workflow))

    def _live(self, definition: ReactiveDefinition) -> Bound:
        if type(definition) is Bound:
            return definition
        if (problem := self.unavailable(definition)) is not None:
            raise problem
        bound = self.live(definition)
        assert isinstance(bound, Bound), "an application's own run has no code"
        return bound

    def kinds(self, definition: ReactiveDefinition) -> frozenset[str] | None:
        return frozenset() if isinstance(definition, Books) else self._live(definition).declares

    def takes_rejected(self, definition: ReactiveDefinition) -> bool:
        return bool(self._live(definition).family.rejected)

    def wants_frames(self, definition: object) -> bool:
        return isinstance(definition, Bound) and definition.workflow.frames

    def compatible(self, definition: ReactiveDefinition, state: Value) -> str | None:
        """Why a cell's state does not fit this version of its workflow."""
        if isinstance(definition, Books) or state is None:
            return None
        try:
            self._live(definition).workflow.state.canon(state)
        except Misfit as misfit:
            return f"state{''.join(misfit.path)}: {misfit.message}"
        return None

    def receipt_problem(
        self, definition: ReactiveDefinition, intent: OpenIntent, receipt: Receipt
    ) -> dict[str, Value] | None:
        problem: str | None = None
        if receipt.status not in _RECEIPT_STATUSES:
            problem = f"{receipt.status!r} is not a status of a receipt"
        elif receipt.status == "ok" and intent.kind != "timer" and not is_reference(receipt.value):
            try:
                self._live(definition).workflow.effects[intent.kind].receipt.canon(receipt.value)
            except Misfit as misfit:
                problem = f"{intent.kind}: ${''.join(misfit.path)}: {misfit.message}"
        if problem is None:
            return None
        return TreadleError(problem, cls="consistency", code=INVALID_PAYLOAD).to_value()

    def start(self, definition: ReactiveDefinition, event: Started, ctx: Context) -> Decision:
        """A cell begins with its first event (`input`: {schema, value}); without one it is empty."""
        if isinstance(definition, Books):
            return governance.begin(definition, event.input)
        if event.input is None:
            return Decision(state=None, status="completed", log={"state": _EMPTY})
        first = Domain(
            **{name: event.input.get(name) for name in ("schema", "value", "submission", "source")}
        )
        return self._step(self._live(definition), None, first, ctx)

    def step(self, definition: ReactiveDefinition, state: Value, event: Event, ctx: Context) -> Decision:
        if isinstance(definition, Books):
            return governance.step(definition, state, event)
        if (barred := self.bars(ctx.run, ctx.status, event)) is not None:
            raise barred
        return self._step(self._live(definition), state, event, ctx)

    def _step(self, bound: Bound, state: Value, event: Event, ctx: Context) -> Decision:
        if isinstance(event, Apply):
            # Decided by the old code, and the same by the new: the state stays as it is.
            return Decision(state=state, status=cast("Status", ctx.status))
        if isinstance(event, Reset | Retry):
            return Decision(state=state, status=status_of(state, _terminal(bound, state), len(ctx.open)))
        if isinstance(ctx.logged, dict) and bound.workflow.determinism == "decision_log":
            if "fault" in ctx.logged:
                raise TreadleError.from_value(ctx.logged["fault"])
            return decision(bound, state, Checked(*ctx.logged["output"]), ctx)
        return decision(bound, state, self._run(bound, state, self._seen(bound, event, ctx), ctx), ctx)

    def _run(self, bound: Bound, state: Value, event: object, ctx: Context) -> Checked:
        workflow = bound.workflow
        context = _context(bound, ctx) if workflow.takes_context else None

        def call() -> tuple[object, bool]:
            output = workflow(None if state is None else workflow.state.load(state), event, context)
            after = output.state if isinstance(output, Output) else None
            ended = after is not None and workflow.terminal is not None and bool(workflow.terminal(after))
            return output, ended

        watched = partial(strictly, call) if workflow.determinism == "strict" else call
        return check(bound, *_authored(workflow, watched))

    def _seen(self, bound: Bound, event: Event, ctx: Context) -> object:
        """The event as the author sees it."""
        match event:
            case Domain():
                return _domain(bound, event, ctx)
            case Receipt():
                try:
                    return _receipt(bound, event, ctx)
                except Misfit as misfit:
                    # A large payload is by reference, so it is seen only here that it does not fit.
                    message = f"{effect_name(_settled(ctx))}: ${''.join(misfit.path)}: {misfit.message}"
                    if not bound.family.rejected:
                        raise DecisionRefused(message, code=INVALID_PAYLOAD) from None
                    return _rejected(event.value, {"code": INVALID_PAYLOAD, "message": message}, ctx)
            case Rejected():
                return _rejected(event.payload, event.error or {}, ctx)
            case Frame():
                intent = ctx.open[event.intent]
                return step.Frame(
                    ref=intent.ref or None,
                    intent_id=intent.id,
                    effect=effect_name(intent),
                    seq=event.seq,
                    kind=event.type,
                    value=_copied(event.value),
                )
            case _:
                raise Unsupported(
                    f"{bound.workflow.name} is a reactive workflow: it takes events, not a {event.kind}"
                )

    def cancel(self, definition: ReactiveDefinition, state: Value, event: Cancel, ctx: Context) -> Decision:
        if isinstance(definition, Books):
            raise Unsupported(f"{definition.app} is an application: cancel its cells")
        cancelled = super().cancel(definition, state, event, ctx)
        cancelled.cancel = [intent.ref for intent in ctx.open.values()]
        return cancelled

    def view(self, definition: ReactiveDefinition, state: Value) -> dict[str, Value]:
        return {"state": _shown(state)}


_EMPTY: Final = sha256(encode(None)).hexdigest()


def _shown(value: Value) -> Value:
    """A state as people read it: a variant without a value is its tag."""
    if isinstance(value, dict):
        if len(value) == 1 and "$tag" in value:
            return value["$tag"]
        return {name: _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def effect_name(intent: OpenIntent) -> str:
    return TIMER_EFFECT if intent.kind == "timer" else intent.kind


def _authored(workflow: Workflow, call: Callable[[], T]) -> T:
    """Calls the author's code. Whatever it ends with is a failure of that step and of nothing else; only
    a person's Ctrl-C is not the step's."""
    try:
        return call()
    except TreadleError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and is_stop(error):
            raise
        # Addresses differ from process to process, and a fault must replay to the same bytes.
        message = _ADDRESS.sub("0x…", f"{type(error).__name__}: {error}")
        raise StepFailed(f"{workflow.name}: {message}", where=workflow.name) from error


def _copied(value: Value) -> Value:
    """A value for the author to keep or change, in the order that its replay will see. The record is
    encoded after the step, so it must hold another one."""
    return decode_trusted(encode(value))


def _context(bound: Bound, ctx: Context) -> step.Context:
    workflow = bound.workflow
    return step.Context(
        now_ns=ctx.now_ns,
        entropy=ctx.entropy,
        seq=ctx.seq,
        manifest=bound.app.digest,
        workflow=workflow.name,
        key=_key(bound, ctx),
        cell_mode=workflow.keyed,
    )


def _terminal(bound: Bound, state: Value) -> bool:
    workflow, terminal = bound.workflow, bound.workflow.terminal
    if state is None or terminal is None:
        return False
    return _authored(workflow, lambda: bool(terminal(workflow.state.load(state))))


def _domain(bound: Bound, event: Domain, ctx: Context) -> object:
    known = bound.workflow.by_schema.get(event.schema)
    if known is None:
        raise InputInvalid(f"{bound.workflow.name} does not take {event.schema}", where=bound.workflow.name)
    value = ctx.blob(event.value) if is_reference(event.value) else event.value
    return _authored(bound.workflow, lambda: known.shape.load(value))


def _receipt(bound: Bound, event: Receipt, ctx: Context) -> step.Receipt:
    intent = _settled(ctx)
    value: object = None
    payload = event.value
    if event.status == "ok":
        if intent.kind == "timer":
            payload = {"delivered_at_ns": intent.due_ns, "key": _timer_key(intent, ctx)}
            value = TimerFired(**payload)
        else:
            payload = ctx.blob(payload) if is_reference(payload) else payload
            shape = bound.workflow.effects[intent.kind].receipt
            payload = shape.canon(payload)
            value = _authored(bound.workflow, partial(shape.load, payload))
    error = event.error
    return step.Receipt(
        ref=intent.ref or None,
        status=event.status,
        value=value,
        error=None
        if error is None
        else {
            "class": error.get("class"),
            "message": error.get("message"),
            "details": _copied(error.get("details") or {}),
        },
        effect=effect_name(intent),
        intent_id=intent.id,
        workflow=bound.workflow.name,
        key=_key(bound, ctx),
        seq=intent.seq,
        payload=encode(payload),
        executor=event.by,
        signature=event.signature,
    )


def _timer_key(intent: OpenIntent, ctx: Context) -> str | None:
    """Version 1 had no keys of timers, and gave the ref in their place."""
    return cast("str | None", intent.params.get("key", (intent.ref or None) if ctx.machine < 2 else None))


def timer_params(intent: OpenIntent) -> dict[str, Value]:
    """A timer's params as they are shown."""
    return {"deliver_at_ns": intent.due_ns, **intent.params}


def _key(bound: Bound, ctx: Context) -> object:
    """The typed key; a child of another workflow has none, even where the workflow is keyed."""
    shape = bound.workflow.key
    return None if shape is None or ctx.key is None else shape.load(ctx.key)


def _rejected(payload: Value, error: dict[str, Value], ctx: Context) -> step.Rejected:
    intent = _settled(ctx)
    if is_reference(payload):
        size, checksum = int(payload["size"]), str(payload["checksum"])
    else:
        body = encode(payload)
        size, checksum = len(body), digest_bytes(body)
    return step.Rejected(
        ref=intent.ref or None,
        intent_id=intent.id,
        effect=effect_name(intent),
        code=str(error.get("code") or INVALID_PAYLOAD),
        message=str(error.get("message") or ""),
        payload_digest=checksum,
        payload_size=size,
    )


def _settled(ctx: Context) -> OpenIntent:
    """The intent that the receipt at hand settles."""
    assert ctx.intent is not None
    return ctx.intent


def draw(bound: ReactiveDefinition) -> Graph:
    """Events, the workflow, the effects it may ask for."""
    if not isinstance(bound, Bound):
        name = bound.app if isinstance(bound, Books) else bound.workflow
        return Graph(name, [Node(name, name, "group")])
    workflow = bound.workflow
    graph = Graph(workflow.name, [Node(workflow.name, workflow.name)])
    for event in workflow.events:
        graph.nodes.append(Node(event.name, event.tag, "signal"))
        graph.edges.append(Edge(event.name, workflow.name, workflow.key_path or ""))
    for name in sorted(workflow.emits):
        graph.nodes.append(Node(name, name, "timer" if name == TIMER_EFFECT else "task"))
        graph.edges.append(Edge(workflow.name, name))
        graph.edges.append(Edge(name, workflow.name, "receipt", dashed=True))
    return graph
