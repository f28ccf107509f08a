"""How a value that somebody handed in is quoted in a message.

It may be anything: a number of ten thousand digits, which Python does not write out, a list inside itself a hundred
thousand times, one that holds the same list twice forty times over, an object whose text raises. The message has to be
written all the same, be of a length, and hold nothing of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

# More than any number that Python writes out.
NUMBER_CHARS_MAX: Final = 4_400
_DEPTH_MAX: Final = 80
_NESTS: Final = (list, tuple, dict, set, frozenset)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")


def shown(value: object, chars: int = 40) -> str:
    """What Python would show of a value, cut; its kind alone where it can show nothing. No more of it is looked at
    than is shown."""
    text = ""
    for part in _parts(value, 0):
        text += part
        if len(text) >= chars:
            break
    return text[:chars]


def kind_of(value: object) -> str:
    """`an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _parts(value: object, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        yield "…"
    elif type(value) is list:
        yield from _listed("[", (_parts(item, depth + 1) for item in value), "]")
    elif type(value) is tuple and len(value) != 1:
        yield from _listed("(", (_parts(item, depth + 1) for item in value), ")")
    elif type(value) is dict:
        yield from _listed("{", (_pair(key, item, depth + 1) for key, item in value.items()), "}")
    elif isinstance(value, _NESTS):
        yield kind_of(value)
    else:
        try:
            yield _ADDRESS.sub("", repr(value))
        except Exception:  # a number that is too long, or somebody's own code
            yield kind_of(value)


def _listed(begin: str, items: Iterable[Iterator[str]], end: str) -> Iterator[str]:
    yield begin
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item
    yield end


def _pair(key: object, item: object, depth: int) -> Iterator[str]:
    yield from _parts(key, depth)
    yield ": "
    yield from _parts(item, depth)
