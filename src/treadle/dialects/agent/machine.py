"""The machine of the agent dialect: each event to the module that knows it, then what follows.

A step handles one receipt and everything it sets in motion up to the next intents. When that is a
lot (a long chain of skipped nodes, a very large result) the rest follows in the next record.
"""

from __future__ import annotations

from typing import ClassVar

from treadle.kernel.errors import TreadleError, Unsupported
from treadle.kernel.machine import Machine, Traits
from treadle.kernel.model import Cancel, Context, Continue, Decision, Event, Patch, Receipt, Retry, Started
from treadle.kernel.values import Value

from . import judging, leaving, returned, sealing, visiting
from .flow import Flow, new_item, new_state, visit_of
from .limits import RESULT_INLINE_BYTES_MAX, TRACE_STEP_BYTES
from .model import Workflow, load
from .raised_budgets import patch_budget, raise_budget
from .sources import texts_of
from .states import AgentState, Branch

KINDS = frozenset({"source", "model", "call", "route", "ask"})


class AgentMachine(Machine):
    dialect: ClassVar[str] = "agent"
    # 2: stops leave every node, budgets and limits are checked elsewhere (before 0.1.0 was published).
    # 3: warnings about output name the fields and pass over skipped nodes; another end of the preamble.
    version: ClassVar[int] = 3
    oldest: ClassVar[int] = 2
    # `workflow:end` is the last event an observer sees.
    traits: ClassVar[Traits] = Traits(
        large_input=True, large_data=True, last_event_closes=True, payload_hint="agent"
    )

    def load(self, body: Value) -> Workflow:
        return load(body)

    def kinds(self, definition: Workflow) -> frozenset[str]:
        return KINDS

    def start(self, definition: Workflow, event: Started, ctx: Context) -> Decision:
        flow = Flow(definition, new_state(event.input), ctx)
        input = flow.load(event.input)
        flow.state["dry"] = isinstance(input, dict) and input.get("dryRun") is True
        flow.emit("workflow:start", workflow=definition.id)
        flow.open("source", "setup", {"name": "sources", "op": "setup", "input": event.input})
        return _decided(flow)

    def step(self, definition: Workflow, state: AgentState, event: Event, ctx: Context) -> Decision:
        flow = Flow(definition, state, ctx)
        match event:
            case Receipt():
                _settled(flow, event)
            case Continue(more=more):
                flow.ending = more.get("ending")
                # A copy: the event is journaled after the step, and must stay what it was.
                flow.ready = list(more.get("ready") or ())
            case Retry():
                _retry(flow, event)
            case Patch():
                patch_budget(flow, event)
            case _:
                raise Unsupported(f"an agent workflow takes no {event.kind}")
        return _decided(flow)

    def cancel(self, definition: Workflow, state: AgentState, event: Cancel, ctx: Context) -> Decision:
        flow = Flow(definition, state, ctx)
        leaving.stop_run(flow, event.reason or "cancelled", None)
        decision = super().cancel(definition, state, event, ctx)
        # A cancel cannot wait until a long result is sealed; `show` has all of it either way.
        results = state["results"] if _fits(state) else {}
        flow.emit("workflow:end", results=results)
        decision.events = flow.events
        if _fits(state):
            decision.result = {"results": results, "trace": _trace(state)}
        return decision

    def compatible(self, definition: Workflow, state: AgentState) -> str | None:
        if state["texts"] is not None and state["texts"] != texts_of(definition):
            return (
                "its instructions, rules or context are others than those that the run resolved before its "
                "first node; fork at record 1"
            )
        groups = state["groups"].values()
        nodes = [visit_of(branch)["node"] for branch in _active(state)]
        nodes += [group["join"] for group in groups if group["join"] is not None]
        if missing := sorted(set(nodes) - definition.nodes.keys()):
            return f"the run is at {', '.join(missing)}, which this definition does not have"
        if any(visit_of(branch)["stage"] == "route" for branch in _active(state)) or state["resume"]:
            return "the run is between two nodes; fork at another record"
        return None

    def view(self, definition: Workflow, state: AgentState) -> dict[str, Value]:
        return {
            "state": {"results": state["results"], "trace": _trace(state)},
            "stats": {"usage": state["usage"], "steps": len(state["steps"]), "retries": state["retries"]},
            "nodes": {visit_of(branch)["node"]: visit_of(branch)["stage"] for branch in _active(state)},
        }


