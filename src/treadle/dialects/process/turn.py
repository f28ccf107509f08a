"""One turn of a run: execute in memory until everything waits, then hand over one decision.

A run is a set of threads, the main one and one per open branch of a fork. A thread is a stack of
frames (which block, which step next, which round of a loop) and what it waits for. All of it is
plain data in the run's state, so that there is nothing to restore but the state. Business data
(`state`, `results`, `start`) stands beside it and is never mixed with it.

A turn that would grow beyond what one record may hold, or that computes for too long, is cut into
slices: the threads that are ready are noted, and the kernel calls again at once.

Containers of business data are never changed in place below the top level: values are shared
between places, in memory only, and a write must not show through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from treadle.kernel.errors import ExpressionError, TreadleError
from treadle.kernel.limits import STEP_EVENTS_MAX, STEP_INTENTS_MAX
from treadle.kernel.model import UNSET, Context, Decision, Intent, Status, addressed, is_reference
from treadle.kernel.values import Value
from treadle.lang.expressions.functions import mistake, string, type_name, unfolded

from . import undo
from .program import Assign, Choice, Compensate, Complete, Fail, Fork, Op, Program, Refer, Repeat
from .scope import TURNS_MAX, Meter, RunScope, Thread

SLICE_STEPS_MAX: Final = 5_000
SLICE_BYTES_MAX: Final = 256 * 1024
SLICE_STORED_MAX: Final = 4 * 1024 * 1024
SLICE_TURNS_MAX: Final = 500_000
REFERENCE_CHARS_MAX: Final = 1_000
MESSAGE_CHARS_MAX: Final = 4_000
CODE_CHARS_MAX: Final = 100
MAIN: Final = "0"
# Since this version of the machine errors name their step, and escalated tasks the one they came from.
NAMES_STEPS: Final = 2
# Since this version calls may name a pool of workers.
NAMES_POOLS: Final = 2

Handler = Callable[["Turn", Thread, Any], bool]
# What each kind of operation does; True when the thread has to wait or the run has ended.
HANDLERS: Final[dict[type[Op], Handler]] = {}


class Again(Op, kw_only=True):
    """No step of a definition: what a person wants of a stalled thread, done when its turn comes."""

    how: str
    value: Value
    by: str | None


def fresh(input: Value) -> dict[str, Value]:
    """The state of a run before its first step."""
    return {
        "start": input,
        "state": {},
        "results": {},
        "threads": {MAIN: thread(MAIN, "steps")},
        "next_id": 1,
        "seen": {},
        "last": None,
    }


def thread(id: str, block: str) -> Thread:
    return {"id": id, "frames": [{"block": block, "next": 0}], "payload": None, "wait": None}


class Turn:
    """What one event leads to."""

    def __init__(self, program: Program, data: dict[str, Value], ctx: Context) -> None:
        self.program = program
        self.data = data
        self.ctx = ctx
        self.reference = ctx.reference
        self.queue: deque[str] = deque()
        self.intents: list[Intent] = []
        self.events: list[dict[str, Value]] = []
        self.cancel: list[str] = []
        self.outcome: tuple[Status, Value, dict[str, Value] | None] | None = None
        self.steps = 0
        self.bytes = 0
        self.meter = Meter()
        self._scope: RunScope | None = None
        # Whether a thread may be stalled: of a run that only waited none was, and with a thousand branches that is worth
        # knowing. A retry may have waited for its place in line, so it looks.
        self.may_stall = ctx.status != "waiting"

    @property
    def threads(self) -> dict[str, Thread]:
        threads: dict[str, Thread] = self.data["threads"]
        return threads

    # --- running ---

    def ready(self, current: Thread) -> None:
        current["wait"] = None
        self.queue.append(current["id"])

    def run(self) -> Decision:
        """Runs every ready thread to its next wait."""
        while self.queue and self.outcome is None:
            if self.spent():
                break
            current = self.data["threads"][self.queue.popleft()]
            if not self._run_thread(current):
                self.queue.appendleft(current["id"])
        return self._decision()

    def _run_thread(self, current: Thread) -> bool:
        """Runs one thread on; False if the slice is spent before it has to wait. When it begins, it is not."""
        frames, blocks, seen = current["frames"], self.program.blocks, self.data["seen"]
        fresh = True
        if (again := current.pop("again", None)) is not None:
            if self.execute(current, Again(**again)):
                return True
            fresh = False
        while frames:
            if not fresh and self.spent():
                return False
            fresh = False
            self.steps += 1
            frame = frames[-1]
            block, index = blocks[frame["block"]], frame["next"]
            if index >= len(block):
                self._leave(current, frame)
                if self.outcome is not None or current["id"] not in self.data["threads"]:
                    return True
                continue
            op = block[index]
            frame["next"] = index + 1
            seen[op.path] = seen.get(op.path, 0) + 1
            if self.execute(current, op):
                return True
        self._finish(current)
        return True

    def execute(self, current: Thread, op: Op) -> bool:
        """Does one step; an expression that cannot be evaluated ends the run, for the definition
        is pinned and trying again would give the same."""
        try:
            return HANDLERS[type(op)](self, current, op)
        except ExpressionError as error:
            return self.broken(op.path, error)

    def broken(self, path: str, error: ExpressionError) -> bool:
        return self.end("failed", None, self.named(error.to_value(), path), path)

    def named(self, error: dict[str, Value], path: str) -> dict[str, Value]:
        """An error with its place: the path of the step, and its label where it has one."""
        error["where"] = path
        label = self.program.ops[path].named
        if label and self.ctx.machine >= NAMES_STEPS:
            error["details"] = {**(error.get("details") or {}), "step": label}
        return error

    @property
    def knows_pools(self) -> bool:
        """To version 1 `pool` was a field of the transport's own."""
        return self.ctx.machine >= NAMES_POOLS

    def spent(self) -> bool:
        return (
            self.steps >= SLICE_STEPS_MAX
            or len(self.intents) >= STEP_INTENTS_MAX
            or len(self.events) >= STEP_EVENTS_MAX - 8
            or self.bytes >= SLICE_BYTES_MAX
            or self.meter.stored >= SLICE_STORED_MAX
            or self.meter.turns >= SLICE_TURNS_MAX
        )

    def end(self, status: Status, result: Value, error: dict[str, Value] | None, path: str | None) -> bool:
        """The run ends here, from wherever it is, once what it registered is undone."""
        something = self.data.get("undo") or "undoing" in self.data
        if something and undo.takes_over(self, status, error, path):
            return True
        return self.close(status, result, error, path)

    def abandon(self) -> None:
        """Nobody waits for anything any more; other runs that were started go on."""
        self.intents = [intent for intent in self.intents if intent.kind == "start"]
        self.cancel = [intent.ref for intent in self.ctx.open.values()]
        self.data["threads"] = {}
        self.data.pop("ready", None)
        self.queue.clear()

    def begin(self, block: str, *, frame: dict[str, Value], **more: Value) -> None:
        """A thread of its own for a block."""
        id = str(self.next_id())
        begun = {**thread(id, block), **more}
        begun["frames"][0].update(frame)
        self.threads[id] = begun
        self.queue.append(id)

    def close(self, status: Status, result: Value, error: dict[str, Value] | None, path: str | None) -> bool:
        """The run is over; the kernel cancels what other branches wait for."""
        self.outcome = (status, result, error)
        self.intents = [intent for intent in self.intents if intent.kind == "start"]
        self.cancel = []
        self.data["threads"] = {}
        self.data["ended"] = {"status": status, "path": path}
        self.events.append({"type": "workflow.finished", "workflow": self.program.name, "status": status})
        return True

    def _finish(self, current: Thread) -> None:
        if current["id"] == MAIN:
            self.end("completed", None, None, None)
            return
        if "undo" in current:
            undo.finished(self)
            return
        parent = self.threads[current["parent"]]
        del self.threads[current["id"]]
        if current.get("paid", 0) > parent.get("paid", 0):
            parent["payload"], parent["paid"] = current["payload"], current["paid"]
        wait = parent["wait"]
        wait["open"] -= 1
        self.event("branch.done", wait["path"], branch=current["branch"])
        if wait["open"] == 0:
            self.event("fork.joined", wait["path"])
            self.ready(parent)

    def _decision(self) -> Decision:
        reference = UNSET if self.reference == self.ctx.reference else self.reference
        decision = Decision(state=self.data, events=self.events, intents=self.intents, reference=reference)
        if self.outcome is not None:
            decision.status, decision.result, decision.error = self.outcome
            return decision
        decision.cancel = self.cancel
        if (going := self.data.get("undoing")) is not None:
            decision.error = going["error"]
        if self.queue:
            self.data["ready"] = [*self.data.get("ready", []), *self.queue]
            decision.status, decision.more = "running", True
            return decision
        decision.status = "waiting"
        if self.may_stall and (stalled := self.stalled()):
            decision.status, decision.error = "stalled", stalled[0]["wait"]["error"]
        return decision

    def stalled(self) -> list[Thread]:
        """The threads that a person has to move on, the one that stalled first at the front."""
        found = [item for item in self.threads.values() if item["wait"] and item["wait"]["kind"] == "stalled"]
        return sorted(found, key=lambda item: (item["wait"]["seq"], int(item["id"])))

    # --- what handlers use ---

    def event(self, type: str, path: str, **more: Value) -> None:
        self.events.append({"type": type, "path": path, **more})

    def scope(self, current: Thread) -> RunScope:
        """What the expressions of one step may read; each step has its own turns to take."""
        scope = self._scope
        if scope is None or scope.thread is not current:
            scope = self._scope = RunScope(
                self.program, self.data, self.ctx, current, self.reference, self.meter
            )
        else:
            scope.reference, scope.left = self.reference, TURNS_MAX
        return scope

    def push(self, current: Thread, block: str, **more: Value) -> None:
        current["frames"].append({"block": block, "next": 0, **more})

    def next_id(self) -> int:
        number: int = self.data["next_id"]
        self.data["next_id"] = number + 1
        return number

    def set_state(self, path: list[str], value: Value) -> None:
        """Writes `state.<path>`, making parents as needed and copying those that are there."""
        node = self.data["state"]
        if len(path) == 1:
            node[path[0]] = value
            return
        for depth, key in enumerate(path[:-1]):
            inner = node.get(key)
            if is_reference(inner):
                inner = addressed(inner, self.ctx.blob(inner))
            if inner is not None and not isinstance(inner, dict):
                place = ".".join(["state", *path[: depth + 1]])
                mistake(f"{place} is {type_name(inner)}; nothing can be set inside it")
            node[key] = dict(inner or {})
            node = node[key]
        node[path[-1]] = value

    # --- loops ---

    def _leave(self, current: Thread, frame: dict[str, Value]) -> None:
        """A block is done: another round of its loop, or back to the block around it."""
        if "loop" not in frame:
            current["frames"].pop()
            return
        op = self.program.ops[frame["loop"]]
        assert isinstance(op, Repeat)
        try:
            again = another_round(self, current, op, frame)
        except ExpressionError as error:
            self.broken(op.path, error)
            return
        if again and op.most is not None and frame["round"] + 1 >= op.most:
            too_many(self, op)
        elif again:
            frame["round"] += 1
            frame["next"] = 0
        else:
            current["frames"].pop()


