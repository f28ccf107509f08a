"""The machine of processes: events in, decisions out. The work is done by `turn` and `waits`."""

from __future__ import annotations

from typing import ClassVar, Final

from treadle.kernel.errors import ExpressionError, Unsupported
from treadle.kernel.machine import Machine, Traits
from treadle.kernel.model import Cancel, Context, Continue, Decision, Event, Patch, Receipt, Retry, Started
from treadle.kernel.values import Value, to_value

from . import undo, waits
from .parts import ours
from .program import Ask, Await, Call, Fork, Op, Program, Repeat, Start, Wait, load
from .turn import MAIN, Turn, fresh
from .views import view


class ProcessMachine(Machine):
    """Run-to-wait: one record per event, however many steps it leads to."""

    dialect: ClassVar[str] = "process"
    # 2: errors name their step; an escalated task names the one it came from; what is large is stored.
    version: ClassVar[int] = 2
    traits: ClassVar[Traits] = Traits(large_input=True, large_data=True, payload_hint="process")

    def load(self, body: Value) -> Program:
        # Keys in canonical order, as the store gives them back: whoever runs it decides the same.
        return load(to_value(body))

    def start(self, definition: Program, event: Started, ctx: Context) -> Decision:
        turn = Turn(definition, fresh(ours(event.input)), ctx)
        turn.reference = event.reference
        turn.queue.append(MAIN)
        turn.events.append({"type": "workflow.started", "workflow": definition.name})
        return self._decided(turn, event)

    def step(self, definition: Program, state: Value, event: Event, ctx: Context) -> Decision:
        turn = Turn(definition, state, ctx)
        match event:
            case Receipt():
                assert ctx.intent is not None
                try:
                    waits.receive(turn, event, ctx.intent)
                except ExpressionError as error:
                    turn.broken(turn.threads[ctx.intent.ref.partition("/")[0]]["wait"]["path"], error)
            case Continue():
                turn.queue.extend(state.pop("ready", []))
            case Retry():
                waits.retry_stalled(turn, event)
            case Patch():
                _patch(turn, event)
            case _:
                raise Unsupported(f"a process takes no event of kind {event.kind!r}")
        return self._decided(turn, event)

    def cancel(self, definition: Program, state: Value, event: Cancel, ctx: Context) -> Decision:
        decision = super().cancel(definition, state, event, ctx)
        if not state.get("undo") and "undoing" not in state:
            state["threads"] = {}
            state["ended"] = {"status": "cancelled", "path": None}
            return decision
        assert decision.error is not None
        turn = Turn(definition, state, ctx)
        if "undoing" in state:
            undo.stop(turn, decision.error)
        else:
            turn.end("cancelled", None, decision.error, None)
        return self._decided(turn, event)

    def _decided(self, turn: Turn, event: Event) -> Decision:
        last: dict[str, Value] = {"seq": turn.ctx.seq, "kind": event.kind}
        if turn.ctx.intent is not None:
            last["intent"] = turn.ctx.intent.id
            last["of"] = turn.ctx.intent.kind
        turn.data["last"] = last
        return turn.run()

    def retention_ns(self, definition: Program) -> int:
        return definition.retention_ns

    def compatible(self, definition: Program, state: Value) -> str | None:
        """Whether every place where the run stands is there in this definition, and is the same
        kind of step: then its frames and waits mean what they meant."""
        for entry in state.get("undo", ()):
            if entry["block"] not in definition.blocks:
                return f"the run may have to undo {entry['path']}, which is not there"
        for thread in state["threads"].values():
            for frame in thread["frames"]:
                block = definition.blocks.get(frame["block"])
                if block is None or frame["next"] > len(block):
                    return f"the run stands in {frame['block']}, step {frame['next']}, which is not there"
                if "loop" in frame and not isinstance(definition.ops.get(frame["loop"]), Repeat):
                    return f"the run is inside the loop {frame['loop']}, which is not there"
            wait = thread["wait"]
            if wait is not None and not _same_wait(definition.ops.get(wait["path"]), wait["kind"]):
                return f"the run waits at {wait['path']} for a {wait['kind']}, which is another step there"
        return None

    def kinds(self, definition: Program) -> frozenset[str]:
        return _KINDS

    def view(self, definition: Program, state: Value) -> dict[str, Value]:
        return view(definition, state)


_KINDS: Final = frozenset({"call"})
_WAITS: dict[str, type[Op]] = {
    "task": Ask, "timer": Wait, "signal": Await, "child": Start, "start": Start, "call": Call, "retry": Call,
    "join": Fork,
}  # fmt: skip


def _same_wait(op: Op | None, kind: str) -> bool:
    return op is not None and (kind == "stalled" or isinstance(op, _WAITS[kind]))


def _patch(turn: Turn, event: Patch) -> None:
    """A person corrects business data: `total=5` and `state.total=5` both mean state.total."""
    for target in sorted(event.data):
        path = target.removeprefix("state.").split(".")
        if not all(path):
            raise Unsupported(f"{target!r} is not a path into the state; write name or name.name")
        turn.set_state(path, event.data[target])
    turn.events.append({"type": "state.patched", "targets": sorted(event.data), "by": event.by})