def _active(state: AgentState) -> list[Branch]:
    return [branch for _, branch in sorted(state["branches"].items()) if branch["visit"] is not None]


def _decided(flow: Flow) -> Decision:
    """Lets every branch that can go on do so, then closes the step."""
    while flow.ready and flow.ending is None and not flow.full:
        id, how, what = flow.ready.pop(0)
        branch = flow.state["branches"][id]
        match how:
            case "begin":
                visiting.begin(flow, branch)
            case _ if flow.state["halted"]:
                leaving.end_branch(flow, branch)
            case "enter":
                visiting.enter(flow, branch, what)
            case "follow":
                leaving.set_out(flow, branch, what)
            case "route":
                leaving.route_again(flow, branch, what)
            case "settle":
                visiting.settle_by_hand(flow, branch, *what)
            case _:
                assert how == "visit", how
                visiting.take_up(flow, branch)
    more: dict[str, Value] | None = None
    if flow.ending is not None:
        if flow.full:
            more = {"ending": flow.ending}
        else:
            _end(flow, flow.ending or None)
    elif flow.ready:
        more = {"ready": flow.ready}
    if flow.decision is not None:
        return flow.decision
    return Decision(state=flow.state, events=flow.events, intents=flow.intents, cancel=flow.cancel, more=more)


def _end(flow: Flow, error: dict[str, Value] | None) -> None:
    """Ends the run now, or begins to seal what is too large for one record."""
    state = flow.state
    error = error or flow.failure()
    if not state["resume"]:
        _at_rest(state)
    if _fits(state):
        flow.close(error, state["results"], {"results": state["results"], "trace": _trace(state)})
    else:
        sealing.begin(flow, error)


def _at_rest(state: AgentState) -> Branch:
    """The first branch stays, in case a person sends the run on."""
    root: Branch = state["branches"]["0"]
    root["visit"] = root["paused"] = None
    state["branches"], state["groups"] = {"0": root}, {}
    return root


def _fits(state: AgentState) -> bool:
    """Whether results and trace are small enough to stand in one record."""
    size: int = state["bytes"] + TRACE_STEP_BYTES * len(state["steps"])
    return size <= RESULT_INLINE_BYTES_MAX


def _trace(state: AgentState) -> dict[str, Value]:
    """What people read of a run's way."""
    return {
        "steps": state["steps"],
        "edges": state["edges"],
        "sources": state["sources"],
        "usage": state["usage"],
    }


def _settled(flow: Flow, receipt: Receipt) -> None:
    intent = flow.ctx.intent
    assert intent is not None, "a receipt is always for an intent"
    if intent.ref == "setup":
        _set_up(flow, receipt)
        return
    if intent.ref == "seal":
        sealing.on_sealed(flow, receipt)
        return
    branch = flow.state["branches"][intent.ref]
    if intent.kind == "model":
        visiting.on_turn(flow, branch, receipt)
        return
    match intent.kind, visit_of(branch)["stage"]:
        case "timer", stage:
            _after_pause(flow, branch, stage)
        case "call", "function":
            returned.on_function(flow, branch, receipt)
        case "call", _:
            visiting.on_call(flow, branch, receipt)
        case "child", _:
            returned.on_child(flow, branch, receipt)
        case "route", _:
            leaving.on_route(flow, branch, receipt)
        case "source", _:
            leaving.on_merged(flow, branch, receipt)
        case "ask", "judge":
            judging.on_judged(flow, branch, receipt)
        case "ask", _:
            judging.on_reflected(flow, branch, receipt)
        case "task", "approve":
            visiting.on_approval(flow, branch, receipt)
        case "task", "in_doubt":
            answer = flow.load(receipt.value)
            visiting.decide(flow, branch, answer.get("decision") if isinstance(answer, dict) else None)
        case kind, stage:
            raise AssertionError(f"a receipt of {kind} at the stage {stage}")


