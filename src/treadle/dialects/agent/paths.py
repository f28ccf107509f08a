"""Paths into a context, and the checks that `requires` and value evaluators make with them.

Grammar: `.`-separated identifiers, each with an optional `[*]`, after an optional `all:` (the
default) or `any:`. We also take `-` inside an identifier, because node ids are written with it
everywhere. A missing segment, a non-array under `[*]`, or null in the middle: the path does not
resolve, and the check fails. `all:` over an empty array holds, `any:` does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.patterns import Pattern, PatternBudget, TooMuchWork, compile_pattern

_SEGMENT: Final = re.compile(r"([a-zA-Z_][a-zA-Z0-9_-]*)(\[\*\])?\Z")


class PathError(ValueError):
    """A path that the grammar does not know."""


@dataclass(frozen=True, slots=True)
class Path:
    text: str
    any: bool
    segments: tuple[tuple[str, bool], ...]

    @staticmethod
    def parse(text: str) -> Path:
        rest, any_ = text, False
        if text.startswith(("all:", "any:")):
            rest, any_ = text[4:], text.startswith("any:")
        segments = []
        for part in rest.split("."):
            match = _SEGMENT.match(part)
            if match is None:
                raise PathError(
                    f"{text!r} has a malformed segment {part!r}; write names separated by dots, "
                    "each with an optional [*]"
                )
            segments.append((match[1], match[2] is not None))
        return Path(text, any_, tuple(segments))

    def resolve(self, root: Value) -> list[Value] | None:
        """The values at this path, or None if it does not resolve."""
        values = [root]
        for name, spread in self.segments:
            found: list[Value] = []
            for value in values:
                if not isinstance(value, dict) or name not in value:
                    return None
                item = value[name]
                if not spread:
                    found.append(item)
                elif isinstance(item, list):
                    found.extend(item)
                else:
                    return None
            values = found
        return values

    def holds(self, root: Value, check: Callable[[Value], bool]) -> bool | None:
        """Whether all (or any) of the values pass; None if the path does not resolve."""
        values = self.resolve(root)
        if values is None:
            return None
        return any(map(check, values)) if self.any else all(map(check, values))


@dataclass(frozen=True, slots=True)
class Match:
    """One entry of `output_matches`: exactly one of equals, in, matches."""

    path: Path
    op: str
    operand: Value
    pattern: Pattern | None = None

    @staticmethod
    def of(spec: dict[str, Value]) -> Match:
        op = next(name for name in ("equals", "in", "matches") if name in spec)
        pattern = compile_pattern(spec["matches"]) if op == "matches" else None
        return Match(Path.parse(spec["path"]), op, spec[op], pattern)

    def passes(self, value: Value, budget: PatternBudget | None = None) -> bool:
        if self.op == "equals":
            return same(value, self.operand)
        if self.op == "in":
            return any(same(value, item) for item in self.operand)
        assert self.pattern is not None
        return self.pattern.found_in(js_text(value), budget)

    def problem(self, root: Value, *, old: bool = False) -> str | None:
        """Why this entry does not hold, or None. One whose pattern takes too much work does not."""
        budget = PatternBudget(first=old)
        try:
            held = self.path.holds(root, lambda value: self.passes(value, budget))
        except TooMuchWork as error:
            return f"{self.path.text} {self.op} does not hold: {error}"
        if held is None:
            return f"{self.path.text} is missing"
        if held:
            return None
        got = self.path.resolve(root) or []
        shown = got[0] if len(got) == 1 else got
        return f"{self.path.text} {self.op} {js_text(self.operand)!r} does not hold for {brief(shown)}"


def problems_of(
    required: tuple[Path, ...], matches: tuple[Match, ...], root: Value, *, old: bool = False
) -> list[str]:
    """Everything in which a value falls short, in the order it was declared."""
    found = []
    for path in required:
        held = path.holds(root, lambda value: value is not None)
        if not held:
            found.append(f"{path.text} is missing")
    for match in matches:
        problem = match.problem(root, old=old)
        if problem is not None:
            found.append(problem)
    return found


def same(a: Value, b: Value) -> bool:
    """Strict deep equality: 1 and 1.0 are one number, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def js_text(value: Value) -> str:
    """A value as JavaScript's String() writes it: `matches` is defined on that."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _js_number(value)
        case list():
            return ",".join("" if item is None else js_text(item) for item in value)
        case dict():
            return "[object Object]"
        case _:
            return str(value)


def _js_number(value: float) -> str:
    """The shortest digits that mean the number, as both languages have them, with exponents only
    where JavaScript writes them."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        text = format(Decimal(repr(abs(value))), "f").removesuffix(".0")
        return f"-{text}" if value < 0 else text
    digits, _, exponent = repr(value).partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent):+d}"


def brief(value: Value, limit: int = 120) -> str:
    """A value in a message: short, on one line."""
    try:
        text = repr(value) if not isinstance(value, str) else f"'{value}'"
    except (ValueError, RecursionError):  # Python writes no number of that many digits
        text = f"such a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"
