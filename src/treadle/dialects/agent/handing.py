"""Nodes that no model works at: another workflow, or a function of Python. What they are handed."""

from __future__ import annotations

from treadle.kernel.values import encode

from .child import render
from .flow import Flow, visit_of
from .limits import CHILD_INPUT_BYTES_MAX
from .model import Node
from .states import Branch


def open_child(flow: Flow, branch: Branch, node: Node) -> str | None:
    """Starts the other workflow; or says why it cannot be."""
    assert node.child is not None
    given = node.child.get("input")
    input = (
        flow.load(flow.state["input"])
        if given is None
        else render(given, lambda name: flow.seen(branch, name))
    )
    name = node.child["workflow"]
    if len(encode(input)) > CHILD_INPUT_BYTES_MAX:
        limit = CHILD_INPUT_BYTES_MAX // 1024
        return f"the input for {name} is larger than {limit} KiB; hand over a part of it"
    # Where the child was started, from the outermost run in: a script answers each apart.
    within = [*(flow.ctx.options.get("within") or ()), [node.id, visit_of(branch)["nth"]]]
    params = {"name": name, "workflow": name, "input": input, "options": {"within": within}}
    flow.open("child", branch["id"], params)
    return None


def open_function(flow: Flow, branch: Branch, node: Node) -> None:
    """Calls the function with the context that a model would be told. It is called again if a crash
    leaves open whether it ended, under the same idempotency key."""
    visit = visit_of(branch)
    visit["stage"] = "function"
    params = {
        "name": node.id,
        "node": node.id,
        "run": node.function,
        "iteration": visit["iteration"],
        "attempt": visit["attempt"],
        "setup": flow.state["setup"],
        "base": branch["base"],
        "own": branch["own"],
    }
    if visit.get("approval"):
        params["approval"] = visit["approval"]
    due_ns = None if node.timeout_ns is None else flow.ctx.now_ns + node.timeout_ns
    flow.open("call", branch["id"], params, due_ns=due_ns)
