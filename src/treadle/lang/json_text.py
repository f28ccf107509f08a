"""JSON as text: written so that every value of ours has a form, read so that nothing is taken for something else."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

DEPTH_MAX: Final = 100


class NotJson(ValueError):
    """The text is not the JSON that it should be; the message says why."""


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON text. Bytes, which JSON lacks, become `{"$bytes": base64}`."""
    if indent is None:
        return _WRITER.encode(value)
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


def from_json(text: bytes) -> Any:
    """The value of a JSON text from outside. A key that stands twice, NaN, a number beyond a double and nesting
    deeper than 100 are refused: another reader would take them for something else."""
    try:
        value = _READER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise NotJson("the body is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise NotJson(f"line {error.lineno}, column {error.colno} is not JSON") from error
    except RecursionError as error:
        raise NotJson(f"it is nested deeper than {DEPTH_MAX}") from error
    _check_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # `add` gives None, which is what is wanted
        raise NotJson(f"the key {twice!r} stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise NotJson(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotJson(f"{digits[:40]} is beyond what a number can hold")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**64:
        raise NotJson(f"{digits[:40]} is beyond what a number can hold")
    return value


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for container in level
            for item in (
                container.values()
                if isinstance(container, dict)
                else container
                if isinstance(container, list)
                else ()
            )
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise NotJson(f"it is nested deeper than {DEPTH_MAX}")


# Made once: each would cost as much as a small text.
_WRITER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
_READER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite, parse_int=_bounded
)
