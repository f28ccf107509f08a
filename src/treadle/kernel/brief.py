"""Errors of a size that a record can take, whatever was quoted in them.

Exceptions like to quote the payload they failed on. An error stands in a receipt, in events and in
the run's own document, so one of a megabyte would be refused as a whole and take the run with it.
What is cut says so, and how long it was; class, code, kind and where are never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .errors import ValueRefused
from .showing import shown
from .values import Value, encode

ERROR_BYTES_MAX: Final = 16 * 1024
# Of a part that is too long, this much is shown.
_SHOWN: Final = 4


def brief(
    error: Mapping[str, Any],
    bytes_max: int = ERROR_BYTES_MAX,
    *,
    clean: Callable[[str], str] = str,
) -> dict[str, Any]:
    """The error itself while it is small, else with its long parts cut. `clean` takes out of a text
    what must not be seen: half a secret would not be recognised as one any more."""
    try:
        if len(encode(error)) <= bytes_max:
            return dict(error)
    except ValueRefused:
        # Whoever made it put something into it that is no value; that is refused elsewhere.
        return dict(error)
    return {key: _part(value, bytes_max // _SHOWN, clean) for key, value in error.items()}


def shaped(error: Mapping[str, Any]) -> dict[str, Any]:
    """An error that somebody else has made, as machines read one: texts are text, and the details a mapping."""
    found = dict(error)
    for name in ("class", "code", "message"):
        if not isinstance(found.get(name, ""), str | None):
            found[name] = shown(found[name])
    if not isinstance(found.get("details", {}), dict | None):
        found["details"] = {"value": found["details"]}
    return found


def _part(value: Value, bytes_max: int, clean: Callable[[str], str]) -> Value:
    if not isinstance(value, str | bytes | list | dict) or (size := len(encode(value))) <= bytes_max:
        return value
    if isinstance(value, str):
        text = clean(value)
        return f"{text[: bytes_max // 4]}… ({len(value):,} characters)"
    return {"truncated": True, "bytes": size}
