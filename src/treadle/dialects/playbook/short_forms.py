"""Templates that are read without Jinja, which takes 25 ms to load: most of the time to a playbook's first result.

Three forms, in plain words with blanks between them: a name with its keys (`{{ workload.url }}`), a comparison of two
(`{{ event.result < workload.steps }}`), a name and what it is otherwise (`{{ args.page | default(1) }}`). Whatever is
not plainly one of them, or is not a template at all, is left to Jinja, which also says what is wrong with it. A test
reads random texts both ways and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from .closures import Shortcut, chained, compared, constant, defaulted
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
    if not (text.isascii() and text.startswith("{{") and text.endswith("}}") and len(text) > 4):
        return None
    match text[2:-2].split():
        case [name]:
            return _reading([path], chained(path), path=path) if (path := _path(name)) else None
        case [name, "|", call] if call.startswith("default(") and call.endswith(")"):
            otherwise = _constant(call[8:-1])
            if otherwise is None or (path := _path(name)) is None:
                return None
            return _reading([path], defaulted(path, otherwise[0]), excused=True)
        case [left, sign, right] if sign in _OPERATORS:
            made, paths = [], []
            for operand in (left, right):
                if (value := _constant(operand)) is not None:
                    made.append(constant(value[0]))
                elif (path := _path(operand)) is not None:
                    made.append(chained(path))
                    paths.append(path)
                else:
                    return None
            return _reading(paths, compared(_OPERATORS[sign], *made))
    return None


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
