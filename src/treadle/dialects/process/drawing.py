"""A definition, or a run of it, as a graph: where it is, what it waits for, where it has been."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.kernel.values import Value
from treadle.lang.expressions.syntax import unparse
from treadle.lang.graph import Edge, Graph, Node, NodeShape, NodeStatus

from .program import Ask, Await, Call, Choice, Compensate, Fork, Op, Program, Repeat, Start

_SHAPES: dict[str, NodeShape] = {
    "task": "task",
    "if": "choice",
    "each": "choice",
    "while": "choice",
    "until": "choice",
    "fork": "choice",
    "wait": "timer",
    "await": "signal",
    "child": "child",
    "continue_with": "child",
    "complete": "end",
    "fail": "end",
}
_END = "end"


@dataclass(slots=True)
class _Run:
    """What a run adds to the picture."""

    seen: dict[str, int] = field(default_factory=dict)
    waits: dict[str, dict[str, Value]] = field(default_factory=dict)
    ended: dict[str, Value] | None = None


def draw(program: Program, view: dict[str, Value] | None = None) -> Graph:
    run = _Run()
    if view is not None:
        engine = view.get("engine", {})
        waits = {place["path"]: place for place in engine["places"]}
        run = _Run(engine["visited"], waits, engine["ended"])
    version = f" {program.version}" if program.version else ""
    artist = _Artist(program, run, Graph(f"{program.name}{version}"))
    artist.node(Node("start", "start", "start", "done" if run.seen else "idle"))
    tails = artist.block("steps", [("start", "")])
    ended = run.ended is not None and run.ended["path"] is None
    artist.node(Node(_END, "end", "end", "done" if ended else "idle"))
    artist.join(tails, _END)
    return artist.graph


# The ends of a stretch of steps, each with the label of the edge that leaves it.
Tails = list[tuple[str, str]]


class _Artist:
    def __init__(self, program: Program, run: _Run, graph: Graph) -> None:
        self.program = program
        self.run = run
        self.graph = graph
        self.drawn: dict[str, None] = {}

    def node(self, node: Node) -> None:
        self.graph.nodes.append(node)

    def join(self, tails: Tails, target: str, *, dashed: bool = False) -> None:
        taken = self.run.seen.get(target, 0)
        for source, label in tails:
            self.graph.edges.append(Edge(source, target, label, dashed, taken if len(tails) == 1 else 0))

    def block(self, path: str, tails: Tails, *, dashed: bool = False) -> Tails:
        for op in self.program.blocks[path]:
            self.join(tails, op.path, dashed=dashed)
            dashed = False
            self.node(
                Node(op.path, self.label(op), _SHAPES.get(op.kind, "step"), self.status(op), self.badge(op))
            )
            tails = self.after(op)
        return tails

    def after(self, op: Op) -> Tails:
        """Draws what hangs below a step; gives the ends that lead to the next one."""
        here: Tails = [(op.path, "")]
        match op:
            case Choice():
                then = self.block(op.then, [(op.path, "then")])
                return then + self.block(op.otherwise, [(op.path, "else")])
            case Repeat():
                self.join(self.block(op.body, [(op.path, "repeat")]), op.path)
                return [(op.path, "done")]
            case Fork():
                return [tail for name, block in op.branches for tail in self.block(block, [(op.path, name)])]
            case Ask():
                return here + self.timeout_of(op)
            case Compensate():
                self.undo(op, op.block)
            case Call() | Await() | Start():
                if not isinstance(op, Await) and op.undo is not None:
                    self.undo(op, op.undo)
                success = op.handlers.get("on_success")
                tails = self.block(success, here) if success else here
                for handler in ("on_failure", "on_timeout"):
                    if handler in op.handlers:
                        tails = tails + self.block(
                            op.handlers[handler], [(op.path, handler[3:])], dashed=True
                        )
                return tails
            case _ if op.kind in ("complete", "fail"):
                return []
        return here

    def undo(self, op: Op, block: str) -> None:
        """What would take the step back. It leads nowhere: the run ends when all of it is undone."""
        self.block(block, [(op.path, "undo")], dashed=True)

    def timeout_of(self, op: Ask) -> Tails:
        block = op.task.on_timeout
        if block is None:
            return []
        if block in self.drawn:
            first = self.program.blocks[block]
            self.join([(op.path, "timeout")], first[0].path if first else _END, dashed=True)
            return []
        self.drawn[block] = None
        return self.block(block, [(op.path, "timeout")], dashed=True)

    def label(self, op: Op) -> str:
        step = self.program.sources[op.path]
        if isinstance(op, Choice):
            return "if " + _shown(step["if"])
        if isinstance(op, Repeat):
            value = step["repeat"]
            return (
                f"each {op.name} in {_shown(value['in'])}"
                if op.kind == "each"
                else f"{op.kind} {_shown(value[op.kind])}"
            )
        if isinstance(op, Call) and op.label == op.transport:
            return _callee(step["call"])
        return op.label

    def status(self, op: Op) -> NodeStatus:
        if wait := self.run.waits.get(op.path):
            return (
                "stalled"
                if wait["kind"] == "stalled"
                else "running"
                if wait["kind"] in ("call", "retry")
                else "waiting"
            )
        if self.run.ended is not None and self.run.ended["path"] == op.path:
            return "failed" if self.run.ended["status"] == "failed" else "done"
        if op.path in self.run.seen:
            return "failed" if self.handled(op) else "done"
        return "skipped" if self.run.ended is not None else "idle"

    def handled(self, op: Op) -> bool:
        """Whether it failed, last time, and a branch took care of that."""
        handlers = op.handlers if isinstance(op, Call | Await | Start) else {}
        blocks = [handlers[key] for key in ("on_failure", "on_timeout") if key in handlers]
        return any(step.path in self.run.seen for block in blocks for step in self.program.blocks[block][:1])

    def badge(self, op: Op) -> str:
        if wait := self.run.waits.get(op.path):
            return f"due {_short(wait['due'])}" if wait.get("due") else wait["kind"]
        if op.path in self.run.seen and self.handled(op):
            return "handled"
        count = self.run.seen.get(op.path, 0)
        return f"{count}×" if count > 1 else ""


def _short(due: str) -> str:
    """An instant to the minute: `11-15 14:30 UTC`."""
    return f"{due[5:10]} {due[11:16]} UTC"


def _callee(call: dict[str, Value]) -> str:
    """What a call without a name of its own calls: its function, address or subject, else its transport."""
    for key in ("callable", "url", "subject"):
        if isinstance(call.get(key), str):
            text: str = call[key].partition("://")[2] or call[key]
            return text if len(text) <= 40 else text[:39] + "…"
    transport: str = call["transport"]
    return transport


def _shown(template: Value) -> str:
    if isinstance(template, dict) and "$" in template:
        text = unparse(template["$"])
        return text if len(text) <= 60 else text[:57] + "…"
    return str(template)