def another_round(turn: Turn, current: Thread, op: Repeat, frame: dict[str, Value]) -> bool:
    if op.test is None:
        return bool(frame["round"] + 1 < frame["count"])
    wanted = op.test(turn.scope(current))
    return wanted if op.kind == "while" else not wanted


def too_many(turn: Turn, op: Repeat) -> bool:
    error = TreadleError(
        f"repeat did not end within its {op.most} rounds", cls="user", code="REPEAT_MAX", where=op.path
    )
    return turn.end("failed", None, turn.named(error.to_value(), op.path), op.path)


# --- operations that do not wait ------------------------------------------------------------------


def _assign(turn: Turn, current: Thread, op: Assign) -> bool:
    scope = turn.scope(current)
    values = [(path, value(scope)) for path, value in op.targets]
    for path, value in values:
        turn.set_state(path, value)
    return False


def _refer(turn: Turn, current: Thread, op: Refer) -> bool:
    scope = turn.scope(current)
    value = scope.at_hand(op.value(scope))
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        mistake(f"a business reference is text or a number, not {type_name(value)}")
    if value is not None and len(value) > REFERENCE_CHARS_MAX:
        mistake(f"a business reference has at most {REFERENCE_CHARS_MAX} characters", "EXPRESSION_RANGE")
    turn.reference = value
    turn.event("reference.set", op.path, reference=value)
    return False