def _after_pause(flow: Flow, branch: Branch, stage: str) -> None:
    match stage:
        case "turn":
            visiting.turn(flow, branch)
        case "pause":
            visiting.begin(flow, branch)
        case "route":
            leaving.route_again(flow, branch, visit_of(branch)["node"])
        case _:
            judging.ask_again(flow, branch)


def _set_up(flow: Flow, receipt: Receipt) -> None:
    """Step 0 is done: what was found is the run's for good, or the run ends over it."""
    value = flow.load(receipt.value)
    if receipt.status != "ok" or not isinstance(value, dict):
        error = receipt.error or TreadleError("the Sources could not be resolved").to_value()
        flow.finish(error)
        return
    flow.state["setup"], flow.state["texts"] = value["setup"], texts_of(flow.workflow)
    flow.state["sources"] = value["sources"]
    flow.state["skills"] = value["skills"]
    flow.state["long"] = value.get("long") or {}
    flow.state["warnings"] = value.get("warnings") or {}
    if value.get("absent"):
        flow.state["absent"] = value["absent"]
    flow.emit("sources:resolved", sources=value["sources"])
    flow.ready.append(["0", "enter", flow.workflow.entry])


def _retry(flow: Flow, event: Retry) -> None:
    """A person sends a failed run on: from the node they name; else from where it was stopped, on
    every branch; else from the first node that failed. `skip` and `fail` give that node its result
    instead of running it. A run whose Sources could not be resolved tries them again."""
    state, how = flow.state, event.how
    if flow.ctx.status != "failed":
        raise Unsupported("only a failed run can be retried")
    if "budget" in how:
        raise_budget(flow, how["budget"])
    if unknown := sorted(set(how) - {"from", "skip", "fail", "budget"}):
        raise Unsupported(
            f"an agent run cannot be retried with {', '.join(unknown)}: its input stays as it is"
        )
    if state["setup"] is None:
        state["ended"] = None
        flow.open("source", "setup", {"name": "sources", "op": "setup", "input": state["input"]})
        return
    # A step that raised left its branches where they were.
    stopped = state["resume"] or [at for branch in _active(state) for at in leaving.interrupted(flow, branch)]
    if how.get("from") is None and stopped:
        for branch in _active(state):
            branch["visit"] = None
        first, *others = stopped
    else:
        failed = (step["node"] for step in state["steps"] if _failed(state, step["node"]))
        node = how.get("from") or next(failed, flow.workflow.entry)
        if node not in flow.workflow.nodes:
            raise Unsupported(f"there is no node {node!r} to retry from")
        _gather(flow)
        first, others = ["0", "enter", node], []
    flow.ready += [_by_hand(flow, first, how, event.by), *others]
    state["ended"], state["seal"], state["visits"], state["resume"] = None, None, 0, []


def _by_hand(flow: Flow, at: list[Value], how: dict[str, Value], by: str | None) -> list[Value]:
    """Where a retry goes on, with the result that a person gives the node, if they do."""
    if not how.keys() & {"skip", "fail"}:
        return at
    branch, stage, node = at
    if stage not in ("enter", "visit"):
        raise Unsupported("the run stopped between two nodes: there is no node to skip or to fail; retry it")
    who = f" by {by}" if by else ""
    if "fail" in how:
        return [branch, "settle", [node, "failed", {}, {"error": str(how["fail"] or f"failed{who}")}]]
    value = how["skip"]
    if not isinstance(flow.load(value), dict):
        value = {} if value is None else {"result": flow.load(value)}
    return [branch, "settle", [node, "skipped", value, {"skipped_reason": f"skipped{who}"}]]


def _failed(state: AgentState, node: str) -> bool:
    return bool(state["results"][node]["status"] == "failed")


def _gather(flow: Flow) -> None:
    """One branch is left, which has seen everything: also what ran on branches that never joined."""
    state = flow.state
    root = _at_rest(state)
    for id in dict.fromkeys(step["node"] for step in state["steps"]):
        item = new_item(id, state["results"][id])
        if root["data"].get(id) != item:
            root["data"][id] = item
            root["own"].append(item)
