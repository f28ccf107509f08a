"""A run as a test script: what the outside answered, in a form that can answer again.

For an agent it is the script of the scripted model (`--model scripted:FILE`): one entry for each time a node,
a route or a judge was asked. For every other dialect it lists the answers in order, with the input and the
result they led to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.kernel.model import is_reference
from treadle.kernel.values import Value

Journal = Sequence[Mapping[str, Any]]
Blob = Callable[[str], Value]


def script_of(document: Mapping[str, Any], journal: Journal, blob: Blob) -> dict[str, Any]:
    """`blob` gives the payload behind a digest."""
    answered = list(_answers(journal, blob))
    if document.get("dialect") == "agent":
        return _model_script(answered)
    return {
        "workflow": document["workflow"],
        "version": document.get("version"),
        "digest": document["digest"],
        "input": document.get("input"),
        "answers": [_answer(intent, receipt) for intent, receipt in answered],
        "status": document["status"],
        "result": document.get("result"),
    }


def _answers(journal: Journal, blob: Blob) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every settled intent with its receipt, in the order of the answers."""
    opened: dict[str, Any] = {}
    found = []
    for record in journal:
        event = record.get("event") or {}
        intent = opened.pop(str(event.get("intent")), None)
        if record["kind"] == "signal":
            named = (
                i
                for i in opened.values()
                if i["kind"] == "signal" and i["params"].get("name") == event.get("name")
            )
            intent = next(named, None)
            if intent is not None:
                del opened[intent["id"]]
                event = {"status": "ok", "value": event.get("data"), "by": event.get("by")}
        if intent is not None:
            found.append((resolved(intent, blob), resolved(dict(event), blob)))
        for new in record.get("opened") or ():
            opened[str(new["id"])] = new
    return found


def resolved(value: Value, blob: Blob) -> Any:
    """The value with every reference in it replaced by what it stands for."""
    if is_reference(value):
        return resolved(blob(str(value["checksum"])), blob)
    if isinstance(value, dict):
        return {key: resolved(item, blob) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, blob) for item in value]
    return value


def _answer(intent: Mapping[str, Any], receipt: Mapping[str, Any]) -> dict[str, Any]:
    params = intent.get("params") or {}
    answer = {
        "kind": intent["kind"],
        "name": params.get("name") or intent.get("ref") or "",
        "status": receipt.get("status", "ok"),
        "value": receipt.get("value"),
    }
    if receipt.get("error"):
        answer["error"] = receipt["error"]
    if receipt.get("by"):
        answer["by"] = receipt["by"]
    return answer


# --- the scripted model -------------------------------------------------------------------------


def _model_script(answered: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    turns: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    routes: dict[tuple[str, int], Value] = {}
    asks: dict[int, str] = {}
    for intent, receipt in answered:
        params, value = intent.get("params") or {}, receipt.get("value") or {}
        match intent["kind"]:
            case "model":
                turns.setdefault((params["node"], params["nth"]), []).append(receipt)
            case "route" if receipt.get("status", "ok") == "ok":
                routes[params["node"], params["nth"]] = value.get("choice")
            case "ask" if receipt.get("status", "ok") == "ok":
                asks[params["nth"]] = value.get("text", "")
    script: dict[str, Any] = {"run": {}, "evaluate": {}, "ask": [asks[nth] for nth in sorted(asks)]}
    for (node, _), receipts in sorted(turns.items(), key=lambda item: item[0][1]):
        script["run"].setdefault(node, []).append(_entry(receipts))
    for (node, _), choice in sorted(routes.items(), key=lambda item: item[0][1]):
        script["evaluate"].setdefault(node, []).append(choice)
    return script


def _entry(receipts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One invocation of a node: its turns, folded into the calls it made and the result it gave."""
    entry: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for receipt in receipts:
        value = receipt.get("value") or {}
        for name, count in (value.get("usage") or {}).items():
            if isinstance(count, int | float):
                usage[name] = usage.get(name, 0) + count
        calls = [{"tool": call["tool"], "input": call.get("input")} for call in value.get("calls") or ()]
        if calls:
            entry.setdefault("tool_calls", []).extend(calls)
    last = receipts[-1]
    if last.get("status", "ok") != "ok":
        return {"throw": (last.get("error") or {}).get("message") or "the provider failed"}
    final = last.get("value") or {}
    if final.get("status", "success") != "success":
        entry["status"] = final["status"]
    entry["data"] = final.get("data")
    if usage:
        entry["usage"] = usage
    return entry
