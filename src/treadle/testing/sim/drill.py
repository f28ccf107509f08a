"""The simulator's own workload: a small dialect that does everything a machine can ask for.

A run's input is its program: lanes that advance side by side, each a list of operations. What a
program must come to is known beforehand (`oracle.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.machine import Machine
from treadle.kernel.model import (
    Cancel,
    Context,
    Continue,
    Decision,
    Domain,
    Event,
    Frame,
    Intent,
    OpenIntent,
    Patch,
    Receipt,
    Rejected,
    Retry,
    Signal,
    Started,
    is_reference,
)
from treadle.kernel.roles import JudgingMachine, StreamingMachine
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.runtime.ports import NewRun
from treadle.work.job import Done, Performer

from .oracle import BLOB_CHARS, Op, check_result, possible_ends
from .process import SimJob
from .workload import Action, Fork

if TYPE_CHECKING:
    from .world import World

MS = 1_000_000
SLICE = 2


class DrillMachine(JudgingMachine, StreamingMachine):
    """Lanes of operations; an operation opens intents and its receipts move the lane on."""

    dialect = "drill"

    def load(self, body: Value) -> Any:
        return body

    def kinds(self, definition: Any) -> frozenset[str] | None:
        return frozenset({"work"})

    def wants_frames(self, definition: Any) -> bool:
        return bool(definition.get("frames"))

    def takes_rejected(self, definition: Any) -> bool:
        return True

    def receipt_problem(self, definition: Any, intent: OpenIntent, receipt: Receipt) -> dict[str, Any] | None:
        if isinstance(receipt.value, dict) and "invalid" in receipt.value:
            return TreadleError("not what was asked for", cls="user", code="DRILL_INVALID").to_value()
        return None

    def start(self, definition: Any, event: Started, ctx: Context) -> Decision:
        if definition.get("cell"):
            return Decision(state={"heard": [event.input["value"]]}, status="running")
        lanes = [{"pc": 0, "out": [], "left": 0, "tries": 0} for _ in event.input["lanes"]]
        state = {"program": event.input, "lanes": lanes}
        turn = _Turn(state, ctx)
        for lane in range(len(lanes)):
            turn.enter(lane)
        return turn.decide()

    def step(self, definition: Any, state: Value, event: Event, ctx: Context) -> Decision:
        if definition.get("cell"):
            assert isinstance(event, Domain)
            state["heard"].append(event.value)
            return Decision(state=state, status="running")
        turn = _Turn(state, ctx)
        match event:
            case Continue():
                for lane, first in event.more:
                    turn.open_slice(lane, first)
            case Frame():
                assert ctx.open[event.intent].ref, "a frame of open work"
            case Receipt() | Rejected() | Signal():
                assert ctx.intent is not None
                turn.settle(ctx.intent, event)
            case Patch():
                state["patches"] = [*state.get("patches", ()), event.data]
            case Retry() if ctx.status == "failed":
                turn.retry()
            case _:
                raise TreadleError(f"a drill takes no {event.kind}", cls="user", code="DRILL_REFUSES")
        return turn.decide()


class _Turn:
    """One step: what it changes and what it opens."""

    def __init__(self, state: Value, ctx: Context) -> None:
        self.state = state
        self.ctx = ctx
        self.intents: list[Intent] = []
        self.cancel: list[str] = []
        self.slices: list[list[int]] = []
        self.failed: dict[str, Any] | None = None

    def op(self, lane: int) -> Op | None:
        pc, ops = self.state["lanes"][lane]["pc"], self.state["program"]["lanes"][lane]
        return ops[pc] if pc < len(ops) else None

    def decide(self) -> Decision:
        state, ctx = self.state, self.ctx
        lanes = state["lanes"]
        events = [{"type": "drill.step", "seq": ctx.seq}]
        if self.failed is not None:
            return Decision(state=state, events=events, status="failed", error=self.failed)
        if all(lane["pc"] >= len(ops) for lane, ops in zip(lanes, state["program"]["lanes"], strict=True)):
            sent = [intent for intent in self.intents if intent.kind in ("start", "deliver")]
            result = [lane["out"] for lane in lanes]
            return Decision(state=state, events=events, status="completed", result=result, intents=sent)
        more = self.slices or None
        return Decision(state=state, events=events, intents=self.intents, cancel=self.cancel, more=more)

    # --- entering an operation ---

    def open(
        self, lane: int, kind: str, params: dict[str, Any], *, ms: int | None = None, part: int = 0
    ) -> None:
        pc, tries = self.state["lanes"][lane]["pc"], self.state["lanes"][lane]["tries"]
        due = None if ms is None else self.ctx.now_ns + ms * MS
        key = f"{self.ctx.run}/{lane}/{pc}/{part}" if kind == "work" else None
        ref = f"{lane}.{pc}.{part}.{tries}"
        self.intents.append(Intent(kind=kind, params=params, ref=ref, due_ns=due, idempotency_key=key))

    def retry(self) -> None:
        """After a failure nothing is open: what failed is passed over, the rest is entered again."""
        for lane in range(len(self.state["lanes"])):
            op = self.op(lane)
            if op is not None and op["do"] in ("fail", "crash"):
                self._leave(lane, "skipped")
            else:
                self.enter(lane)

    def enter(self, lane: int) -> None:
        """Starts the lane's operation; those that need nobody are passed at once."""
        while (op := self.op(lane)) is not None:
            if op["do"] in ("deliver", "drop"):
                self._pass(lane, op)
                continue
            self._open_op(lane, op)
            return

    def _pass(self, lane: int, op: Op) -> None:
        if op["do"] == "deliver":
            event = {"schema": "drill", "value": op["value"]}
            params = {
                "run": op["cell"],
                "definition": op["definition"],
                "workflow": "cell",
                "key": op["cell"],
                "event": event,
            }
            self.open(lane, "deliver", params)
            self._leave(lane, "sent", go_on=False)
            return
        self._drop(op["lane"])
        self._leave(lane, "dropped", go_on=False)

    def _drop(self, lane: int) -> None:
        """Gives up another lane, wherever it is."""
        prefix = f"{lane}."
        refs = [intent.ref for intent in self.ctx.open.values() if intent.ref.startswith(prefix)]
        self.cancel += refs
        self.intents = [intent for intent in self.intents if not intent.ref.startswith(prefix)]
        self.slices = [part for part in self.slices if part[0] != lane]
        target = self.state["lanes"][lane]
        if self.op(lane) is not None:
            target["out"].append("given up")
            target["pc"], target["left"] = len(self.state["program"]["lanes"][lane]), 0

    def _open_op(self, lane: int, op: Op) -> None:
        match op["do"]:
            case "work" | "flaky" | "blob" | "careful" | "invalid" | "crash":
                tries = self.state["lanes"][lane]["tries"]
                self.open(
                    lane, "work", {"name": op["do"], "value": op.get("value"), "try": tries, **_fails(op)}
                )
            case "many":
                self.state["lanes"][lane]["left"] = op["count"]
                self.open_slice(lane, 0)
            case "late":
                self.open(lane, "work", {"name": "never"}, ms=op["ms"])
            case "timer":
                self.open(lane, "timer", {"name": "nap"}, ms=op["ms"])
            case "signal":
                self.open(lane, "signal", {"name": op["name"]}, ms=op.get("ms"))
            case "task":
                self.open(lane, "task", {"name": "approve", "roles": ["clerk"]})
            case "child" | "start":
                params = {"workflow": op.get("workflow", "drill"), "input": op["program"], "name": "drill"}
                self.open(lane, op["do"], params)
            case "fail":
                self.failed = TreadleError("as told", cls="user", code="DRILL_FAILED").to_value()
            case name:
                raise AssertionError(f"no operation {name!r}")

    def open_slice(self, lane: int, first: int) -> None:
        """Opens a part of many; the rest comes with the next record."""
        op = self.op(lane)
        if op is None or op["do"] != "many":
            return
        last = min(first + SLICE, op["count"])
        for part in range(first, last):
            self.open(lane, "work", {"name": "work", "value": part, "try": 0}, part=part)
        if last < op["count"]:
            self.slices.append([lane, last])

    # --- leaving it ---

    def settle(self, intent: OpenIntent, event: Receipt | Rejected | Signal) -> None:
        lane = int(intent.ref.split(".")[0])
        op = self.op(lane)
        assert op is not None
        if intent.kind == "timer" and op["do"] == "flaky":
            self.enter(lane)
            return
        if op["do"] == "crash":
            self.state["lanes"] = "half changed"
            raise ValueError("the machine is broken here")
        if op["do"] == "flaky" and isinstance(event, Receipt) and event.status == "error":
            self.state["lanes"][lane]["tries"] += 1
            self.open(lane, "timer", {"name": "retry"}, ms=op["ms"])
            return
        if op["do"] == "many":
            self.state["lanes"][lane]["left"] -= 1
            if self.state["lanes"][lane]["left"]:
                return
        self._leave(lane, self._output(op, event))

    def _output(self, op: Op, event: Receipt | Rejected | Signal) -> Value:
        if isinstance(event, Rejected):
            return "rejected"
        assert isinstance(event, Receipt)
        if event.status != "ok":
            return [event.status, (event.error or {}).get("code")]
        match op["do"]:
            case "many":
                return op["count"]
            case "blob":
                assert is_reference(event.value)
                return len(self.ctx.blob(event.value)["text"])
            case "child":
                return event.value["result"]
            case "timer" | "start":
                return op["do"]
            case _:
                return event.value

    def _leave(self, lane: int, output: Value, *, go_on: bool = True) -> None:
        state = self.state["lanes"][lane]
        state["out"].append(output)
        state["pc"] += 1
        state["tries"] = 0
        if go_on:
            self.enter(lane)


