"""The smallest dialect that does everything a run can do, for tests and benchmarks of the engine.

The input says what a run does, in order: `{"do": [["work", 3], "timer", "signal:go"]}` performs three
pieces of work, waits an hour, waits for the signal `go`, and completes with what it saw (`keep: false`
sees nothing, so that a long run's state stays small). It shows how little a dialect is; it has no text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import Unsupported
from treadle.kernel.machine import Machine
from treadle.kernel.model import Context, Decision, Event, Intent, Receipt, Started
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect
from treadle.lang.problems import Problems
from treadle.lang.text import Document
from treadle.work.job import Done, Job

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.lang.graph import Graph

HOUR_NS = 3_600 * 10**9


class ToyMachine(Machine):
    dialect = "toy"

    def load(self, body: Value) -> Any:
        return body

    def start(self, definition: Any, event: Started, ctx: Context) -> Decision:
        todo = [[item, 1] if isinstance(item, str) else list(item) for item in event.input["do"]]
        return self._next({"todo": todo, "seen": [], "keep": event.input.get("keep", True)}, ctx)

    def step(self, definition: Any, state: Value, event: Event, ctx: Context) -> Decision:
        if not isinstance(event, Receipt):
            raise Unsupported(f"a toy takes no {event.kind}")
        if state["keep"]:
            state["seen"].append(ctx.now_ns if event.value is None else event.value)
        return self._next(state, ctx)

    def _next(self, state: Any, ctx: Context) -> Decision:
        if not state["todo"]:
            return Decision(
                state=state, status="completed", result=state["seen"], events=[{"type": "toy.done"}]
            )
        item = state["todo"][0]
        word: str = item[0]
        item[1] -= 1
        if item[1] == 0:
            state["todo"].pop(0)
        kind, _, name = word.partition(":")
        due_ns = ctx.now_ns + HOUR_NS if kind == "timer" else None
        intent = Intent(kind=kind, params={"name": name or kind}, ref="x", due_ns=due_ns)
        return Decision(
            state=state,
            status="running" if kind == "work" else "waiting",
            events=[{"type": "toy.asked", "kind": kind}],
            intents=[intent],
        )


class ToyDialect(Dialect):
    name = "toy"

    def __init__(self) -> None:
        self.machine: Machine = ToyMachine()

    def recognises(self, value: Value) -> bool:
        return False

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        raise Unsupported("a toy is made in Python: deploy treadle.testing.toy.TOY")

    def check_input(self, definition: Any, input: Value, options: dict[str, Any]) -> Value:
        return input

    def graph(self, definition: Any, view: dict[str, Any] | None = None) -> Graph:
        from treadle.lang.graph import Graph

        return Graph("toy")


TOY = Definition("toy", "toy", "1", {"toy": 1})


async def _perform(job: Job) -> Done:
    return Done(value="worked")


def install(engine: Engine) -> None:
    """Teaches an engine the toy dialect, and how to do its work."""
    engine.dialects["toy"] = ToyDialect()
    engine.worker.register("work", _perform)
