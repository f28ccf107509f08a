"""The machine of durable functions.

The state holds what a function was told, in order, and a digest of each thing it asked for: enough to make it again
anywhere. A run that is decided often keeps its live function beside the state (`_lives`); one that comes from the
store is made again from its past, once, and compared. Each record's `log` says how the state changed, so a journal
is read, and a run is shown, without the code.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, ClassVar, Final, cast

from treadle.kernel.errors import NotWaiting, TreadleError, Unsupported
from treadle.kernel.limits import HOT_RUNS_MAX
from treadle.kernel.machine import Traits
from treadle.kernel.model import (
    Apply,
    Cancel,
    Context,
    Continue,
    Decision,
    Event,
    Patch,
    Receipt,
    Retry,
    Started,
)
from treadle.kernel.roles import PastMachine
from treadle.kernel.values import Value

from . import ending, past
from .awaits import EXPIRED
from .context import Context as FlowContext
from .errors import CodeChanged, CodeMissing, NotDeterministic
from .life import Life
from .patience import PATIENCE, Patience
from .workflow import DIALECT_NAME, Workflow

_KINDS: Final = frozenset({"step", "send", "publish"})


class Code:
    """A definition made ready: what it names, and the live function where that is here."""

    def __init__(self, machine: FunctionMachine, body: dict[str, Any]) -> None:
        self.name, self.version, self.digest = body["name"], body["version"], body["code"]
        self._machine = machine

    @property
    def live(self) -> Workflow[Any, Any] | None:
        return self._machine.codes.get(self.digest)

    @property
    def judge(self) -> Workflow[Any, Any] | None:
        """Whose past it may be as well: the code itself, else what is loaded of its name and version."""
        machine = self._machine
        return machine.codes.get(self.digest) or machine.newest.get((self.name, self.version))


class FunctionMachine(PastMachine):
    dialect: ClassVar[str] = DIALECT_NAME
    traits: ClassVar[Traits] = Traits(large_input=True, large_data=True, payload_hint="function")

    def __init__(self, *, patience: Patience = PATIENCE, lives_max: int = HOT_RUNS_MAX) -> None:
        self._patience = patience
        self._lives_max = lives_max
        # Live functions by the digest of their code, and what is newest by name and version.
        self.codes: dict[str, Workflow[Any, Any]] = {}
        self.newest: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.latest: dict[str, Workflow[Any, Any]] = {}
        # By the identity of the state they belong to, which each of them holds on to.
        self._lives: OrderedDict[int, Life] = OrderedDict()
        self._lock = Lock()
        # Lives end cut off, whoever lets go of us, and at the exit of the process too. Left to the collector, their
        # `finally` would run outside of any run, where a step is a plain call: it would be done for real.
        weakref.finalize(self, _end_all, self._lives)

    # --- code ---

    def attach(self, code: Workflow[Any, Any]) -> None:
        """Takes code; what it replaces of its name and version is not tried any more, so that mended code takes up
        what the code before it could not go on with."""
        before = self.newest.get((code.name, code.version))
        if before is not None and before.code != code.code:
            self.codes.pop(before.code, None)
        self.codes[code.code] = code
        self.newest[code.name, code.version] = code
        self.latest[code.name] = code

    def load(self, body: Value) -> Code:
        return Code(self, body)

    def unavailable(self, definition: Code) -> TreadleError | None:
        if definition.judge is not None:
            return None
        return CodeMissing(
            f"the code of {definition.name}@{definition.version} is not here. Load it with --app FILE.py "
            "(engine.deploy), then retry the run",
            details={"workflow": definition.name, "version": definition.version, "code": definition.digest},
        )

    def moves_on(self, definition: Code, event: Event | None) -> str | None:
        """Where the code of a run is not here, other code of its name and version may make its past again. A run
        that continues as itself takes the newest there is."""
        if isinstance(event, Continue) and isinstance(event.more, dict) and "again" in event.more:
            newest = self.latest.get(definition.name)
        elif definition.digest in self.codes:
            return None
        else:
            newest = self.newest.get((definition.name, definition.version))
        return None if newest is None or newest.code == definition.digest else newest.definition().digest

    def kinds(self, definition: Code) -> frozenset[str]:
        return _KINDS

    # --- lives ---

    @property
    def alive(self) -> int:
        """How many functions are kept alive."""
        return len(self._lives)

    def forget(self, state: Value) -> None:
        with self._lock:
            life = self._lives.pop(id(state), None)
        if life is not None:
            life.drop()

    def _keep(self, life: Life) -> None:
        with self._lock:
            self._lives[id(life.state)] = life
            old = self._lives.popitem(last=False)[1] if len(self._lives) > self._lives_max else None
        if old is not None:
            old.drop()

    def _life(self, definition: Code, state: dict[str, Any], ctx: Context) -> Life:
        """The live function of a run: kept, or made again from its past. It is the last to make room now."""
        with self._lock:
            if (life := self._lives.get(id(state))) is not None:
                self._lives.move_to_end(id(state))
        if life is not None and life.code is definition.judge:
            return life
        self.forget(state)
        life = self._again(self._code(definition), state, ctx)
        self._keep(life)
        return life

    def _code(self, definition: Code) -> Workflow[Any, Any]:
        if (code := definition.judge) is not None:
            return code
        problem = self.unavailable(definition)
        assert problem is not None
        raise problem

    def _made(self, code: Workflow[Any, Any], state: dict[str, Any], ctx: Context) -> Life:
        return Life(code, state, run=ctx.run, ctx=ctx, patience=self._patience)

    def _again(
        self, code: Workflow[Any, Any], state: dict[str, Any], ctx: Context, *, until: int | None = None
    ) -> Life:
        """Makes a function again from its past, and compares each await with what is recorded."""
        life = self._made(code, state, ctx)
        life.repeating, life.expected = True, state["awaits"]
        try:
            self._begin(life)
            life.take()
            for entry in state["past"][:until]:
                life.feed(entry)
                life.take()
            if until is None and life.count != len(state["awaits"]):
                was = state["awaits"][life.count]
                raise life.differs(f"await {life.count}", f"{was[0]} {was[1]}", "nothing", was_at=was[3])
        except BaseException:
            life.drop()
            raise
        life.repeating, life.expected = False, ()
        life.rest()
        return life

    def _begin(self, life: Life) -> None:
        if life.code.timeout_ns is not None and life.generation == 0:
            life.wait("timer", EXPIRED, {}, due_ns=life.started_ns + life.code.timeout_ns, future=False)
        if life.generation == 0:
            life.tell({"type": "workflow.started", "workflow": life.code.name})
        life.begin(ending.main(life, FlowContext(life)))

    # --- decisions ---

    def start(self, definition: Code, event: Started, ctx: Context) -> Decision:
        state = past.fresh(event, ctx)
        if ctx.recorded is not None:
            return past.told(state, ctx)
        life = self._made(self._code(definition), state, ctx)
        return self._decided(life, ctx, self._begin, life)

    def step(self, definition: Code, state: Value, event: Event, ctx: Context) -> Decision:
        if ctx.recorded is not None:
            past.take(state, event, ctx)
            return past.told(state, ctx)
        match event:
            case Receipt() | Patch():
                return self._told(definition, state, event, ctx)
            case Continue(more={"again": _}):
                self.forget(state)
                past.take(state, event, ctx)
                life = self._made(self._code(definition), state, ctx)
                return self._decided(life, ctx, self._begin, life)
            case Continue():
                return self._told(definition, state, event, ctx)
            case Apply():
                return self._move(definition, state, ctx)
            case Retry():
                return self._retry(definition, state, event, ctx)
            case _:
                raise Unsupported(f"a durable function takes no event of kind {event.kind!r}")

    def cancel(self, definition: Code, state: Value, event: Cancel, ctx: Context) -> Decision:
        if ctx.recorded is not None:
            past.take(state, event, ctx)
            return past.told(state, ctx)
        if state["cancelled"] is not None:
            self.forget(state)
            past.take(state, event, ctx)
            decision = super().cancel(definition, state, event, ctx)
            decision.events = [{"type": "workflow.finished", "status": "cancelled"}]
            return decision
        return self._told(definition, state, event, ctx)

    def _told(self, definition: Code, state: dict[str, Any], event: Event, ctx: Context) -> Decision:
        """The function is told of an event, and goes on."""
        life = self._life(definition, state, ctx)
        entry = past.take(state, event, ctx)
        assert entry is not None
        return self._decided(life, ctx, life.feed, entry, is_new=False)

    def _decided(
        self, life: Life, ctx: Context, go: Callable[..., None], *given: Any, is_new: bool = True
    ) -> Decision:
        """Lets the function go on, and makes a decision of what it did."""
        life.ctx, life.answered = ctx, None if ctx.logged is None else _answered(ctx)
        try:
            go(*given)
            decision = past.decision(life, ctx)
        except BaseException:
            self._discard(life)
            raise
        if life.outcome is not None and life.is_over:
            self._discard(life)
        else:
            life.rest()
            if is_new:
                self._keep(life)
        return decision

    def _discard(self, life: Life) -> None:
        with self._lock:
            self._lives.pop(id(life.state), None)
        life.drop()

    def _move(self, definition: Code, state: dict[str, Any], ctx: Context) -> Decision:
        """The run goes on under other code of its name and version, if that makes its past again."""
        self.forget(state)
        if state["between"]:
            return Decision(state=state, status=cast("Any", ctx.status))
        try:
            life = self._again(self._code(definition), state, ctx)
        except NotDeterministic as error:
            raise CodeChanged(
                f"{ctx.run}: the code of {definition.name}@{definition.version} has changed, and does not make this "
                f"run's past again: {error.details.get('expected')} was recorded, {error.details.get('got')} comes "
                "now. Give the change a version of its own or guard it with ctx.patched(name)",
                where=error.where,
                details=error.details,
            ) from error
        self._keep(life)
        return Decision(state=state, status=cast("Any", ctx.status))

    def _retry(self, definition: Code, state: dict[str, Any], event: Retry, ctx: Context) -> Decision:
        if ctx.status not in ("failed", "stalled"):
            raise NotWaiting(f"{ctx.run} is {ctx.status}; only a failed run is retried", code="NOT_STALLED")
        if state["undone"]:
            raise Unsupported(f"{ctx.run} has undone its steps; start it anew")
        keep, entry = past.retried(state, event, ctx)
        code = self._code(definition)
        awaits = state["awaits"]
        life = self._again(code, state, ctx, until=keep)
        cut, told = [keep, life.count], past.told_anew(event, entry, life.count, ctx)
        state["past"] = state["past"][:keep] + told
        state["awaits"] = awaits[: life.count]
        state["failed_at"] = None

        def go() -> None:
            for one in told:
                life.feed(one)

        decision = self._decided(life, ctx, go)
        decision.log = {**decision.log, "cut": cut, "told": told}
        return decision

    # --- people ---

    def compatible(self, definition: Code, state: Value) -> str | None:
        return None

    def view(self, definition: Code, state: Value) -> dict[str, Any]:
        awaits = [shape[:2] for shape in state["awaits"]]
        return {"state": state["state"], "awaits": awaits, "generation": state["generation"]}


def _end_all(lives: OrderedDict[int, Life]) -> None:
    while lives:
        lives.popitem()[1].drop()


def _answered(ctx: Context) -> dict[str, bool]:
    """Of a record that is decided again: which patches it had answered with True."""
    return dict(ctx.logged.get("patches") or {}) if isinstance(ctx.logged, dict) else {}
