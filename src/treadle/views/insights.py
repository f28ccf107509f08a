"""What many runs have in common: why they fail, what they wait for, which steps are slow, what models cost.

Made of rows, documents and journals as people see them; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

TOP: Final = 20
_CAUSE_CHARS_MAX: Final = 200


def cause(error: Mapping[str, Any] | None) -> str:
    """The first line of what went wrong."""
    if not error:
        return "unknown"
    said = str(error.get("message") or "").strip().partition("\n")[0]
    return (said or str(error.get("code") or "unknown"))[:_CAUSE_CHARS_MAX]


def failures(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of failed runs by workflow and cause, most frequent first; each with its newest run."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["workflow"], cause(row.get("error")))
        one = found.setdefault(key, {"workflow": key[0], "cause": key[1], "count": 0, "run": row["id"]})
        one["count"] += 1
    return sorted(found.values(), key=lambda one: -int(one["count"]))[:TOP]


def waits(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What runs wait for, by workflow, kind and name, most frequent first; each with the run that has been there
    longest."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for document in documents:
        for wait in document.get("waiting_for") or ():
            key = (document["workflow"], str(wait.get("kind")), str(wait.get("name") or ""))
            names = dict(zip(("workflow", "kind", "name"), key, strict=True))
            one = found.setdefault(
                key, {**names, "count": 0, "run": document["id"], "since": document["started_at"]}
            )
            one["count"] += 1
            if document["started_at"] < one["since"]:
                one.update(run=document["id"], since=document["started_at"])
    return sorted(found.values(), key=lambda one: -int(one["count"]))[:TOP]


def slowest(traced: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]]) -> list[dict[str, Any]]:
    """Steps by workflow and name, those that take longest on average first. What waits for time or for people is
    not slow: it waits."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row, steps in traced:
        for step in steps:
            took = step.get("ms")
            if took is None or step["kind"] in ("timer", "task", "signal", "child", "start", "deliver"):
                continue
            key = (row["workflow"], step["name"] or step["kind"])
            names = {"workflow": key[0], "step": key[1]}
            one = found.setdefault(
                key, {**names, "count": 0, "total_ms": 0.0, "max_ms": -1.0, "run": row["id"]}
            )
            one["count"] += 1
            one["total_ms"] += took
            if took > one["max_ms"]:
                one.update(max_ms=took, run=row["id"])
    for one in found.values():
        one["mean_ms"] = round(one.pop("total_ms") / one["count"], 3)
    return sorted(found.values(), key=lambda one: -float(one["mean_ms"]))[:TOP]


def costs(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What models were used for, by workflow, dearest first."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        usage = (document.get("stats") or {}).get("usage")
        if not isinstance(usage, Mapping):
            continue
        empty = {
            "workflow": document["workflow"],
            "runs": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "usd": 0.0,
        }
        one = found.setdefault(document["workflow"], empty)
        one["runs"] += 1
        for name in ("input_tokens", "output_tokens", "usd"):
            one[name] += usage.get(name) or 0
    tokens = ("input_tokens", "output_tokens")
    return sorted(found.values(), key=lambda one: (-one["usd"], -sum(one[name] for name in tokens)))[:TOP]
