"""Values that nobody should hand in, for every door that takes any: what they are called says what is odd about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

DEADLINE_S = 60.0
# What must stand in no answer: a trace of the machine, or of a library.
MARKS = (" at 0x", "INTERNAL", "MACHINE_ERROR", "Traceback", "bug in Treadle")


def nested(levels: int, around: Callable[[Any], Any]) -> Any:
    """A value inside itself, so many times over."""
    found: Any = "x"
    for _ in range(levels):
        found = around(found)
    return found


class Mute:
    """An object that does not say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError("nobody tells")

    __str__ = __repr__


def _inside_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


ODD: dict[str, Any] = {
    "half a character": "\ud800",
    "half a character inside": {"a": ["\ud800"]},
    "half a character for a name": {"\ud800": 1},
    "a character of no width": "a\0b",
    "a number above 64 bits": 2**64,
    "a number below 64 bits": -(2**63) - 1,
    "a number that Python does not write out": 10**10_000,
    "a number above all fractions": 10**400,
    "not a number": math.nan,
    "without end": -math.inf,
    "a list without a bottom": nested(100_000, lambda inner: [inner]),
    "deeper than values are": nested(600, lambda inner: {"a": inner}),
    "far more than it looks": nested(60, lambda inner: [inner, inner]),
    "a list inside itself": _inside_itself(),
    "a name that is a number": {1: 2},
    "a name that is an object": {object(): 1},
    "an object": object(),
    "an object that says nothing": Mute(),
    "a set": {1, 2},
    "a class": dict,
    "an exception": ValueError("x"),
    "a generator": (n for n in (1,)),
    "a reference of nobody's": {"kind": "blob", "ref": "x", "checksum": "sha256:" + "0" * 64, "size": 1},
}
