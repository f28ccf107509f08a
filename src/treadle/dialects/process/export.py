"""A canonical definition back into what people write. Importing the result gives the same digest.

Everything is sorted or in a fixed order, so that a definition from the store exports alike.
"""

from __future__ import annotations

import json

from treadle.kernel.errors import Unsupported
from treadle.kernel.values import Value
from treadle.lang.definition import FORMATS, STANDING
from treadle.lang.expressions.closures import is_expression
from treadle.lang.expressions.syntax import unparse
from treadle.lang.yaml_text import BREAKS, to_yaml

from .export_python import python_source
from .normalise import RETENTION_DEFAULT
from .program import kind_of

_TOP = (
    "dialect",
    "name",
    "version",
    "title",
    "description",
    "start",
    "retention",
    *STANDING,
    "tasks",
    "steps",
)


def export(body: dict[str, Value], format: str, *, canonical: bool = False) -> str:
    """The text of a definition in one of `FORMATS`; canonical keeps trees and defaults as they are."""
    value = _sorted({"dialect": "process", **body}) if canonical else readable(body)
    match format:
        case "yaml":
            return to_yaml(value)
        case "json":
            text = json.dumps(value, indent=2, ensure_ascii=False)
            # Only in strings, where YAML 1.1 readers would take them for the end of a line.
            return BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
        case "python" if not canonical:
            return python_source(body)
    raise Unsupported(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")


def readable(body: dict[str, Value]) -> dict[str, Value]:
    """The document a person would have written for this body."""
    value: dict[str, Value] = {"dialect": "process", **body}
    if value["retention"] == RETENTION_DEFAULT:
        del value["retention"]
    value["tasks"] = {name: _step_fields(body["tasks"][name]) for name in sorted(body["tasks"])}
    if not value["tasks"]:
        del value["tasks"]
    value["steps"] = _block(body["steps"])
    if "start" in body:
        # A schema is data: a key "$" in it is not an expression.
        value["start"] = _sorted(body["start"])
    return {key: value[key] for key in _TOP if key in value}


def _block(steps: list[dict[str, Value]]) -> list[Value]:
    return [_step(step) for step in steps]


def _step(step: dict[str, Value]) -> dict[str, Value]:
    """A step; its id first, its undo last."""
    named = {"id": step["id"]} if "id" in step else {}
    kind = kind_of(step)
    undo = {"compensate": _block(step["compensate"])} if "compensate" in step else {}
    return {**named, **(_core(kind, step) if kind != "compensate" else {}), **undo}


def _core(kind: str, step: dict[str, Value]) -> dict[str, Value]:
    if kind == "if":
        out = {"if": _template(step["if"]), "then": _block(step["then"])}
        return {**out, "else": _block(step["else"])} if step["else"] else out
    value = step[kind]
    match kind:
        case "fork":
            return {"fork": {branch["branch"]: _block(branch["do"]) for branch in value}}
        case "repeat" | "call" | "await" | "child":
            return {kind: _step_fields(value)}
        case _:
            return {kind: _template(value)}


_FIRST = ("transport", "workflow", "signal", "each", "in", "while", "until", "max", "roles")


def _step_fields(value: dict[str, Value]) -> dict[str, Value]:
    """The fields of a step: what it is first, what it leads to last."""
    last = sorted(key for key in value if key.startswith("on_") or key == "do")
    middle = sorted(key for key in value if key not in _FIRST and key not in last)
    keys = [key for key in _FIRST if key in value] + middle + last
    return {key: _block(value[key]) if key in last else _field(key, value[key]) for key in keys}


def _field(key: str, value: Value) -> Value:
    return _sorted(value) if key == "schema" else _template(value)


def _sorted(value: Value) -> Value:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list) else value


def _template(value: Value) -> Value:
    if is_expression(value):
        return {"$": unparse(value["$"])}
    if isinstance(value, dict):
        return {key: _template(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_template(part) for part in value]
    return value
