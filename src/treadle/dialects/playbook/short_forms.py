"""Templates that are read without Jinja, which takes 25 ms to load: most of the time to a playbook's first result.

Three forms, in plain words with blanks between them: a name with its keys (`{{ workload.url }}`), what it is otherwise
(`{{ args.page | default(1) }}`), and comparisons (`{{ event.name == 'step.done' and ctx.n < workload.most }}`). Whatever
is not plainly one of them, or is no template at all, is left to Jinja, which also says what is wrong with it. A test reads
random texts both ways and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from .closures import Shortcut, both, chained, compared, constant, defaulted, either
from .operations import SIGNS

# A name a template reads, and the first key below it: ("ctx", "page"), ("workload", None).
Use = tuple[str, str | None]
Path = tuple[str, ...]

_OPERATORS: Final = {sign: name for name, sign in SIGNS.items()}
_WORDS: Final[dict[str, Any]] = {
    "true": True, "True": True, "false": False, "False": False, "none": None, "None": None,
}  # fmt: skip
# Names that stand for functions, and those of them that make objects without a value.
OBJECTS: Final = frozenset({"cycler", "joiner", "namespace"})
FUNCTIONS: Final = OBJECTS | {"range", "dict"}
# First words that are no name of a value, or not only that.
_NO_NAMES: Final = FUNCTIONS | _WORDS.keys() | {"and", "or", "not", "in", "is", "if", "else", "self"}
_METHODS: Final = frozenset(name for name in dir(dict) if not name.startswith("_"))
_DIGITS_MAX: Final = 18
# No text of this length has so many parts that Jinja would have to count what it does (`shortcuts.NODES_MAX`).
_CHARS_MAX: Final = 200


class Reading(msgspec.Struct, frozen=True):
    """What is known of a template once it is read. `native` tells whether it is a single expression."""

    native: bool
    # ("workload", "items") for {{ workload.items }}; None for anything but a plain path.
    path: Path | None
    # Whether it only names something, or says what is meant otherwise: nothing in it needs to be counted.
    names_only: bool
    names: tuple[str, ...]
    uses: tuple[Use, ...]
    chains: tuple[Path, ...]
    fast: Shortcut | None
    # Where there is no shortcut: what Jinja made of it.
    slow: Callable[[dict[str, object]], object] | None = None


def read(text: str) -> Reading | None:
    """None where it takes Jinja to read it."""
    text = text.strip()
    if not (text.startswith("{{") and text.endswith("}}") and 4 < len(text) <= _CHARS_MAX and text.isascii()):
        return None
    match words := text[2:-2].split():
        case [name]:
            return _reading([path], chained(path), path=path) if (path := _path(name)) else None
        case [name, "|", call] if call.startswith("default(") and call.endswith(")"):
            otherwise = _constant(call[8:-1])
            if otherwise is None or (path := _path(name)) is None:
                return None
            return _reading([path], defaulted(path, otherwise[0]), excused=True)
    paths: list[Path] = []
    condition = _condition(words, paths)
    return None if condition is None else _reading(paths, condition)


def _condition(words: list[str], paths: list[Path]) -> Shortcut | None:
    """Comparisons and names with `and` and `or` between them; the names are added to `paths`."""
    for word, join in (("or", either), ("and", both)):
        if word in words:
            at = len(words) - 1 - words[::-1].index(word)
            first, last = _condition(words[:at], paths), _condition(words[at + 1 :], paths)
            return None if first is None or last is None else join(first, last)
    match words:
        # What names nothing, Jinja works out beforehand, and what that makes superfluous is not asked for.
        case [only] if _path(only):
            return _operand(only, paths)
        case [left, sign, right] if sign in _OPERATORS and (_path(left) or _path(right)):
            a, b = _operand(left, paths), _operand(right, paths)
            return None if a is None or b is None else compared(_OPERATORS[sign], a, b)
    return None


def _operand(word: str, paths: list[Path]) -> Shortcut | None:
    if (value := _constant(word)) is not None:
        return constant(value[0])
    if (path := _path(word)) is None:
        return None
    paths.append(path)
    return chained(path)


def _reading(
    paths: list[Path], fast: Shortcut, *, path: Path | None = None, excused: bool = False
) -> Reading:
    return Reading(
        native=True,
        path=path,
        names_only=excused or path is not None,
        names=tuple(sorted({root for root, *_ in paths})),
        uses=tuple((root, key_of(keys[0]) if keys else None) for root, *keys in paths),
        chains=() if excused else tuple(dict.fromkeys(paths)),
        fast=fast,
    )


def key_of(key: str) -> str | None:
    """`ctx.get('x')` and `workload.items()` may read anything."""
    return None if key in _METHODS else key


def _path(word: str) -> Path | None:
    parts = tuple(word.split("."))
    return parts if parts[0] not in _NO_NAMES and all(map(str.isidentifier, parts)) else None


def _constant(word: str) -> tuple[Any] | None:
    """A number, a short text or a truth, in a tuple."""
    if word in _WORDS:
        return (_WORDS[word],)
    if word.isdecimal() and len(word) <= _DIGITS_MAX and (word[0] != "0" or word == "0"):
        return (int(word),)
    quote, content = word[:1], word[1:-1]
    if quote in ("'", '"') and len(word) > 1 and word[-1] == quote:
        return None if quote in content or "\\" in content else (content,)
    return None
