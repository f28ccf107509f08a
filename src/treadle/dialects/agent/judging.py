"""After a successful result: the evaluators, then one more attempt if they failed.

Judges are asked one by one, each as an intent of its own, so an answered judge is never paid for
again. `visiting` begins the next attempt; it asks this module, never the other way round.
"""

from __future__ import annotations

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt
from treadle.kernel.values import Value

from .evals import (
    FIX,
    FIX_BEFORE,
    PARSE_FAILURE,
    check_output,
    decided,
    failures,
    preamble,
    read_verdict,
    verdict,
    with_aliases,
)
from .flow import Flow, visit_of
from .leaving import add_step, leave
from .model import Evaluator
from .provider_errors import FATAL, backs_off, code_of, message_of
from .states import Branch


def evaluate(flow: Flow, branch: Branch) -> None:
    visit, node = visit_of(branch), flow.node(branch)
    visit["evals"], visit["at"], visit["tries"], visit["unread"] = [], 0, 0, 0
    shortfall = check_output(node, flow.load(visit["data"]), old=flow.is_old)
    if shortfall is not None:
        visit["evals"].append(shortfall)
    go_on(flow, branch)


def go_on(flow: Flow, branch: Branch) -> None:
    """Runs evaluators until one has to be asked, or none is left."""
    visit, node = visit_of(branch), flow.node(branch)
    while visit["at"] < len(node.evaluators):
        evaluator = node.evaluators[visit["at"]]
        if evaluator.kind == "judge":
            ask_judge(flow, branch)
            return
        calls = with_aliases(visit["calls"], _aliases(flow, branch))
        visit["evals"].append(decided(evaluator, flow.load(visit["data"]), calls, tells=not flow.is_old))
        visit["at"] += 1
    _conclude(flow, branch)


def _aliases(flow: Flow, branch: Branch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    skills = flow.load(flow.state["skills"])
    for id in flow.node(branch).skills:
        for name, aliases in (skills.get(id, {}).get("aliases") or {}).items():
            found.setdefault(name, []).extend(aliases)
    return found


def ask_judge(flow: Flow, branch: Branch) -> None:
    visit, node = visit_of(branch), flow.node(branch)
    evaluator = node.evaluators[visit["at"]]
    if _stopped(flow, branch):
        return
    visit["stage"] = "judge"
    flow.state["asks"] += 1
    model = evaluator.model or node.judge_model or flow.workflow.judge_model
    _ask(flow, branch, {"op": "judge", "evaluator": visit["at"], "model": model, "nth": flow.state["asks"]})


def _ask(flow: Flow, branch: Branch, more: dict[str, Value]) -> None:
    visit, asks = visit_of(branch), flow.state["node_asks"]
    asks[visit["node"]] = asks.get(visit["node"], 0) + 1
    params = {
        "name": visit["node"],
        "node": visit["node"],
        "node_nth": asks[visit["node"]],
        "iteration": visit["iteration"],
        "attempt": visit["attempt"],
        "data": visit["data"],
        "calls": visit["calls"],
        "setup": flow.state["setup"],
        **more,
    }
    visit["question"] = params
    flow.open("ask", branch["id"], params)


def ask_again(flow: Flow, branch: Branch) -> None:
    """The same question after a provider's pause; it counts as one."""
    if not _stopped(flow, branch):
        flow.open("ask", branch["id"], visit_of(branch)["question"])


def _stopped(flow: Flow, branch: Branch) -> bool:
    over, ends_run = flow.over_budget(visit_of(branch))
    if over is None:
        return False
    _failed(flow, branch, over, stop="budget exceeded" if ends_run else None)
    return True


def _failed(
    flow: Flow,
    branch: Branch,
    message: str,
    *,
    stop: str | None = None,
    error: dict[str, Value] | None = None,
) -> None:
    data = visit_of(branch)["data"]
    leave(flow, branch, "failed", data, extra={"error": message}, stop=stop, error=error)


def _asked(flow: Flow, branch: Branch, receipt: Receipt) -> str | None:
    """The reply's text; None when the question is asked again, or the run ends over it."""
    value: Value = flow.load(receipt.value)
    if receipt.status == "ok":
        reply = value if isinstance(value, dict) else {}
        flow.charge(branch, reply.get("usage"))
        return str(flow.load(reply.get("text")) or "")
    if backs_off(flow, branch, receipt):
        return None
    code = code_of(receipt)
    if code in FATAL:
        message = message_of(receipt)
        error = TreadleError(message, cls="user", code=code, where=visit_of(branch)["node"]).to_value()
        _failed(flow, branch, message, stop=message, error=error)
        return None
    return ""


def on_judged(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    visit = visit_of(branch)
    text = _asked(flow, branch, receipt)
    if text is None:
        return
    evaluator: Evaluator = flow.node(branch).evaluators[visit["at"]]
    found = read_verdict(evaluator, text)
    if found is None and receipt.status == "ok" and not visit["unread"]:
        visit["unread"] = 1
        visit["tries"] = 0
        ask_judge(flow, branch)
        return
    if found is None:
        why = f"{PARSE_FAILURE}: {text[:200]}" if receipt.status == "ok" else message_of(receipt)
        found = verdict(evaluator.name, "judge", False, why)
    visit["evals"].append(found)
    visit["at"] += 1
    visit["unread"], visit["tries"] = 0, 0
    go_on(flow, branch)


def _conclude(flow: Flow, branch: Branch) -> None:
    visit, node = visit_of(branch), flow.node(branch)
    if all(e["pass"] for e in visit["evals"]):
        leave(flow, branch, "success", visit["data"])
        return
    if node.retry is None or visit["attempt"] >= node.retry.max:
        _failed(flow, branch, f"eval failed: {failures(visit['evals'])}")
        return
    if _stopped(flow, branch):
        return
    if node.retry.reflect is None:
        again(flow, branch, None)
        return
    visit["stage"], visit["tries"] = "reflect", 0
    flow.state["asks"] += 1
    model = node.model or flow.workflow.model
    _ask(flow, branch, {"op": "reflect", "evals": visit["evals"], "model": model, "nth": flow.state["asks"]})


def on_reflected(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    """A reflection that fails is done without: the plain list of failures is enough to go on."""
    text = _asked(flow, branch, receipt)
    if text is not None:
        again(flow, branch, text.strip() or None)


def again(flow: Flow, branch: Branch, reflection: str | None) -> None:
    """Announces the next attempt; the machine begins it, in this step or in the next."""
    visit, node = visit_of(branch), flow.node(branch)
    assert node.retry is not None
    reason = failures(visit["evals"])
    visit["preamble"] = preamble(
        node.retry, visit["evals"], reflection, end=FIX_BEFORE if flow.is_old else FIX
    )
    add_step(flow, visit, "failed")
    visit["attempt"] += 1
    flow.state["retries"] += 1
    visit.pop("question", None)
    flow.emit(
        "node:retry", node=visit["node"], attempt=visit["attempt"], reason=reason, preamble=visit["preamble"]
    )
    flow.ready.append([branch["id"], "begin", visit["attempt"]])
