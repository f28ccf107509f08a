"""Leaving a node: its result is recorded, then the run goes on along an edge, or ends.

Forks and joins live here too. A fork suspends its branch and opens a group of new ones; whoever
reaches the group's join, or ends, is counted off; the last one wakes the suspended branch, which
goes on at the join with everything its branches left, in edge order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt
from treadle.kernel.values import Value, encode

from . import context
from .ending import finish
from .flow import Branch, Flow, new_branch, no_usage
from .model import DEFAULT_PATH, ONLY_PATH, Edge
from .provider_errors import FATAL, backs_off, code_of, message_of
from .routing import Ways, choices, chosen, is_decision, join_of, ways


def add_step(flow: Flow, branch: Branch, status: str) -> None:
    """One line of the trace: one attempt at a node."""
    visit = branch["visit"]
    step = {
        "node": visit["node"],
        "status": status,
        "iteration": visit["iteration"],
        "usage": visit["spent"],
    }
    if flow.node(branch).retry is not None:
        step["retryAttempt"] = visit["attempt"]
    flow.state["steps"].append(step)
    visit["spent"] = no_usage()


def leave(
    flow: Flow,
    branch: Branch,
    status: str,
    data: Value,
    *,
    stop: str | None = None,
    error: dict[str, Any] | None = None,
) -> None:
    """Records the visit's result and goes on. `stop` ends the run here, saying why; `error` is the
    run's own error then, if the node's is not enough."""
    state, visit = flow.state, branch["visit"]
    node = visit["node"]
    possible = ways(flow.workflow, node, state["counts"])
    dry = stop is None and state["dry"] and is_decision(flow.workflow, node)
    over, ends_run = flow.over_budget(branch) if possible.ask and not dry and stop is None else (None, False)
    if over is not None:
        status, data = _unpaid(flow, branch, status, data, over, ends_run)
        stop = "budget exceeded" if ends_run else None
    if stop is None and status == "failed" and flow.workflow.halt_on_failure:
        stop = "node failed"
    result = {"status": status, "data": data, "toolCalls": visit["calls"]}
    if visit["evals"]:
        result["evals"] = visit["evals"]
    _record(flow, branch, node, result)
    add_step(flow, branch, status)
    flow.emit("node:exit", node=node, result=result)
    if stop is not None:
        flow.emit("workflow:halted", node=node, reason=stop)
        branch["visit"] = None
        stop_run(flow, f"{stop} at {node}", error)
    elif dry:
        flow.emit("workflow:halted", node=node, reason="dry run")
        branch["visit"] = None
        end_branch(flow, branch)
    elif over is not None:
        branch["visit"] = None
        _go_unasked(flow, branch, possible.ask, "budget exceeded")
    else:
        _go_on(flow, branch, possible)


def _unpaid(
    flow: Flow, branch: Branch, status: str, data: Value, over: str, ends_run: bool
) -> tuple[str, Value]:
    """The question where to go cannot be paid for: that is this node's failure, unless it has failed
    (or failed softly) already and says why."""
    found = _object(flow.load(data))
    if status == "failed" or found.get("fail_soft") is True:
        return status, data
    if flow.node(branch).fail_soft and not ends_run:
        return "success", {**found, "error": over, "fail_soft": True}
    return "failed", {**found, "error": over}


def _go_on(flow: Flow, branch: Branch, possible: Ways) -> None:
    if possible.ask:
        visit, routes = branch["visit"], flow.state["routes"]
        visit["stage"], visit["asked"] = "route", [edge.index for edge in possible.ask]
        visit["tries"] = 0
        routes[visit["node"]] = routes.get(visit["node"], 0) + 1
        _warn_missing(flow)
        ask_route(flow, branch)
        return
    branch["visit"] = None
    if possible.follow is not None:
        follow(flow, branch, possible.follow, ONLY_PATH, ONLY_PATH)
    elif possible.fork:
        _fork(flow, branch, possible.fork)
    else:
        end_branch(flow, branch)


def _go_unasked(flow: Flow, branch: Branch, asked: Iterable[Edge], why_not: str) -> None:
    """No condition was chosen: the default edge, if there is one, else the branch ends here."""
    default = next((edge for edge in asked if edge.when is None), None)
    if default is None:
        flow.emit("workflow:halted", node=next(iter(asked)).source, reason=why_not)
        end_branch(flow, branch)
    else:
        follow(flow, branch, default, DEFAULT_PATH, ONLY_PATH)


def stop_run(flow: Flow, why: str, error: dict[str, Any] | None) -> None:
    """The run ends although other branches may be inside a node: each of these nodes fails here, its
    tool calls kept, so that every node that was entered is left and nothing follows the run's end."""
    for branch in flow.state["branches"].values():
        visit = branch["visit"]
        if visit is None:
            continue
        if visit["stage"] != "route":
            data = {"error": f"stopped: {why}"}
            result = {"status": "failed", "data": data, "toolCalls": visit["calls"]}
            _record(flow, branch, visit["node"], result)
            add_step(flow, branch, "failed")
            flow.emit("node:exit", node=visit["node"], result=result)
        branch["visit"] = None
    finish(flow, error)


