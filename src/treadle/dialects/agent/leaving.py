"""Leaving a node: its result is recorded, then the run goes on along an edge, or ends.

Forks and joins live here too. A fork suspends its branch and opens a group of new ones; whoever
reaches the group's join, or ends, is counted off; the last one wakes the suspended branch, which
goes on at the join with everything its branches left, in edge order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from treadle.kernel.errors import ExpressionError, TreadleError
from treadle.kernel.model import Receipt, is_reference
from treadle.kernel.values import Value, encode

from .flow import Flow, new_branch, new_item, new_visit, no_usage, visit_of
from .limits import CUT_BYTES_MAX, CUT_EVENTS_MAX, MERGED_BYTES_MAX, WARNINGS_MAX
from .model import DEFAULT_PATH, ONLY_PATH, Edge
from .provider_errors import FATAL, backs_off, code_of, message_of
from .routing import NOWHERE, Ways, choices, chosen, is_decision, join_of, used_up, ways_on
from .states import Branch, VisitState

# One for all results, which nobody changes: a run keeps a result of each node for as long as it is in memory.
NO_CALLS: Final[list[Value]] = []
NOT_EMITTED: Final = "declared output not emitted"


def add_step(flow: Flow, visit: VisitState, status: str) -> None:
    """One line of the trace: one attempt at a node."""
    node = visit["node"]
    step = {"node": node, "status": status, "iteration": visit["iteration"], "usage": visit["spent"]}
    if flow.workflow.nodes[node].retry is not None:
        step["retryAttempt"] = visit["attempt"]
    flow.state["steps"].append(step)
    visit["spent"] = no_usage()


def leave(
    flow: Flow,
    branch: Branch,
    status: str,
    data: Value,
    *,
    extra: Mapping[str, Value] | None = None,
    stop: str | None = None,
    error: dict[str, Value] | None = None,
) -> None:
    """Records the visit's result and goes on. `extra` is put onto the data (an error, say). `stop`
    ends the run here, saying why; `error` is the run's own error then, if the node's is not enough."""
    state, visit = flow.state, visit_of(branch)
    node = visit["node"]
    if (
        node in flow.workflow.only
        and stop is None
        and not extra
        and not state["halted"]
        and (status != "failed" or not flow.workflow.halt_on_failure)
    ):
        # Most visits: nothing is to be found out before, and there is one way on, or the branch ends.
        _exit(flow, branch, visit, status, data)
        branch["visit"] = None
        if (only := flow.workflow.only[node]) is None:
            end_branch(flow, branch)
        else:
            follow(flow, branch, only, only.reason, only.reason)
        return
    dry = state["dry"] and is_decision(flow.workflow, node)
    over = None
    possible, unclear = NOWHERE, None
    if not dry and stop is None:
        possible, unclear = _possible(flow, branch, data, extra or {})
    if possible.ask:
        over, ends_run = flow.over_budget(visit)
        if over is not None:
            status, extra = _unpaid(flow, branch, status, data, extra or {}, over, ends_run)
            stop = "budget exceeded" if ends_run else None
    if extra and is_reference(data) and data["size"] > MERGED_BYTES_MAX:
        _merge(flow, branch, data, {"status": status, "extra": dict(extra), "stop": stop, "error": error})
        return
    _exit(flow, branch, visit, status, {**_object(flow.load(data)), **extra} if extra else data)
    if stop is None and status == "failed" and flow.workflow.halt_on_failure:
        stop = "node failed"
    if stop is not None:
        branch["visit"] = None
        flow.emit("workflow:halted", node=node, reason=stop)
        stop_run(flow, f"{stop} at {node}", error, at=[branch["id"], "enter", node])
    elif dry or state["halted"]:
        if dry:
            flow.emit("workflow:halted", node=node, reason="dry run")
        state["halted"] = True
        branch["visit"] = None
        end_branch(flow, branch)
    elif over is not None:
        branch["visit"] = None
        _go_unasked(flow, branch, possible.ask, "budget exceeded")
    elif unclear is not None:
        _condition_failed(flow, branch, unclear)
    else:
        _go_on(flow, branch, possible)


def _possible(
    flow: Flow, branch: Branch, data: Value, extra: Mapping[str, Value]
) -> tuple[Ways, ExpressionError | None]:
    """Where the run can go with this result, which is not recorded yet; or why that is not clear."""
    node = visit_of(branch)["node"]
    if node not in flow.workflow.tested:
        return ways_on(flow, branch, node), None
    try:
        return ways_on(flow, branch, node, {**_object(flow.load(data)), **extra}), None
    except ExpressionError as error:
        return NOWHERE, error


def _exit(flow: Flow, branch: Branch, visit: VisitState, status: str, data: Value) -> None:
    """The node is left with this result: everybody may see it."""
    node = visit["node"]
    result = {"status": status, "data": data, "toolCalls": visit["calls"] or NO_CALLS}
    if visit["evals"]:
        result["evals"] = visit["evals"]
    _record(flow, branch, node, result)
    add_step(flow, visit, status)
    flow.events.append({"type": "node:exit", "node": node, "result": result})


def _unpaid(
    flow: Flow,
    branch: Branch,
    status: str,
    data: Value,
    extra: Mapping[str, Value],
    over: str,
    ends_run: bool,
) -> tuple[str, Mapping[str, Value]]:
    """The question where to go cannot be paid for: that is this node's failure, unless it has failed
    (or failed softly) already and says why."""
    if status == "failed" or {**_object(flow.load(data)), **extra}.get("fail_soft") is True:
        return status, extra
    if flow.node(branch).fail_soft and not ends_run:
        return "success", {**extra, "error": over, "fail_soft": True}
    return "failed", {**extra, "error": over}


def _merge(flow: Flow, branch: Branch, data: Value, leaving: dict[str, Value]) -> None:
    """Large data is not at hand here: a performer puts the extra onto it, then the node is left."""
    visit = visit_of(branch)
    visit["stage"], visit["leaving"] = "merge", leaving
    params = {"name": visit["node"], "op": "merge", "onto": data, "extra": leaving["extra"]}
    flow.open("source", branch["id"], params)


def on_merged(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    leaving = visit_of(branch).pop("leaving")
    value = _object(flow.load(receipt.value))
    # Without a store the node still says what happened to it, if not what it had found.
    data = value.get("stored") if receipt.status == "ok" else leaving["extra"]
    leave(flow, branch, leaving["status"], data, stop=leaving["stop"], error=leaving["error"])


def _go_on(flow: Flow, branch: Branch, possible: Ways) -> None:
    if possible.ask:
        visit, routes = visit_of(branch), flow.state["routes"]
        visit["stage"], visit["asked"] = "route", [edge.index for edge in possible.ask]
        visit["tries"] = 0
        routes[visit["node"]] = routes.get(visit["node"], 0) + 1
        _warn_missing(flow)
        ask_route(flow, branch)
        return
    node, branch["visit"] = visit_of(branch)["node"], None
    if possible.follow is not None:
        reason = possible.follow.reason
        follow(flow, branch, possible.follow, reason, reason)
    elif possible.fork:
        _fork(flow, branch, possible.fork)
    else:
        if possible.tested:
            flow.emit("workflow:halted", node=node, reason="no condition applies")
        end_branch(flow, branch)


def _decide(flow: Flow, branch: Branch) -> None:
    """Where a node that has been left leads to, looked at again."""
    try:
        possible = ways_on(flow, branch, visit_of(branch)["node"])
    except ExpressionError as error:
        _condition_failed(flow, branch, error)
    else:
        _go_on(flow, branch, possible)


def _condition_failed(flow: Flow, branch: Branch, error: ExpressionError) -> None:
    """A condition of data has no answer (text compared with a number, say): the run ends here."""
    node, branch["visit"] = visit_of(branch)["node"], None
    message = f"{error.where} cannot be evaluated after {node}: {error.message}"
    flow.emit("workflow:halted", node=node, reason=message)
    raised = TreadleError(message, cls="user", code=error.code, where=node, details=error.details)
    stop_run(flow, f"no route from {node}", raised.to_value(), at=[branch["id"], "route", node])


def _go_unasked(flow: Flow, branch: Branch, asked: Sequence[Edge], why_not: str) -> None:
    """No condition was chosen: the default edge, if there is one, else the branch ends here."""
    counts = flow.state["counts"]
    default = next((edge for edge in asked if edge.when is None and not used_up(edge, counts)), None)
    if default is None:
        flow.emit("workflow:halted", node=asked[0].source, reason=why_not)
        end_branch(flow, branch)
    else:
        follow(flow, branch, default, DEFAULT_PATH, ONLY_PATH)


def stop_run(flow: Flow, why: str, error: dict[str, Value] | None, *, at: list[Value] | None = None) -> None:
    """The run ends although other branches may be inside a node: each of these nodes fails here, its
    work so far kept, so that every node that was entered is left and nothing follows the run's end.
    Where each branch was (`at`: the one that stops the run) is kept for a retry."""
    stopped = [at] if at is not None else []
    # Sorted: a state that comes from a snapshot has its keys in another order.
    for _, branch in sorted(flow.state["branches"].items()):
        visit = branch["visit"]
        if visit is None:
            continue
        stopped += interrupted(flow, branch)
        if visit["stage"] != "route":
            _cut(flow, branch, f"stopped: {why}", told=len(stopped) <= CUT_EVENTS_MAX)
        branch["visit"] = None
    inside = {at[0] for at in stopped}
    flow.state["resume"] = [*stopped, *(at for at in flow.ready if at[0] not in inside)]
    flow.finish(error)


def _cut(flow: Flow, branch: Branch, message: str, *, told: bool) -> None:
    """A node that the run's end finds in the middle of its work. A call that is under way is recorded,
    too: nobody knows whether it took effect."""
    visit = visit_of(branch)
    calls, ended = list(visit["calls"]), []
    if visit["stage"] in ("call", "in_doubt"):
        call, error = visit["pending"][0], f"{message}; it may have taken effect"
        calls.append({"tool": call["tool"], "input": call["input"], "error": error})
        ended = [("tool:result", {"tool": call["tool"], "output": {"error": error}})]
    kept = flow.load(visit["data"]) if visit["stage"] in ("judge", "reflect") else {}
    data = {**kept, "error": message} if len(encode(kept)) <= MERGED_BYTES_MAX else {"error": message}
    result = {"status": "failed", "data": data, "toolCalls": calls}
    _record(flow, branch, visit["node"], result)
    add_step(flow, visit, "failed")
    if told and flow.bytes <= CUT_BYTES_MAX:
        for type, payload in (*ended, ("node:exit", {"result": result})):
            flow.emit(type, node=visit["node"], **payload)


def interrupted(flow: Flow, branch: Branch) -> list[list[Value]]:
    """How a branch goes on that was inside a visit: at its route, or in the middle of the node, so that
    nothing that was answered is asked again; or with the node once more, where it had only begun."""
    visit = branch["visit"]
    if visit is None:
        return []
    if visit["stage"] == "route":
        return [[branch["id"], "route", visit["node"]]]
    if visit["stage"] in ("approve", "merge") or not flow.node(branch).by_model:
        return [[branch["id"], "enter", visit["node"]]]
    under_way = next((intent for intent in flow.ctx.open.values() if intent.ref == branch["id"]), None)
    if visit["stage"] == "call" and under_way is not None:
        visit["doubt"] = under_way.idempotency_key or under_way.id
    # Kept with the branch, not in what is ready: that travels in records, and a visit may be large.
    branch["paused"] = visit
    return [[branch["id"], "visit", visit["node"]]]


def _object(value: Value) -> dict[str, Value]:
    return value if isinstance(value, dict) else {}


def _record(flow: Flow, branch: Branch, node: str, result: dict[str, Value]) -> None:
    state = flow.state
    state["results"][node] = result
    size = len(encode(result))
    flow.bytes += size
    state["bytes"] += size
    item = new_item(node, result)
    branch["data"][node] = item
    branch["own"].append(item)
    if declared := flow.workflow.nodes[node].declared:
        if result["status"] == "skipped" and not flow.is_old:
            state["missing"].pop(node, None)  # it was never to emit anything
            return
        data = flow.load(result["data"])
        if isinstance(data, dict) and (missing := [name for name in declared if name not in data]):
            state["missing"][node] = missing
        else:
            state["missing"].pop(node, None)


def _warn_missing(flow: Flow) -> None:
    """B14: the router is shown null for a declared key that was not emitted; say so once."""
    missing = flow.state["missing"]
    nodes = sorted(missing)
    for node in nodes[:WARNINGS_MAX]:
        keys = ", ".join(missing[node])
        more = {} if flow.is_old else {"reason": NOT_EMITTED, "fields": missing[node]}
        message = f"{NOT_EMITTED}: {keys}; the router sees null"
        flow.emit("node:warning", node=node, message=message, **more)
    if left := nodes[WARNINGS_MAX:]:
        message = f"{NOT_EMITTED} here and at {len(left) - 1} more nodes; the router sees null"
        flow.emit("node:warning", node=left[0], message=message)
    flow.state["missing"] = {}


# --- following edges ----------------------------------------------------------------------------


def follow(flow: Flow, branch: Branch, edge: Edge, reason: str, traced: str) -> None:
    """`reason` is what the event says; the trace says "only path" for a default edge."""
    state, limit = flow.state, flow.workflow.max_steps
    entering = sum(how == "enter" for _, how, _ in flow.ready) if flow.ready else 0
    if state["visits"] + entering >= limit and not _joins(flow, branch, edge.target):
        message = f"more than {limit} node visits; raise max_steps if that is meant"
        error = TreadleError(message, cls="user", code="MAX_STEPS", where=edge.target)
        flow.emit("workflow:halted", node=edge.source, reason="max_steps")
        at = [branch["id"], "follow", [edge.index, reason, traced]]
        stop_run(flow, f"max_steps at {edge.source}", error.to_value(), at=at)
        return
    counts, pair, source, target = state["counts"], edge.pair, edge.source, edge.target
    counts[pair] = counts.get(pair, 0) + 1
    state["edges"].append({"from": source, "to": target, "reason": traced})
    flow.events.append({"type": "route", "from": source, "to": target, "reason": reason})
    if branch["parent"]:
        go(flow, branch, target)
    else:
        flow.ready.append([branch["id"], "enter", target])


def set_out(flow: Flow, branch: Branch, how: list[Value]) -> None:
    """A new branch takes the edge it was forked for; a run that is sent on, the one that was chosen."""
    index, reason, traced = how
    follow(flow, branch, flow.workflow.edges[index], reason, traced)


def route_again(flow: Flow, branch: Branch, node: str) -> None:
    """After a provider's pause, or when a person sends on a run that ended over this question. The
    node has been left: if the run's budget is used up by now, that ends the run, not the node."""
    if branch["visit"] is None:
        branch["visit"] = new_visit(node, flow.state["iterations"][node])
    over, ends_run = flow.over_budget(visit_of(branch))
    if over is not None and ends_run:
        branch["visit"] = None
        flow.emit("workflow:halted", node=node, reason="budget exceeded")
        error = TreadleError(over, cls="user", code="BUDGET_EXCEEDED", where=node).to_value()
        stop_run(flow, f"budget exceeded at {node}", error, at=[branch["id"], "route", node])
    elif visit_of(branch)["stage"] == "route":
        ask_route(flow, branch)
    else:
        _decide(flow, branch)


