"""The form of a human task at a terminal: its fields are asked for, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.lang.json_text import from_json

# What is shown, and whether it may be left empty; gives what was typed.
Ask = Callable[[str, bool], str]


def asked(schema: object, ask: Ask) -> dict[str, Any] | None:
    """The answer to a form, or None where a task has none. Text stays text where the form wants text; all
    else is JSON if it parses."""
    if not isinstance(schema, Mapping) or not isinstance(fields := schema.get("properties"), Mapping):
        return None
    required = schema.get("required") or ()
    answer: dict[str, Any] = {}
    for name, field in fields.items():
        about = field if isinstance(field, Mapping) else {}
        typed = ask(_label(name, about), name not in required)
        if typed or name in required:
            answer[name] = typed if about.get("type") == "string" else _value(typed)
    return answer


def _label(name: str, about: Mapping[str, Any]) -> str:
    choices = about.get("enum")
    kind = "|".join(map(str, choices)) if isinstance(choices, list) else str(about.get("type") or "")
    title = about.get("title") or about.get("description")
    return f"{name}{f' – {title}' if title else ''}{f' ({kind})' if kind else ''}"


def _value(typed: str) -> Any:
    try:
        return from_json(typed.encode())
    except (TreadleError, ValueError):
        return typed


def prompt(label: str, may_be_empty: bool) -> str:
    import typer

    return str(typer.prompt(label, default="" if may_be_empty else None, show_default=False, err=True))
