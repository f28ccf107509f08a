"""The dialect of the simulator's own workload: a small machine that does everything a machine can ask for.

A run's input is its program: lanes that advance side by side, each a list of operations.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.machine import RETENTION_NS
from treadle.kernel.model import (
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
from treadle.work.job import Done

from .oracle import BLOB_CHARS, Op, references
from .workers import SimJob

MS = 1_000_000
SLICE = 2
# How the definition calls itself whose runs are of the other dialect.
BRIEF = "brief"


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

    def retention_ns(self, definition: Any) -> int:
        kept_ms: int | None = definition.get("kept_ms")
        return RETENTION_NS if kept_ms is None else kept_ms * MS

    def receipt_problem(self, definition: Any, intent: OpenIntent, receipt: Receipt) -> dict[str, Any] | None:
        if isinstance(receipt.value, dict) and "invalid" in receipt.value:
            return TreadleError("not what was asked for", cls="user", code="DRILL_INVALID").to_value()
        return None

    def start(self, definition: Any, event: Started, ctx: Context) -> Decision:
        if definition.get("cell"):
            return Decision(state={"heard": [event.input["value"]]}, status="running")
        lanes = [{"pc": 0, "out": [], "left": 0, "tries": 0} for _ in event.input["lanes"]]
        state = {"program": event.input, "lanes": lanes}
        turn = _Turn(definition, state, ctx)
        for lane in range(len(lanes)):
            turn.enter(lane)
        return turn.decide()

    def step(self, definition: Any, state: Value, event: Event, ctx: Context) -> Decision:
        if definition.get("cell"):
            assert isinstance(event, Domain)
            state["heard"].append(event.value)
            return Decision(state=state, status="running")
        turn = _Turn(definition, state, ctx)
        match event:
            case Continue():
                for lane, first in event.more:
                    turn.go_on(lane, first)
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


class AsideMachine(DrillMachine):
    """The same under another name: a dialect that one of another dialect may need."""

    dialect = "aside"


class _Turn:
    """One step: what it changes and what it opens."""

    def __init__(self, definition: Any, state: Value, ctx: Context) -> None:
        # What the definition calls itself: its steps say by which they were decided.
        self.mark = definition.get("mark")
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
        events = [{"type": "drill.step", "seq": ctx.seq, "by": self.mark}]
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
            if op["do"] in ("deliver", "drop", "reread"):
                self._pass(lane, op)
                continue
            self._open_op(lane, op)
            return

    def _pass(self, lane: int, op: Op) -> None:
        if op["do"] == "deliver":
            event = {"schema": "drill", "value": op["value"]}
            aside = "-aside" if self.mark == BRIEF else ""
            cell = op["cell"] + aside
            params = {
                "run": cell,
                "definition": op["aside" if aside else "definition"],
                "workflow": f"cell{aside}",
                "key": cell,
                "event": event,
            }
            self.open(lane, "deliver", params)
            self._leave(lane, "sent", go_on=False)
            return
        if op["do"] == "reread":
            self._leave(lane, self._reread(lane, op), go_on=False)
            return
        self._drop(op["lane"])
        self._leave(lane, "dropped", go_on=False)

    def _reread(self, lane: int, op: Op) -> Value:
        """Looks again at payloads that this run was handed."""
        given = (
            self.state["program"]["given"] if op["of"] is None else self.state["lanes"][lane]["out"][op["of"]]
        )
        return [len(self.ctx.blob(reference)["text"]) for reference in references(given)]

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
            case "work" | "flaky" | "blob" | "gift" | "careful" | "invalid" | "crash" | "pay" | "once":
                tries, pc = self.state["lanes"][lane]["tries"], self.state["lanes"][lane]["pc"]
                params = {"name": op["do"], "value": op.get("value"), "try": tries, **_fails(op)}
                self.open(
                    lane,
                    "work",
                    params | ({"what": f"{self.ctx.run}/{lane}/{pc}"} if op["do"] == "pay" else {}),
                )
            case "many":
                self.state["lanes"][lane]["left"] = op["count"]
                self._open_slice(lane, op, 0)
            case "grind":
                self.slices.append([lane, 1])
            case "late":
                self.open(lane, "work", {"name": "never"}, ms=op["ms"])
            case "timer":
                self.open(lane, "timer", {"name": "nap"}, ms=op["ms"])
            case "signal":
                self.open(lane, "signal", {"name": op["name"]}, ms=op.get("ms"))
            case "task":
                self.open(lane, "task", {"name": "approve", "roles": ["clerk"]})
            case "child" | "start":
                program = op["program"]
                if "hand" in op:
                    program = {**program, "given": self.state["lanes"][lane]["out"][op["hand"]]}
                params = {"workflow": op.get("workflow", "drill"), "input": program, "name": "drill"}
                self.open(lane, op["do"], params)
            case "fail":
                self.failed = TreadleError("as told", cls="user", code="DRILL_FAILED").to_value()
            case name:
                raise AssertionError(f"no operation {name!r}")

    def go_on(self, lane: int, first: int) -> None:
        """What a run left for its next record."""
        op = self.op(lane)
        if op is None:
            return
        if op["do"] == "many":
            self._open_slice(lane, op, first)
        elif op["do"] == "grind" and first < op["count"]:
            self.slices.append([lane, first + 1])
        elif op["do"] == "grind":
            self._leave(lane, "ground")

    def _open_slice(self, lane: int, op: Op, first: int) -> None:
        """Opens a part of many; the rest comes with the next record."""
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
        if intent.kind == "timer" and op["do"] in ("flaky", "pay"):
            self.enter(lane)
            return
        if op["do"] == "crash":
            self.state["lanes"] = "half changed"
            raise ValueError("the machine is broken here")
        if op["do"] in ("flaky", "pay") and isinstance(event, Receipt) and event.status == "error":
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
        case "pay":
            number = job.pay(params["what"])
            if params["try"] < params["fails"]:
                raise TreadleError("the answer was lost", cls="transport", code="DRILL_FLAKY")
            return Done(value=number)
        case "once":
            if job.checkpoint is not None:
                raise TreadleError("it may have been done", cls="transport", code="IN_DOUBT")
            await job.save({"started": True}, durable=True)
            job.call()
        case "blob" | "gift":
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
