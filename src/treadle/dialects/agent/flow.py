"""One step of a run in the making: its state, and what the step will emit and open.

The state is described in `states`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from treadle.kernel.brief import brief
from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import INT_MAX
from treadle.kernel.model import Context, Decision, Intent, Status, is_reference
from treadle.kernel.values import Value

from .context import entry, evals_of
from .limits import STEP_BYTES_MAX, STEP_EVENTS_MAX, STEP_INTENTS_MAX, WARNINGS_MAX
from .model import Budget, Node, Workflow
from .states import AgentState, Branch, Item, Ready, UsageState, VisitState

USD_MAX: Final = sys.float_info.max
# Intents that are work of one node; their `params` name it.
OF_A_NODE: Final = ("model", "call", "ask")


class Flow(msgspec.Struct):
    workflow: Workflow
    state: AgentState
    ctx: Context
    events: list[dict[str, Value]] = []
    intents: list[Intent] = []
    cancel: list[str] = []
    # What goes on in this step, or in the next one.
    ready: list[Ready] = []
    # Set when the run ends: the error that ends it, or an empty mapping.
    ending: dict[str, Value] | None = None
    decision: Decision | None = None
    bytes: int = 0
    # Whose intents are open; looked at once a step, for there may be a thousand.
    taken: set[str] | None = None

    def emit(self, type: str, **payload: Value) -> None:
        self.events.append({"type": type, **payload})

    def open(
        self,
        kind: str,
        ref: str,
        params: dict[str, Value],
        *,
        due_ns: int | None = None,
        key: str | None = None,
    ) -> None:
        # Whatever is done for a node is done by the workers that it names.
        pool = self.workflow.nodes[params["node"]].pool if kind in OF_A_NODE else ""
        self.add(Intent(kind=kind, params=params, ref=ref, due_ns=due_ns, idempotency_key=key, pool=pool))

    def add(self, intent: Intent) -> None:
        if self.taken is None:
            opened = self.ctx.open
            self.taken = {other.ref for other in opened.values()} if opened else set()
        assert intent.ref not in self.taken, "a branch has at most one open intent"
        self.taken.add(intent.ref)
        self.intents.append(intent)

    def load(self, value: Value) -> Value:
        """The value itself, wherever a payload may have been moved to the blob store."""
        return (
            self.ctx.blob(value)
            if type(value) is dict and "store" in value and is_reference(value)
            else value
        )

    @property
    def is_old(self) -> bool:
        """Whether the run was begun by 0.1.0, and is decided as it was decided then."""
        return self.ctx.machine < 3

    @property
    def full(self) -> bool:
        """Whether this step has grown enough; what is left goes into the next one."""
        return (
            len(self.events) >= STEP_EVENTS_MAX
            or len(self.intents) >= STEP_INTENTS_MAX
            or self.bytes > STEP_BYTES_MAX
        )

    def node(self, branch: Branch) -> Node:
        visit = branch["visit"]
        assert visit is not None, "the branch is between two nodes"
        return self.workflow.nodes[visit["node"]]

    def warn(self, node: str, messages: Sequence[str]) -> None:
        """Warnings of one place, however many: the first of them, and how many there are."""
        for message in messages[:WARNINGS_MAX]:
            self.emit("node:warning", node=node, message=message)
        if len(messages) > WARNINGS_MAX:
            self.emit("node:warning", node=node, message=f"and {len(messages) - WARNINGS_MAX} more")

    def content(self, path: str) -> str:
        """The text of a Source, by its field path."""
        source = self.load(self.state["sources"]).get(path)
        return str(source["content"]) if source else ""

    def seen(self, branch: Branch, name: str) -> Value:
        """What a path in the workflow may start from: the input, the approval, a node's data."""
        if name == "approval":
            visit = branch["visit"]
            return self.load(visit.get("approval")) if visit is not None else None
        return self.load(self.state["input"]) if name == "input" else self.lookup(branch, name)

    def lookup(self, branch: Branch, node: str) -> Value:
        """What this branch sees of a node: its own, or what was there when it was forked."""
        here: Branch | None = branch
        while here is not None:
            if (item := here["data"].get(node)) is not None:
                return entry(self.load(item[1]), evals_of(item))
            group = here["parent"]
            here = self.state["branches"][self.state["groups"][group]["parent"]] if group else None
        return None

    def over_budget(self, visit: VisitState) -> tuple[str | None, bool]:
        """Why nothing more may be asked for this visit, or None; and whether that ends the run: the
        workflow's cap does, the node's own fails that node only."""
        node = self.workflow.nodes[visit["node"]]
        if self.workflow.budget is None and node.budget is None and not self.state.get("budget"):
            return None, False
        over = exceeded(self._raised(None) or self.workflow.budget, self.state["usage"])
        if over is not None:
            return over, True
        return exceeded(self._raised(node.id) or node.budget, visit["usage"]), False

    def _raised(self, node: str | None) -> Budget | None:
        """What a person set instead of the workflow's or a node's budget, when they sent the run on."""
        if not (raised := self.state.get("budget")):
            return None
        found = raised if node is None else (raised.get("nodes") or {}).get(node) or {}
        caps = Budget(found.get("usd"), found.get("tokens"))
        return None if caps == Budget() else caps

    def charge(self, branch: Branch | None, usage: Value) -> None:
        """Counts what an answer cost, for the run and for the visit that asked."""
        if not isinstance(usage, dict) or not any(usage.values()):
            return
        add_usage(self.state["usage"], usage)
        if branch is not None and branch["visit"] is not None:
            add_usage(visit_of(branch)["usage"], usage)
            add_usage(visit_of(branch)["spent"], usage)

    def finish(self, error: dict[str, Value] | None = None) -> None:
        """The run ends after this step, whatever else is open."""
        self.ending = error or {}
        self.ready.clear()

    def failure(self) -> dict[str, Value] | None:
        """A run has failed if a node's final result is failed; the first such node is named."""
        results = self.state["results"]
        for step in self.state["steps"]:
            result = results[step["node"]]
            if result["status"] == "failed":
                data = self.load(result["data"])
                said = data.get("error") if isinstance(data, dict) else None
                message = f"{step['node']} failed: {said}" if said else f"{step['node']} failed"
                error = TreadleError(message, cls="user", code="NODE_FAILED", where=step["node"])
                return brief(error.to_value())
        return None

    def close(self, error: dict[str, Value] | None, results: Value, result: Value) -> None:
        """The run ends with this step."""
        self.intents.clear()
        self.emit("workflow:end", results=results)
        status: Status = "failed" if error else "completed"
        self.state["ended"] = status
        self.decision = Decision(
            state=self.state, events=self.events, status=status, result=result, error=error
        )


