"""What another workflow or a function of Python gave back: the node's data, or its failure."""

from __future__ import annotations

from treadle.kernel.model import Receipt, is_reference
from treadle.kernel.values import Value

from .flow import Flow, visit_of
from .leaving import add_step
from .provider_errors import code_of, message_of
from .states import Branch
from .visiting import fail, settle


def on_child(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    if receipt.status != "ok":
        details = (receipt.error or {}).get("details") or {}
        _charge_child(flow, branch, details.get("result"))
        child = flow.node(branch).child or {}
        fail(flow, branch, f"{child['workflow']}: {message_of(receipt)}")
        return
    value = flow.load(receipt.value)
    result = value.get("result") if isinstance(value, dict) else value
    _charge_child(flow, branch, result)
    settle(flow, branch, "success", _as_data(result))


def _as_data(result: Value) -> Value:
    """A node's data is an object; anything else is its `result`."""
    return result if isinstance(result, dict) or is_reference(result) else {"result": result}


def _charge_child(flow: Flow, branch: Branch, result: Value) -> None:
    """What an agent's child has cost is its parent's cost too."""
    found = flow.load(result)
    trace = found.get("trace") if isinstance(found, dict) else None
    flow.charge(branch, trace.get("usage") if isinstance(trace, dict) else None)


def on_function(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    value = flow.load(receipt.value)
    if receipt.status == "ok":
        answer = value if isinstance(value, dict) else {}
        if answer.get("own") is not None:
            branch["own"] = [answer["own"]]
        settle(flow, branch, "success", answer.get("data"))
        return
    node, visit = flow.node(branch), visit_of(branch)
    timed_out = receipt.status == "timeout"
    reason = f"{node.function} did not end in time" if timed_out else message_of(receipt)
    if node.retry is None or visit["attempt"] >= node.retry.max or code_of(receipt) == "FUNCTION_NOT_FOUND":
        fail(flow, branch, reason)
        return
    add_step(flow, visit, "failed")
    visit["attempt"] += 1
    flow.state["retries"] += 1
    flow.emit("node:retry", node=node.id, attempt=visit["attempt"], reason=reason, preamble="")
    if not node.retry.delay_ns:
        flow.ready.append([branch["id"], "begin", visit["attempt"]])
        return
    visit["stage"] = "pause"
    due_ns = flow.ctx.now_ns + node.retry.delay_ns
    flow.open("timer", branch["id"], {"name": f"{node.id}: retry"}, due_ns=due_ns)
