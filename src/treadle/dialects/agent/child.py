"""Paths into the context: in the input of another workflow, in what an approver is shown.

`{{ path }}` stands for a value of the context (`{{ input.day }}`, `{{ gather.items }}`). A text
that is nothing but one of them becomes the value itself; inside longer text it is written out.
A path that leads nowhere is null. There are no expressions here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.text import Path as Where

from .paths import js_text

_PLACE: Final = re.compile(r"\{\{\s*([a-zA-Z_][a-zA-Z0-9_-]*(?:\.[a-zA-Z_][a-zA-Z0-9_-]*)*)\s*\}\}")
_BRACES: Final = re.compile(r"\{\{.*?(?:\}\}|\Z)", re.S)

Lookup = Callable[[str], Value]


def render(value: Value, lookup: Lookup) -> Value:
    """`value` with every `{{ path }}` in it replaced; `lookup` gives the value of a first name."""
    if isinstance(value, dict):
        return {key: render(item, lookup) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, lookup) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value.strip())
    if whole is not None:
        return value_at(whole[1], lookup)
    return render_text(value, lookup)


def render_text(text: str, lookup: Lookup) -> str:
    """A text with every `{{ path }}` in it written out."""
    return _PLACE.sub(lambda place: js_text(value_at(place[1], lookup)), text)


def value_at(path: str, lookup: Lookup) -> Value:
    first, *rest = path.split(".")
    value = lookup(first)
    for name in rest:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def doubts(value: Value, names: Collection[str], at: Where = ()) -> Iterator[tuple[Where, str]]:
    """Braces that were hardly meant so: those that hold no path are handed on as text, and a path that
    starts with none of `names` is null. Where, and why."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from doubts(item, names, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from doubts(item, names, (*at, index))
    elif isinstance(value, str):
        for braces in _BRACES.findall(value):
            place = _PLACE.fullmatch(braces)
            if place is None:
                yield at, f"{braces!r} is no path, and is handed on as text"
            elif (first := place[1].partition(".")[0]) not in names:
                yield at, f"{braces!r} is null: {first!r} is neither input nor a node"
