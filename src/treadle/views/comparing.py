"""In what two runs differ: definition, input, way, results, sources. Not their ids and instants."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from treadle.kernel.values import encode

from .differences import differences
from .trace import trace_of

Document = dict[str, Any]


def compared(left: tuple[Document, list[Document]], right: tuple[Document, list[Document]]) -> Document:
    """`{left, right, equal, differences}` of two runs, each given by its document and its journal."""
    sides = [_comparable(*left), _comparable(*right)]
    if sides[0]["digest"] == sides[1]["digest"]:
        # The same definition, deployed or straight from its file.
        for side in sides:
            del side["version"]
    _in_one_order(sides)
    changes = list(differences(sides[0], sides[1]))
    return {"left": left[0]["id"], "right": right[0]["id"], "equal": not changes, "differences": changes}


def _in_one_order(sides: list[Document]) -> None:
    """Branches of an agent run side by side, and their steps stand in the order in which they ended. Where
    both runs forked and did the same, another order is no difference."""
    if not all(map(_forked, sides)):
        return
    for part in ("steps", "edges"):
        ordered = [sorted(side[part], key=encode) for side in sides]
        if ordered[0] == ordered[1]:
            for side, items in zip(sides, ordered, strict=True):
                side[part] = items


def _forked(side: Document) -> bool:
    """Whether a node of an agent's was left by more edges than it was visited."""
    if "edges" not in side:
        return False
    visits = Counter(step["node"] for step in side["steps"] if not step.get("retryAttempt"))
    left = Counter(edge["from"] for edge in side["edges"])
    return any(count > visits[node] for node, count in left.items())


def _comparable(document: dict[str, Any], journal: list[dict[str, Any]]) -> dict[str, Any]:
    """What makes two runs alike: not their ids and instants."""
    found: dict[str, Any] = _without_ids(
        _told(document, journal), re.compile(re.escape(document["id"]) + r"(\.[0-9a-f]{12})+")
    )
    return found


def _without_ids(value: Any, child: re.Pattern[str]) -> Any:
    """Errors and results speak of called runs by their ids, which begin with the caller's."""
    if isinstance(value, str):
        return child.sub("(called run)", value)
    if isinstance(value, dict):
        return {key: _without_ids(item, child) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_ids(item, child) for item in value]
    return value


def _told(document: dict[str, Any], journal: list[dict[str, Any]]) -> dict[str, Any]:
    traced = trace_of(document, journal)
    kept = {
        key: document.get(key)
        for key in ("workflow", "version", "digest", "status", "input", "result", "error")
    }
    if document.get("dialect") == "agent":
        state = document.get("state") or {}
        sources = {
            path: {key: value for key, value in source.items() if key != "fetchedAt"}
            for path, source in traced["sources"].items()
        }
        # Its result is the same once more.
        del kept["result"]
        return {**kept, **traced, "results": state.get("results"), "sources": sources}
    steps = [{key: step[key] for key in ("kind", "name", "status")} for step in traced["steps"]]
    return {**kept, "state": document.get("state"), "steps": steps}