def _fails(op: Op) -> dict[str, Any]:
    return {"fails": op["fails"]} if "fails" in op else {}


async def perform(job: Any) -> Done:
    """What workers do. A pure function of the intent, so that doing it twice is doing it once."""
    assert isinstance(job, SimJob)
    params = job.intent.params
    match params["name"]:
        case "never":
            await job.never()
        case "flaky" if params["try"] < params["fails"]:
            raise TreadleError("try again", cls="transport", code="DRILL_FLAKY")
        case "blob":
            return Done(value={"text": "x" * BLOB_CHARS, "salt": params["value"]})
        case "invalid":
            return Done(value={"invalid": True})
        case "careful":
            mark = (job.checkpoint or {}).get("mark", 0)
            await job.progress("drill.progress", mark=mark)
            await job.save({"mark": mark + 1}, durable=True)
            await job.save({"mark": mark + 2})
            return Done(value=params["value"], events=[{"type": "drill.careful", "value": params["value"]}])
    return Done(value=params["value"])


# --- what programs are there, and what they come to -----------------------------------------------


class Drill:
    """Random programs, their signals, and the oracle that knows how each must end."""

    def __init__(self, rng: Random) -> None:
        machine = DrillMachine()
        self.machines: Mapping[str, Machine] = {"drill": machine}
        self._drill = Definition("drill", "drill", "1.0.0", {"drill": True, "frames": rng.random() < 0.3})
        self._cell = Definition("drill", "cell", "1.0.0", {"cell": True})
        self.definitions = [self._drill, self._cell]
        self.performers: Mapping[str, Performer] = {"work": perform}
        self._rng = rng
        self._programs: dict[str, Any] = {}
        self._cancelled: set[str] = set()
        self._retried: set[str] = set()
        self._forks: list[Fork] = []
        self._signals = 0

    def endless(self, workflow: str) -> bool:
        return workflow == "cell"

    # --- the script ---

    def actions(self, rng: Random) -> list[Action]:
        found: list[Action] = []
        for number in range(rng.randrange(3, 11)):
            run = f"run-{number}"
            program = self._program(depth=0)
            self._programs[run] = program
            at_ms = rng.randrange(5_000)
            event = Started(definition=self._drill.digest, input=program, seed=rng.randbytes(16))
            create = NewRun("drill", "drill", "1.0.0", self._drill.digest)
            found.append(Action(f"start {run}", at_ms, run, event, create=create))
            found += self._signal_actions(run, program, at_ms, rng)
            if rng.random() < 0.15:
                self._cancelled.add(run)
                cancel = Cancel(reason="enough")
                late = at_ms + rng.randrange(5_000)
                found.append(Action(f"cancel {run}", late, run, cancel, after=f"start {run}"))
            found += self._steering(run, program, at_ms, rng)
        return found

    def _steering(self, run: str, program: Any, at_ms: int, rng: Random) -> list[Action]:
        """Patches; and for runs that wait for nobody's signal, retries and forks."""
        found: list[Action] = []
        for number in range(rng.choice((0, 0, 1, 2))):
            when = at_ms + rng.randrange(8_000)
            event = Patch(data={"token": f"{run}/{number}"})
            found.append(Action(f"patch {run} {number}", when, run, event, after=f"start {run}"))
        if any(op["do"] == "signal" and "ms" not in op for lane in program["lanes"] for op in lane):
            return found
        if possible_ends(program) != {"completed"}:
            self._retried.add(run)
            for number in range(2):
                when = at_ms + rng.randrange(30_000)
                again = Retry(how={"number": number})
                found.append(Action(f"retry {run} {number}", when, run, again, after=f"start {run}"))
        elif rng.random() < 0.3:
            self._forks.append(Fork(at_ms + rng.randrange(8_000), run, f"{run}-fork"))
        return found

    def forks(self) -> list[Fork]:
        return self._forks

    def _signal_actions(self, run: str, program: Any, at_ms: int, rng: Random) -> list[Action]:
        found = []
        for lane in program["lanes"]:
            for op in lane:
                if op["do"] == "signal" and "ms" not in op:
                    self._signals += 1
                    name = f"signal {run} {op['name']} {self._signals}"
                    event = Signal(name=op["name"], data={"token": self._signals})
                    keyed = (f"run:{run}", f"signal:{self._signals}") if rng.random() < 0.5 else None
                    when = at_ms + rng.randrange(10_000)
                    found.append(Action(name, when, run, event, submission=keyed, after=f"start {run}"))
        return found

    def _program(self, depth: int) -> Any:
        rng = self._rng
        lanes = [[self._op(depth) for _ in range(rng.randrange(1, 5))] for _ in range(rng.randrange(1, 4))]
        if len(lanes) > 1 and rng.random() < 0.15:
            lanes[0].append({"do": "drop", "lane": len(lanes) - 1})
        return {"lanes": lanes}

    def _op(self, depth: int) -> Op:
        rng = self._rng
        kinds = ["work", "work", "flaky", "timer", "careful", "many", "deliver", "late", "invalid", "task"]
        if depth < 2:
            kinds += ["child", "start"]
        if depth == 0:
            kinds += ["signal", "signal", "signal_late", "child", "orphan", "blob"]
        if rng.random() < 0.03:
            return {"do": rng.choice(("fail", "crash"))}
        kind = rng.choice(kinds)
        match kind:
            case "flaky":
                return {"do": kind, "value": 7, "fails": rng.randrange(1, 4), "ms": rng.randrange(2_000)}
            case "timer" | "late":
                return {"do": kind, "ms": rng.randrange(1, 20_000)}
            case "many":
                return {"do": kind, "count": rng.randrange(1, 7)}
            case "deliver":
                cell = f"cell-{rng.randrange(2)}"
                return {
                    "do": kind,
                    "cell": cell,
                    "definition": self._cell.digest,
                    "value": rng.randrange(100),
                }
            case "signal":
                return {"do": "signal", "name": rng.choice("ab")}
            case "signal_late":
                return {"do": "signal", "name": "nobody", "ms": rng.randrange(1, 20_000)}
            case "child" | "start":
                return {"do": kind, "program": self._program(depth + 1)}
            case "orphan":
                return {"do": "child", "workflow": "nowhere", "program": {"lanes": []}}
            case _:
                return {"do": kind, "value": rng.randrange(1_000)}

    # --- the oracle ---

    def check(self, world: World) -> None:
        by_id = {life.id: life for life in world.journals.lives.values()}
        forked = {fork.new_id: self._programs[fork.run] for fork in world.keeper.forked}
        cancelled = self._cancelled | {f"{run}-fork" for run in self._cancelled}
        for run, program in {**self._programs, **forked}.items():
            last = by_id[run].records[-1]
            allowed = possible_ends(program)
            if run in cancelled:
                allowed = allowed | {"cancelled"}
            if run in self._retried:
                allowed = allowed | {"completed"}
            assert last["status"] in allowed, f"{run} is {last['status']}: {last.get('error')}"
            if last["status"] == "completed":
                check_result(program, last["result"], run)
