"""Regular expressions that authors, models and servers write, matched in bounded work.

Python's `re` may take time without end for a short pattern and a short text, on the core's thread, and
again at each replay. So nothing that others wrote is matched with it. A pattern is read as JavaScript
reads it (`pattern_syntax`), and searched for by RE2, in time that grows with the text alone. What RE2
cannot express, look-around, `\\B`, references back and counts above 1000, is left to `pattern_search`, which
counts its steps. Whether a search is given up is decided by pattern and text, never by a clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

from .pattern_search import OutOfSteps, PatternProgram
from .pattern_syntax import (
    LAST,
    Alternatives,
    Chain,
    Chars,
    Group,
    Node,
    PatternError,
    PatternTree,
    Repetition,
    ZeroWidth,
    complement,
    parse,
)

__all__ = ["Pattern", "PatternBudget", "PatternError", "TooMuchWork", "compile_pattern"]

STEPS_MAX: Final = 200_000
# RE2's work: the size of the pattern times bytes of the text, at most some 15 ns each.
PRODUCT_MAX: Final = 2**29
# About how many instructions a class of Unicode takes, and a range beyond ASCII.
_PROPERTY_SIZE: Final = 800
_RANGE_SIZE: Final = 8
_SURROGATES: Final = (0xD800, 0xDFFF)
_OPTIONS: Final = re2.Options()
_OPTIONS.never_capture = True
_OPTIONS.log_errors = False


class TooMuchWork(Exception):
    """A search that was given up, which is no answer: neither found nor not found."""


class PatternBudget:
    """What all the searches of one check may cost together, so that many texts cost no more than one.
    `first`: as 0.1.0 counted, whose runs may have decided by it: by the instructions RE2 needed."""

    __slots__ = ("first", "product", "steps")

    def __init__(self, *, first: bool = False) -> None:
        self.first = first
        self.steps = STEPS_MAX
        self.product = PRODUCT_MAX


class Pattern:
    """A compiled pattern. The same for all who ask for the same source."""

    __slots__ = ("_linear", "_program", "size", "source")

    def __init__(self, source: str, tree: PatternTree) -> None:
        self.source = source
        self._linear: Any = _linear(tree.root)
        self._program = PatternProgram(tree) if self._linear is None else None
        # By the pattern alone: how many instructions RE2 makes of it is another in each of its versions.
        self.size = _size(tree.root)

    def found_in(self, text: str, budget: PatternBudget | None = None) -> bool:
        """Whether the pattern occurs anywhere in a text. Raises TooMuchWork."""
        budget = budget or PatternBudget()
        if self._program is None:
            data = text.encode("utf-8", "replace")
            size = self._linear.programsize if budget.first else self.size
            budget.product -= size * (len(data) + 1)
            if budget.product < 0:
                raise self._too_much(text)
            return self._linear.search(data) is not None
        try:
            found, budget.steps = self._program.search(text, budget.steps)
        except OutOfSteps:
            budget.steps = 0
            raise self._too_much(text) from None
        return found

    def _too_much(self, text: str) -> TooMuchWork:
        shown = self.source if len(self.source) <= 80 else self.source[:79] + "…"
        return TooMuchWork(
            f"matching /{shown}/ was given up after too many steps, in a text of {len(text)} characters; "
            "write a simpler pattern, or check shorter texts"
        )


@lru_cache(maxsize=1024)
def compile_pattern(source: str, *, schema: bool = False) -> Pattern:
    """A JavaScript regular expression without flags; with `schema`, as JSON Schemas have them.
    Raises PatternError."""
    return Pattern(source, parse(source, schema=schema))


class _Beyond(Exception):
    """RE2 has nothing like it."""


def _linear(root: Node) -> Any:
    """RE2's form of a pattern; None for what is beyond it, such as a count above 1000."""
    try:
        return re2.compile(_written(root), options=_OPTIONS)
    except (re2.error, _Beyond):
        return None


def _size(node: Node) -> int:
    """About how many instructions a search has to follow, at least one."""
    match node:
        case Chars(ranges, negated, fold, properties):
            wide = sum(_RANGE_SIZE if high > 0x7F else 1 for _, high in ranges)
            wide += _RANGE_SIZE if negated else 0
            return max(1, (wide + _PROPERTY_SIZE * len(properties)) * (2 if fold else 1))
        case Chain(items):
            return sum(map(_size, items)) or 1
        case Alternatives(options):
            return sum(map(_size, options)) + len(options)
        case Group(body, _):
            return _size(body)
        case Repetition(body, least, most, _, _):
            return (_size(body) + 1) * max(least + 1 if most is None else most, 1)
    return 1


def _written(node: Node) -> str:
    match node:
        case Chars():
            return _written_chars(node)
        case ZeroWidth("B"):
            raise _Beyond  # it has one, but finds it between the bytes of a character, too
        case ZeroWidth(kind, multiline):
            if not multiline:
                return {"^": r"\A", "$": r"\z"}.get(kind, "\\" + kind)
            return "(?m:^)" if kind == "^" else "(?m:$)"
        case Chain(items):
            return "".join(map(_written, items))
        case Alternatives(options):
            return f"(?:{'|'.join(map(_written, options))})"
        case Group(body, _):
            return f"(?:{_written(body)})"
        case Repetition(body, least, most, _, _):
            return f"(?:{_written(body)}){{{least},{'' if most is None else most}}}"
    raise _Beyond


def _written_chars(node: Chars) -> str:
    # Text has no surrogates, and RE2 would look for their bytes.
    ranges = complement((*complement(node.ranges), _SURROGATES))
    inside = "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in ranges)
    inside += "".join(f"\\{'P' if negated else 'p'}{{{name}}}" for name, negated in node.properties)
    if not inside:
        return "(?s:.)" if node.negated else f"[^\\x{{0}}-\\x{{{LAST:X}}}]"
    written = f"[{'^' if node.negated else ''}{inside}]"
    return f"(?i:{written})" if node.fold else written
