"""A budget that a person raises: `treadle patch ID --budget tokens=200000` while a run goes on or waits,
`treadle retry ID --budget tokens=200000` when they send on one that has used its budget up.

A run keeps the definition it was started with, so its budget cannot be raised there. The event says the new caps, so
the journal has them; they replace the workflow's own, or that of a node.
"""

from __future__ import annotations

from treadle.kernel.errors import Unsupported
from treadle.kernel.model import Patch
from treadle.kernel.values import Value

from .flow import Flow, exceeded
from .model import Budget


def patch_budget(flow: Flow, event: Patch) -> None:
    """What is in hand goes on; the new caps count from the next time that something is about to be spent."""
    data = event.data
    if not isinstance(data, dict) or set(data) != {"budget"}:
        raise Unsupported("of an agent run only its budget can be changed: {budget: {usd, tokens}}")
    raise_budget(flow, data["budget"])
    flow.emit("budget:raised", budget=data["budget"], **({"by": event.by} if event.by else {}))


def raise_budget(flow: Flow, given: Value) -> None:
    """`{"usd"?, "tokens"?, "nodes"?: {id: {"usd"?, "tokens"?}}}`; totals, not what is added."""
    if not isinstance(given, dict) or not given:
        raise Unsupported("budget is {usd, tokens} for the run, or {nodes: {id: {usd, tokens}}}")
    nodes = given.get("nodes", {})
    if not isinstance(nodes, dict):
        raise Unsupported("budget.nodes is a mapping of node to {usd, tokens}")
    if unknown := sorted(set(nodes) - flow.workflow.nodes.keys()):
        raise Unsupported(f"budget.nodes: there is no node {unknown[0]!r}")
    own = {name: value for name, value in given.items() if name != "nodes"}
    caps = _caps(own, "budget")
    for id, cap in nodes.items():
        _caps(cap, f"budget.nodes.{id}")
    if (over := exceeded(caps, flow.state["usage"])) is not None:
        raise Unsupported(f"{over}: that much is spent already; give more")
    before: dict[str, Value] = flow.state.get("budget") or {}
    merged = {**before, **own}
    if nodes:
        merged["nodes"] = {**(before.get("nodes") or {}), **nodes}
    flow.state["budget"] = merged


def _caps(given: Value, at: str) -> Budget:
    if not isinstance(given, dict):
        raise Unsupported(f"{at} is {{usd, tokens}}, not {given!r:.40}")
    if unknown := sorted(set(given) - {"usd", "tokens"}):
        raise Unsupported(f"{at} has usd and tokens, not {', '.join(unknown)}")
    for name, value in given.items():
        kinds = (int,) if name == "tokens" else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or value <= 0:
            raise Unsupported(f"{at}.{name} is a number above 0, not {value!r:.40}")
    return Budget(given.get("usd"), given.get("tokens"))