def _choose(turn: Turn, current: Thread, op: Choice) -> bool:
    taken = "then" if op.test(turn.scope(current)) else "else"
    turn.event("branch.taken", op.path, branch=taken)
    turn.push(current, op.then if taken == "then" else op.otherwise)
    return False


def _compensate(turn: Turn, current: Thread, op: Compensate) -> bool:
    undo.register(turn, current, op, op.block, {})
    return False


def _repeat(turn: Turn, current: Thread, op: Repeat) -> bool:
    scope = turn.scope(current)
    if op.source is None:
        assert op.test is not None
        if op.kind == "until" or op.test(scope):
            turn.push(current, op.body, loop=op.path, round=0)
        return False
    items = op.source(scope)
    at_hand = scope.at_hand(items)
    if at_hand is None:
        at_hand = items = []
    if not isinstance(at_hand, list):
        mistake(f"each goes through a list, not {type_name(at_hand)}")
    if at_hand:
        turn.push(current, op.body, loop=op.path, name=op.name, round=0, count=len(at_hand), items=items)
    return False


def _fork(turn: Turn, current: Thread, op: Fork) -> bool:
    inherited = {"parent": current["id"], "payload": current["payload"], "paid": current.get("paid", 0)}
    current["wait"] = {"kind": "join", "path": op.path, "open": len(op.branches)}
    turn.event("fork.started", op.path, branches=[name for name, _ in op.branches])
    for name, block in op.branches:
        branch_id = str(turn.next_id())
        turn.threads[branch_id] = {**thread(branch_id, block), "branch": name, **inherited}
        turn.queue.append(branch_id)
    return True


