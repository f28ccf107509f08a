"""How outcomes and loops look to templates and to code: `output`, `loop` and its items, the `body` of an http result."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.kernel.values import Value

from .edition import is_first
from .handles import Handle


class NotACollection(Exception):
    """What a loop is given cannot be iterated."""


def collection(value: Value, where: str) -> list[Value]:
    """What a loop goes over: a list, a mapping as {key, value} pairs, null as nothing."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [{"key": key, "value": item} for key, item in value.items()]
    if isinstance(value, list):
        return value
    raise NotACollection(f"{where} gives {type(value).__name__}, not a list or a mapping")


def loop_view(index: int, total: int) -> dict[str, Value]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == total - 1,
        "length": total,
    }


def output_view(kind: str, outcome: Mapping[str, Value]) -> Value | Handle:
    """Spelling B's `output`: a handle of the result, like a task's name. `.data` is the body for http and
    the whole result otherwise; what the result has no key for is read from the outcome."""
    result = outcome.get("result")
    if is_first():
        is_http = kind == "http" or (
            isinstance(result, dict) and "status_code" in result and "data" in result
        )
        data = result["data"] if is_http and isinstance(result, dict) and "data" in result else result
        return {**outcome, "data": data, "result": result}
    return Handle(
        result,
        status=str(outcome.get("status") or "ok"),
        error=outcome.get("error"),
        http=outcome.get("http"),
        meta=outcome.get("meta"),
        envelope=outcome,
    )


def with_bodies(value: Value, levels: int = 3) -> Value:
    """Arguments for code, in which http results have their `body` under that name too, as in templates."""
    if levels and isinstance(value, dict):
        value = {key: with_bodies(item, levels - 1) for key, item in value.items()}
        if "data" in value and "status_code" in value:
            value.setdefault("body", value["data"])
    return value
