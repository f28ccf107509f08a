"""What is wrong with a text that is no YAML, in words for its author.

The parser says which of its rules failed; people want to know what they wrote: a tab, an indentation
that does not fit, a quote or a bracket that is never closed, a colon that needs quotes.
"""

from __future__ import annotations

import msgspec
import yaml


class Mistake(msgspec.Struct, frozen=True):
    message: str
    hint: str
    line: int
    column: int


def explain(error: yaml.MarkedYAMLError, text: str) -> Mistake:
    said = f"{error.context or ''} {error.problem or ''}"
    here = error.problem_mark or error.context_mark
    # Where what is not closed was opened; the parser itself only notices at the end of the file.
    opened = error.context_mark or here
    lines = text.splitlines()
    row = here.line if here else 0
    line = lines[row] if row < len(lines) else ""
    place = (row + 1, (here.column if here else 0) + 1)
    if "quoted scalar" in said:
        at = (opened.line + 1, opened.column + 1) if opened else place
        return Mistake("a quote that is opened here is never closed", "close it, or leave both out", *at)
    if "flow sequence" in said or "flow mapping" in said:
        return _bracket(said, line, opened, place)
    if "\t" in line[: len(line) - len(line.lstrip())]:
        column = line.index("\t") + 1
        return Mistake(
            "a tab is used to indent this line", "YAML is indented with spaces only", place[0], column
        )
    if "cannot start any token" in said:
        return _bad_start(line, place)
    if "mapping values are not allowed" in said:
        return _colon(lines, row, place)
    if "undefined alias" in said:
        return Mistake("the alias that * names is not defined", "quote the text if it begins with *", *place)
    if "could not find expected ':'" in said:
        at = (opened.line + 1, opened.column + 1) if opened else place
        return Mistake("a key without its colon", "write key: value, or indent the line under its key", *at)
    if any(part in said for part in ("block end", "block collection", "block mapping", "expected '-'")):
        return Mistake(
            "the indentation of this line does not fit the lines before it",
            "keys of one mapping begin in one column; so do the dashes of one list",
            *place,
        )
    return Mistake(
        "this line is not valid YAML", "check its indentation, quotes, colons and brackets", *place
    )


def _bracket(said: str, line: str, opened: yaml.Mark | None, place: tuple[int, int]) -> Mistake:
    sign = "[" if "flow sequence" in said else "{"
    at = (opened.line + 1, opened.column + 1) if opened else place
    if place[0] == at[0] and line[place[1] - 1 :].strip():
        return Mistake(
            f"a comma or the end of the {sign} is missing before {line[place[1] - 1 :].strip()[:20]!r}",
            "separate items with commas; quote text that holds , : [ ] { or }",
            *place,
        )
    return Mistake(
        f"a {sign} that is opened here is never closed", f"close it with {']' if sign == '[' else '}'}", *at
    )


def _bad_start(line: str, place: tuple[int, int]) -> Mistake:
    sign = line[place[1] - 1 : place[1]]
    return Mistake(
        f"a value cannot begin with {sign!r}", f'quote it: "{line[place[1] - 1 :].strip()[:40]}"', *place
    )


def _colon(lines: list[str], row: int, place: tuple[int, int]) -> Mistake:
    """A second colon in a line, or a line that is indented under a value."""
    line = lines[row] if row < len(lines) else ""
    before = next((one for one in reversed(lines[:row]) if one.strip()), "")
    indented = len(line) - len(line.lstrip()) > len(before) - len(before.lstrip("- "))
    if line[: place[1] - 1].count(": ") == 0 and indented:
        return Mistake(
            "this line is indented deeper than the line before it, which has its value already",
            "give both lines the same indentation",
            *place,
        )
    return Mistake("a colon inside a value", 'quote the whole value: key: "a: b"', *place)
