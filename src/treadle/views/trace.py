"""The way a run took, read from its document and journal.

An agent's trace is part of its state. For every other dialect it is the list of intents, each with
the receipt that settled it: what was asked of the outside, when, and how that ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from treadle.kernel.model import DETACHED_KINDS


def trace_of(document: Mapping[str, Any], journal: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`{steps, edges, sources, usage}` of an agent, `{steps}` of any other run."""
    state = document.get("state")
    if document.get("dialect") == "agent" and isinstance(state, Mapping):
        trace = state.get("trace") or {}
        return {
            "steps": list(trace.get("steps") or ()),
            "edges": list(trace.get("edges") or ()),
            "sources": dict(trace.get("sources") or {}),
            "usage": (document.get("stats") or {}).get("usage"),
        }
    return {"steps": intents(journal)}


def routes(journal: Sequence[Mapping[str, Any]], default: str) -> list[str]:
    """Why each edge of an agent's trace was really followed, in their order. The trace calls every edge
    without a condition "only path", a default edge among them; and a node that failed still routes.
    `default` is what the event of a default edge says."""
    found: list[str] = []
    status: dict[str, str] = {}
    for record in journal:
        for event in record.get("events") or ():
            if event.get("type") == "node:exit":
                status[event["node"]] = event["result"]["status"]
            elif event.get("type") == "route":
                chosen = event["reason"] != default
                reason = str(event["reason"]) if chosen else "no condition applied, so the default edge"
                failed = status.get(event["from"]) == "failed"
                found.append(f"{reason} ({event['from']} had failed)" if failed else reason)
    return found


def intents(journal: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every intent in the order it was opened, with its receipt."""
    found: dict[str, dict[str, Any]] = {}
    for record in journal:
        event = record.get("event") or {}
        settled = found.get(str(event.get("intent")))
        if settled is not None and record["kind"] in ("receipt", "rejected", "fault"):
            status = "rejected" if record["kind"] == "rejected" else event.get("status", "ok")
            _settle(settled, record, status, event.get("error"))
        elif record["kind"] == "signal":
            waiting = (
                step
                for step in found.values()
                if step["kind"] == "signal" and step["status"] == "open" and step["name"] == event.get("name")
            )
            if (first := next(waiting, None)) is not None:
                _settle(first, record, "ok", None)
        for id in record.get("cancelled") or ():
            if str(id) in found:
                _settle(found[str(id)], record, "cancelled", None)
        for opened in record.get("opened") or ():
            params = opened.get("params") or {}
            found[str(opened["id"])] = {
                "id": opened["id"],
                "kind": opened["kind"],
                "name": params.get("name") or opened.get("ref") or params.get("workflow") or "",
                "seq": record["seq"],
                "opened_at": record["at"],
                # A message is on its way with the commit; nothing comes back for it.
                "status": "sent" if opened["kind"] in DETACHED_KINDS else "open",
                "settled": None,
                "settled_at": None,
                "ms": None,
                "error": None,
            }
    return list(found.values())


def _settle(step: dict[str, Any], record: Mapping[str, Any], status: str, error: Any) -> None:
    step.update(status=status, settled=record["seq"], settled_at=record["at"], error=error)
    begun, ended = step["opened_at"], record["at"]
    if isinstance(begun, str) and isinstance(ended, str):
        took = datetime.fromisoformat(ended) - datetime.fromisoformat(begun)
        step["ms"] = round(took.total_seconds() * 1000, 3)