def _object(value: Value) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _record(flow: Flow, branch: Branch, node: str, result: dict[str, Any]) -> None:
    state = flow.state
    state["results"][node] = result
    size = len(encode(result))
    flow.bytes += size
    state["bytes"] += size
    seen = result["data"]
    if "evals" in result:
        seen = context.entry(flow.load(seen), result["evals"])
    branch["data"][node] = seen
    branch["own"].append([node, seen])
    if flow.workflow.nodes[node].declared:
        missing = context.missing_keys(flow.workflow, node, flow.load(seen))
        if missing:
            state["missing"][node] = missing
        else:
            state["missing"].pop(node, None)


def _warn_missing(flow: Flow) -> None:
    """B14: the router is shown null for a declared key that was not emitted; say so once."""
    for node in sorted(flow.state["missing"]):
        keys = ", ".join(flow.state["missing"][node])
        flow.emit(
            "node:warning", node=node, message=f"declared output not emitted: {keys}; the router sees null"
        )
    flow.state["missing"] = {}


# --- following edges ----------------------------------------------------------------------------


def follow(flow: Flow, branch: Branch, edge: Edge, reason: str, traced: str) -> None:
    """`reason` is what the event says; the trace says "only path" for a default edge."""
    _take(flow, edge, reason, traced)
    go(flow, branch, edge.target)


def _take(flow: Flow, edge: Edge, reason: str, traced: str) -> None:
    counts = flow.state["counts"]
    counts[edge.pair] = counts.get(edge.pair, 0) + 1
    flow.state["edges"].append({"from": edge.source, "to": edge.target, "reason": traced})
    flow.emit("route", **{"from": edge.source, "to": edge.target, "reason": reason})


def ask_route(flow: Flow, branch: Branch) -> None:
    visit = branch["visit"]
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
    visit = branch["visit"]
    node = visit["node"]
    if receipt.status != "ok":
        if backs_off(flow, branch, receipt):
            return
        code = code_of(receipt)
        error = TreadleError(
            f"routing after {node} failed: {message_of(receipt)}",
            cls="transport",
            code=code if code in FATAL else "ROUTE_FAILED",
            where=node,
        )
        stop_run(flow, f"no route from {node}", error.to_value())
        return
    value = _object(flow.load(receipt.value))
    flow.charge(None, value.get("usage"))
    if value.get("own") is not None:
        branch["own"] = [value["own"]]
    asked = [flow.workflow.edges[index] for index in visit["asked"]]
    position = chosen(choices(asked), value.get("choice"))
    branch["visit"] = None
    if position is not None and (when := asked[position].when) is not None:
        follow(flow, branch, asked[position], when, when)
    else:
        _go_unasked(flow, branch, asked, "no condition applies")


# --- forks and joins ----------------------------------------------------------------------------


def go(flow: Flow, branch: Branch, target: str) -> None:
    """A branch goes on at a node, unless that is where it joins the others."""
    group_id = branch["parent"]
    while group_id:
        group = flow.state["groups"][group_id]
        if group["join"] == target:
            _arrive(flow, branch, target)
            return
        group_id = flow.state["branches"][group["parent"]]["parent"]
    flow.ready.append([branch["id"], target])


def end_branch(flow: Flow, branch: Branch) -> None:
    if branch["parent"]:
        _arrive(flow, branch, None)
    else:
        finish(flow)


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
        _take(flow, edge, ONLY_PATH, ONLY_PATH)
    for id, edge in zip(ids, edges, strict=True):
        go(flow, state["branches"][id], edge.target)


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
    if group["goal"] is None:
        end_branch(flow, parent)
    else:
        go(flow, parent, group["goal"])