def no_usage() -> UsageState:
    return {"input_tokens": 0, "output_tokens": 0, "usd": 0.0}


def add_usage(total: UsageState, usage: Mapping[str, Value]) -> None:
    """Adds up, and stays a number that a state can hold: what a child has cost is what its result says."""
    for name in ("input_tokens", "output_tokens"):
        amount = usage.get(name)
        if isinstance(amount, int) and amount > 0:
            total[name] = min(total[name] + amount, INT_MAX)
    usd = usage.get("usd")
    if isinstance(usd, int | float) and usd > 0:
        # Rounded, so that a sum of prices prints as a price.
        total["usd"] = min(round(total["usd"] + float(usd), 10), USD_MAX)


def exceeded(budget: Budget | None, usage: UsageState) -> str | None:
    """Why nothing more may be asked, or None."""
    if budget is None:
        return None
    tokens = usage["input_tokens"] + usage["output_tokens"]
    if budget.tokens is not None and tokens >= budget.tokens:
        return f"budget exceeded: {tokens} of {budget.tokens} tokens"
    if budget.usd is not None and usage["usd"] >= budget.usd:
        return f"budget exceeded: {_price(usage['usd'])} of {_price(budget.usd)} usd"
    return None


def _price(usd: float) -> str:
    """As people write prices: never 1e-05."""
    text = f"{usd:g}"
    return text if "e" not in text else f"{usd:.10f}".rstrip("0").rstrip(".")


def visit_of(branch: Branch) -> VisitState:
    """The visit that a branch is in."""
    visit = branch["visit"]
    assert visit is not None, "the branch is between two nodes"
    return visit


def new_branch(id: str, parent: str, base: list[Item]) -> Branch:
    return {"id": id, "parent": parent, "base": base, "own": [], "data": {}, "visit": None, "paused": None}


def new_visit(node: str, iteration: int) -> VisitState:
    return {
        "node": node,
        "iteration": iteration,
        "attempt": 0,
        "turn": 0,
        "tries": 0,
        "stage": "turn",
        "usage": {"input_tokens": 0, "output_tokens": 0, "usd": 0.0},
        "spent": {"input_tokens": 0, "output_tokens": 0, "usd": 0.0},
        "calls": [],
        "evals": [],
        "bytes": 0,
    }


def new_item(node: str, result: Mapping[str, Value]) -> Item:
    """What is kept of a visit's result for later nodes (`context`)."""
    evals = result.get("evals")
    return [node, result["data"], evals] if evals else [node, result["data"]]


def new_state(input: Value) -> AgentState:
    return {
        "input": input,
        "dry": False,
        "setup": None,
        "sources": {},
        "long": {},
        "skills": {},
        "warnings": {},
        "results": {},
        "steps": [],
        "edges": [],
        "usage": no_usage(),
        "bytes": 0,
        "counts": {},
        "iterations": {},
        "visits": 0,
        "runs": {},
        "routes": {},
        "asks": 0,
        "node_asks": {},
        "missing": {},
        "branches": {"0": new_branch("0", "", [])},
        "groups": {},
        "forks": 0,
        "ended": None,
        "halted": False,
        "retries": 0,
        "texts": None,
        "resume": [],
        "seal": None,
    }