def _complete(turn: Turn, current: Thread, op: Complete) -> bool:
    return turn.end("completed", op.result(turn.scope(current)), None, op.path)


def shortened(message: str) -> str:
    """The message of an error. It stands in several places of a record, and in its parent's."""
    if len(message) <= MESSAGE_CHARS_MAX:
        return message
    return f"{message[:MESSAGE_CHARS_MAX]}… ({len(message)} characters)"


def _fail(turn: Turn, current: Thread, op: Fail) -> bool:
    scope = turn.scope(current)
    message = string(unfolded(scope.at_hand(op.message(scope)), scope.at_hand))
    code = scope.at_hand(op.code(scope)) if op.code else None
    details = op.details(scope) if op.details else None
    error = TreadleError(
        shortened(message) or "failed",
        cls="user",
        code=code[:CODE_CHARS_MAX] if isinstance(code, str) and code else "FAILED",
        where=op.path,
        details=details if isinstance(details, dict) else {} if details is None else {"value": details},
    )
    return turn.end("failed", None, turn.named(error.to_value(), op.path), op.path)


HANDLERS.update({
    Assign: _assign,
    Refer: _refer,
    Choice: _choose,
    Repeat: _repeat,
    Fork: _fork,
    Complete: _complete,
    Fail: _fail,
    Compensate: _compensate,
})  # fmt: skip
