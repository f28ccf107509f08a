"""Declared inputs: what a workflow asks for, checked before a run exists.

All errors at once. Defaults are filled in; what the caller gives wins; keys that nobody declared
pass through unchanged. A null counts as missing.
"""

from __future__ import annotations

import math
from typing import Any

from treadle.kernel.errors import InputInvalid, ValueRefused
from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.values import Value, encode
from treadle.lang.problems import Problems

from .paths import brief, same


def fits(value: Value, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "number":
            if isinstance(value, float):
                return math.isfinite(value)
            return isinstance(value, int) and not isinstance(value, bool) and INT_MIN <= value <= INT_MAX
        case "boolean":
            return isinstance(value, bool)
        case _:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)


def check_declarations(declared: Any, problems: Problems) -> None:
    """The declarations themselves: typed defaults and enums, no default for a required input."""
    if not isinstance(declared, dict):
        return
    for name, spec in declared.items():
        if not isinstance(spec, dict) or spec.get("type") not in ("string", "number", "boolean", "string[]"):
            continue
        at, kind = ("inputs", name), spec["type"]
        if spec.get("required") is True and "default" in spec:
            problems.error(
                "INPUT_REQUIRED_WITH_DEFAULT",
                at,
                f"the input {name!r} is required and has a default",
                hint="Remove one of the two.",
            )
        if "default" in spec and not fits(spec["default"], kind):
            problems.error(
                "INPUT_DEFAULT_TYPE",
                (*at, "default"),
                f"the default of {name!r} is not a {kind}",
                hint="Correct the default, or the type.",
            )
        elif (
            "default" in spec
            and isinstance(spec.get("enum"), list)
            and (wrong := _problem(spec["default"], spec))
        ):
            problems.error(
                "INPUT_DEFAULT_TYPE",
                (*at, "default"),
                f"the default of {name!r} {wrong}",
                hint="Choose a default among those of the enum, or add it there.",
            )
        choices = spec.get("enum")
        item_kind = "string" if kind == "string[]" else kind
        for index, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not fits(choice, item_kind):
                problems.error(
                    "INPUT_ENUM_TYPE",
                    (*at, "enum", index),
                    f"{brief(choice)} in the enum of {name!r} is not a {item_kind}",
                    hint="Correct the enum, or the type.",
                )


def apply(declared: dict[str, Value], given: Value, *, dry_run: bool = False) -> dict[str, Value]:
    """The input a run starts with. Raises InputInvalid with every error."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise _invalid([{"field": "", "message": f"the input must be an object, not {brief(given)}"}])
    value, errors = dict(given), []
    for name, spec in declared.items():
        if value.get(name) is None:
            if "default" in spec:
                value[name] = spec["default"]
            elif spec.get("required"):
                errors.append({"field": name, "message": "is required"})
            continue
        message = _problem(value[name], spec)
        if message:
            errors.append({"field": name, "message": message})
    if errors:
        raise _invalid(errors)
    if dry_run:
        value["dryRun"] = True
    return value


def _problem(value: Value, spec: dict[str, Value]) -> str | None:
    kind = spec["type"]
    if not fits(value, kind):
        if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
            return f"must be a finite number that fits into 64 bits, not {brief(value)}"
        return f"must be a {kind}, not {brief(value)}"
    try:
        encode(value)
    except ValueRefused as refused:
        return f"cannot be stored: {refused.message}"
    choices = spec.get("enum")
    if choices is None:
        return None
    items = value if kind == "string[]" else [value]
    if all(any(same(item, choice) for choice in choices) for item in items):
        return None
    return f"must be one of {', '.join(brief(choice) for choice in choices)}, not {brief(value)}"


def _invalid(errors: list[dict[str, str]]) -> InputInvalid:
    listed = "; ".join(f"{error['field']} {error['message']}".strip() for error in errors)
    return InputInvalid(f"the input does not fit: {listed}", details={"errors": errors})
