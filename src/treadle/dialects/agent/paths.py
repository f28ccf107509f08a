"""Paths into a context, and the checks that `requires` and value evaluators make with them.

Grammar: `.`-separated identifiers, each with an optional `[*]`, after an optional `all:` (the
default) or `any:`. We also take `-` inside an identifier, because node ids are written with it
everywhere. A missing segment, a non-array under `[*]`, or null in the middle: the path does not
resolve, and the check fails. `all:` over an empty array holds, `any:` does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from treadle.kernel.values import Value

_SEGMENT: Final = re.compile(r"([a-zA-Z_][a-zA-Z0-9_-]*)(\[\*\])?\Z")
_NAMED_GROUP: Final = re.compile(r"\(\?<(?![=!])")


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
    pattern: re.Pattern[str] | None = None

    @staticmethod
    def of(spec: dict[str, Any]) -> Match:
        op = next(name for name in ("equals", "in", "matches") if name in spec)
        pattern = compile_js(spec["matches"]) if op == "matches" else None
        return Match(Path.parse(spec["path"]), op, spec[op], pattern)

    def passes(self, value: Value) -> bool:
        if self.op == "equals":
            return same(value, self.operand)
        if self.op == "in":
            return any(same(value, item) for item in self.operand)
        assert self.pattern is not None
        return self.pattern.search(js_text(value)) is not None

    def problem(self, root: Value) -> str | None:
        """Why this entry does not hold, or None."""
        held = self.path.holds(root, self.passes)
        if held is None:
            return f"{self.path.text} is missing"
        if held:
            return None
        got = self.path.resolve(root) or []
        shown = got[0] if len(got) == 1 else got
        return f"{self.path.text} {self.op} {js_text(self.operand)!r} does not hold for {brief(shown)}"


def problems_of(required: tuple[Path, ...], matches: tuple[Match, ...], root: Value) -> list[str]:
    """Everything in which a value falls short, in the order it was declared."""
    found = []
    for path in required:
        held = path.holds(root, lambda value: value is not None)
        if not held:
            found.append(f"{path.text} is missing")
    for match in matches:
        problem = match.problem(root)
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
        case float() if value.is_integer() and abs(value) < 1e21:
            return str(int(value))
        case list():
            return ",".join("" if item is None else js_text(item) for item in value)
        case dict():
            return "[object Object]"
        case _:
            return str(value)


def brief(value: Value, limit: int = 120) -> str:
    """A value in a message: short, on one line."""
    try:
        text = repr(value) if not isinstance(value, str) else f"'{value}'"
    except (ValueError, RecursionError):  # Python writes no number of that many digits
        text = f"such a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def compile_js(source: str) -> re.Pattern[str]:
    """A JavaScript regular expression without flags. Python's differs where it matters to us in
    `(?<name>` and `\\k<name>`, in `$` before a final newline, in `[^]`, and in `\\d \\w` beyond ASCII."""
    out, in_class, index = [], False, 0
    text = _NAMED_GROUP.sub("(?P<", source)
    while index < len(text):
        char = text[index]
        if text.startswith("\\k<", index) and (end := text.find(">", index)) > 0:
            out.append(f"(?P={text[index + 3 : end]})")
            index = end + 1
            continue
        if char == "\\" and index + 1 < len(text):
            out.append(text[index : index + 2])
            index += 2
            continue
        if text.startswith("[^]", index) and not in_class:
            out.append(r"[\s\S]")
            index += 3
            continue
        if char == "[":
            out.append("\\[" if in_class else "[")
            in_class = True
        elif char == "$" and not in_class:
            out.append(r"\Z")
        else:
            in_class = in_class and char != "]"
            out.append(char)
        index += 1
    return re.compile("".join(out), re.ASCII)