def ask_route(flow: Flow, branch: Branch) -> None:
    visit = visit_of(branch)
    params = {
        "name": visit["node"],
        "node": visit["node"],
        "iteration": visit["iteration"],
        "nth": flow.state["routes"][visit["node"]],
        "edges": visit["asked"],
        "setup": flow.state["setup"],
        "base": branch["base"],
        "own": branch["own"],
    }
    flow.open("route", branch["id"], params)


def on_route(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    visit = visit_of(branch)
    if receipt.status != "ok":
        if backs_off(flow, branch, receipt):
            return
        _route_failed(flow, branch, code_of(receipt), message_of(receipt))
        return
    value = _object(flow.load(receipt.value))
    flow.charge(None, value.get("usage"))
    if value.get("own") is not None:
        branch["own"] = [value["own"]]
    asked = [flow.workflow.edges[index] for index in visit["asked"]]
    position = chosen(choices(asked), value.get("choice"))
    edge = asked[position] if position is not None else None
    if edge is not None and used_up(edge, flow.state["counts"]):
        # Another branch has followed it meanwhile, as often as it may be: what is left is asked.
        _decide(flow, branch)
        return
    branch["visit"] = None
    if edge is not None and edge.when is not None:
        follow(flow, branch, edge, edge.when, edge.when)
    else:
        _go_unasked(flow, branch, asked, "no condition applies")


def _route_failed(flow: Flow, branch: Branch, code: str, message: str) -> None:
    """Nobody says where to go: the run ends here, failed, over a node if one has failed too."""
    node, fatal = visit_of(branch)["node"], code in FATAL
    error: dict[str, Value] | None = TreadleError(
        f"routing after {node} failed: {message}",
        cls="user" if fatal else "transport",
        code=code if fatal else "ROUTE_FAILED",
        where=node,
    ).to_value()
    if not fatal and flow.failure() is not None:
        error = None
    branch["visit"] = None
    flow.emit("workflow:halted", node=node, reason=f"routing failed: {message}")
    stop_run(flow, f"no route from {node}", error, at=[branch["id"], "route", node])


# --- forks and joins ----------------------------------------------------------------------------


def go(flow: Flow, branch: Branch, target: str) -> None:
    """A branch goes on at a node, unless that is where it joins the others."""
    if branch["parent"] and _joins(flow, branch, target):
        _arrive(flow, branch, target)
    else:
        flow.ready.append([branch["id"], "enter", target])


def _joins(flow: Flow, branch: Branch, target: str) -> bool:
    """Whether a branch, or one that waits for it, joins others at this node."""
    group_id = branch["parent"]
    while group_id:
        group = flow.state["groups"][group_id]
        if group["join"] == target:
            return True
        group_id = flow.state["branches"][group["parent"]]["parent"]
    return False


def end_branch(flow: Flow, branch: Branch) -> None:
    if branch["parent"]:
        _arrive(flow, branch, None)
    else:
        flow.finish()


def _fork(flow: Flow, branch: Branch, edges: tuple[Edge, ...]) -> None:
    state = flow.state
    state["forks"] += 1
    group_id = f"g{state['forks']}"
    ids = [f"{branch['id']}.{state['forks']}.{index}" for index in range(len(edges))]
    state["groups"][group_id] = {
        "parent": branch["id"],
        "join": join_of(flow.workflow, edges[0].source),
        "branches": ids,
        "left": len(ids),
        "own": {},
        "data": {},
        "goal": None,
    }
    base = [*branch["base"], *branch["own"]]
    for id, edge in zip(ids, edges, strict=True):
        state["branches"][id] = new_branch(id, group_id, base)
        # Not followed here: a wide fork takes several steps.
        flow.ready.append([id, "follow", [edge.index, ONLY_PATH, ONLY_PATH]])


def _arrive(flow: Flow, branch: Branch, target: str | None) -> None:
    """A branch has come to a join, its own or an outer one, or (without a target) has ended."""
    state = flow.state
    group = state["groups"][branch["parent"]]
    del state["branches"][branch["id"]]
    group["left"] -= 1
    group["own"][branch["id"]], group["data"][branch["id"]] = branch["own"], branch["data"]
    if target is not None and group["goal"] != group["join"]:
        group["goal"] = target
    if group["left"]:
        return
    parent = state["branches"][group["parent"]]
    for id in group["branches"]:
        parent["own"] += group["own"][id]
        parent["data"].update(group["data"][id])
    del state["groups"][branch["parent"]]
    if group["goal"] is None or state["halted"]:
        end_branch(flow, parent)
    else:
        go(flow, parent, group["goal"])
