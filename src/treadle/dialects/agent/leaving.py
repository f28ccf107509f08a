"""Leaving a node: its result is recorded, then the run goes on along an edge, or ends.

Forks and joins live here too. A fork suspends its branch and opens a group of new ones; whoever
reaches the group's join, or ends, is counted off; the last one wakes the suspended branch, which
goes on at the join with everything its branches left, in edge order.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt
from treadle.kernel.values import Value, encode

from . import context
from .ending import finish
from .flow import Branch, Flow, exceeded, new_branch, no_usage
from .model import DEFAULT_PATH, ONLY_PATH, Edge
from .provider_errors import FATAL, backs_off, code_of, message_of
from .routing import choices, chosen, is_decision, join_of, ways


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
    if stop is None and state["dry"] and is_decision(flow.workflow, node):
        stop = "dry run"
    if stop is None and possible.ask:
        over = exceeded(flow.workflow.budget, state["usage"])
        if over is not None:
            # The question where to go cannot be paid for, and that is this node's failure.
            status, data, stop = "failed", {**_object(flow.load(data)), "error": over}, "budget exceeded"
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
        finish(flow, error)
    elif possible.follow is not None:
        branch["visit"] = None
        follow(flow, branch, possible.follow, ONLY_PATH, ONLY_PATH)
    elif possible.fork:
        branch["visit"] = None
        _fork(flow, branch, possible.fork)
    elif possible.ask:
        visit["stage"], visit["asked"] = "route", [edge.index for edge in possible.ask]
        visit["tries"] = 0
        state["routes"][node] = state["routes"].get(node, 0) + 1
        _warn_missing(flow)
        ask_route(flow, branch)
    else:
        branch["visit"] = None
        end_branch(flow, branch)


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
        finish(flow, error.to_value())
        return
    value = _object(flow.load(receipt.value))
    flow.charge(None, value.get("usage"))
    if value.get("own") is not None:
        branch["own"] = [value["own"]]
    asked = visit["asked"]
    position = chosen(choices(flow.workflow, asked), value.get("choice"))
    edge = flow.workflow.edges[asked[position]] if position is not None else None
    if edge is None:
        plain = [flow.workflow.edges[index] for index in asked if flow.workflow.edges[index].when is None]
        edge = plain[0] if plain else None
    branch["visit"] = None
    if edge is None:
        flow.emit("workflow:halted", node=node, reason="no condition applies")
        end_branch(flow, branch)
    elif edge.when is None:
        follow(flow, branch, edge, DEFAULT_PATH, ONLY_PATH)
    else:
        follow(flow, branch, edge, edge.when, edge.when)


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
