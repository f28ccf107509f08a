"""What people are asked in the middle of a visit: to approve a node, to say what became of a call."""

from __future__ import annotations

from typing import Final

from treadle.kernel.model import Intent, intent_id
from treadle.kernel.values import Value, encode

from .child import render_text, value_at
from .flow import Flow, visit_of
from .limits import PROMPT_CHARS_MAX, SHOWN_BYTES_MAX
from .model import Node
from .states import Branch

APPROVAL_SCHEMA: Final = {
    "type": "object",
    "required": ["approved"],
    "properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}},
}
DECISION_SCHEMA: Final = {
    "type": "object",
    "required": ["decision"],
    "properties": {"decision": {"enum": ["retry", "skip", "fail"]}},
}


def open_task(flow: Flow, branch: Branch, params: dict[str, Value], due_ns: int | None = None) -> None:
    intent = Intent(kind="task", params=params, ref=branch["id"], due_ns=due_ns)
    ctx = flow.ctx
    identity = encode([ctx.run, ctx.definition, ctx.key])
    task = intent_id(identity, intent, ctx.seq, len(flow.intents))
    flow.add(intent)
    flow.emit("node:waiting", node=visit_of(branch)["node"], task=task)


def ask_approval(flow: Flow, branch: Branch, node: Node) -> None:
    assert node.approve is not None
    visit_of(branch)["stage"] = "approve"
    payload: dict[str, Value] = {"prompt": _prompt(flow, branch, node), "node": node.id}
    if node.approve.show:
        payload["show"] = {path: _shown(flow, branch, path) for path in node.approve.show}
    params = {
        "name": node.id,
        "type": "approval",
        "roles": list(node.approve.roles),
        "payload": payload,
        "schema": APPROVAL_SCHEMA,
    }
    timeout = node.approve.timeout_ns
    open_task(flow, branch, params, None if timeout is None else flow.ctx.now_ns + timeout)


def _prompt(flow: Flow, branch: Branch, node: Node) -> str:
    """The text for a person, with `{{ node.key }}` filled in from what the run knows."""
    text = flow.content(f"nodes.{node.id}.approve.prompt")
    if not flow.is_old:
        text = render_text(text, lambda name: flow.seen(branch, name))
    if len(text) <= PROMPT_CHARS_MAX:
        return text
    return text[:PROMPT_CHARS_MAX] + "\n… (cut; the whole text is in the run's trace.sources)"


def _shown(flow: Flow, branch: Branch, path: str) -> Value:
    value = value_at(path, lambda name: flow.seen(branch, name))
    size = len(encode(value))
    return value if size <= SHOWN_BYTES_MAX else f"(too large to show here: {size} bytes; see the run)"


def ask_doubt(flow: Flow, branch: Branch) -> None:
    visit = visit_of(branch)
    call = visit["pending"][0]
    params = {
        "name": "in_doubt",
        "type": "in_doubt",
        "roles": [],
        "payload": {
            "prompt": f"Whether {call['tool']} took effect is not known. Retry it, skip it, or fail the node?",
            "node": visit["node"],
            "tool": call["tool"],
            "input": call["input"],
        },
        "schema": DECISION_SCHEMA,
    }
    open_task(flow, branch, params)
