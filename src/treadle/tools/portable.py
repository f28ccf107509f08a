"""Anything a library hands us, as a value of the data model.

SQL drivers, user functions and inline Python return dates, decimals, tuples, numpy scalars. What
has one obvious plain form gets it here (dates, decimals, uuids become text); what has none is
refused with the path to it, as a `TypeError`: a number that is not finite, half a character, two keys
that become the same text. Nothing is changed in silence.

Standard library only, and no import of Treadle: the inline Python child loads this file by its
path into whatever interpreter the user chose.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from typing import Any

_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1
_DEPTH_MAX = 120

# Modules of the standard library whose values are best read as text. By name: a program that has
# such a value has imported the module, and the others need not.
_TEXT_MODULES = frozenset({"decimal", "uuid", "pathlib", "ipaddress"})


def unreadable(error: Exception) -> str:
    """Why JSON from outside cannot be read; what is nested without end says nothing of ours."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def portable(value: Any, path: str = "$", depth: int = 0) -> Any:
    """The value in plain form. Integers beyond 64 bits become text: they would not survive as numbers,
    and a text is better than a wrong number."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _whole(value, path)
    if value is None or kind is bool or kind is bytes:
        return value
    if kind is int:
        return value if _INT_MIN <= value <= _INT_MAX else str(value)
    if kind is float:
        if math.isfinite(value):
            return value
        raise TypeError(f"{path}: {value} is not a number that can be kept; return null or a text instead")
    if depth > _DEPTH_MAX:
        raise TypeError(f"{path[:200]}: nested deeper than {_DEPTH_MAX} levels")
    if isinstance(value, dict):
        found = {_key(key, path): portable(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        return found if len(found) == len(value) else _same_keys(value, path)
    if isinstance(value, list | tuple):
        return [portable(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _other(value, path, depth)


def _other(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, enum.Enum):
        return portable(value.value, path, depth + 1)
    if isinstance(value, str):
        return _whole(str.__str__(value), path)
    if isinstance(value, int | float):
        return portable(int(value) if isinstance(value, int) else float(value), path, depth + 1)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return _duration(value)
    if _has_text_form(value):
        return str(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, set | frozenset):
        return [portable(item, path, depth + 1) for item in sorted(value, key=repr)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return portable(fields, path, depth + 1)
    if (names := getattr(type(value), "__struct_fields__", None)) is not None:  # msgspec
        return portable({name: getattr(value, name) for name in names}, path, depth + 1)
    for method in ("model_dump", "tolist"):  # pydantic; numpy
        if callable(convert := getattr(value, method, None)) and not isinstance(value, type):
            return portable(convert(), path, depth + 1)
    raise TypeError(
        f"{path}: a {type(value).__module__}.{type(value).__qualname__} has no plain form; "
        "return numbers, text, lists, mappings or bytes"
    )


def _has_text_form(value: Any) -> bool:
    return any(base.__module__ in _TEXT_MODULES for base in type(value).__mro__)


def _key(key: Any, path: str) -> str:
    """Keys as JSON writes them."""
    if isinstance(key, str):
        return _whole(str.__str__(key), path)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float) or _has_text_form(key):
        return str(key)
    if isinstance(key, datetime.datetime | datetime.date | datetime.time):
        return key.isoformat()
    raise TypeError(f"{path}: the key {key!r} is not text")


def _whole(text: str, path: str) -> str:
    """Text that UTF-8 can carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"{path}: the text has half a character (a lone surrogate) at position {error.start}; "
            "decode it with errors='replace', or return bytes"
        ) from None
    return text


def _same_keys(value: dict[Any, Any], path: str) -> Any:
    """Says which keys become one."""
    seen: dict[str, Any] = {}
    for key in value:
        if (text := _key(key, path)) in seen:
            raise TypeError(
                f"{path}: the keys {seen[text]!r} and {key!r} are both written {text!r}; keep one of them"
            )
        seen[text] = key
    raise AssertionError("no two keys are the same")


def _duration(value: datetime.timedelta) -> str:
    """ISO 8601, exact to the microsecond."""
    if value < datetime.timedelta(0):
        return "-" + _duration(-value)
    seconds = f"{value.seconds}.{value.microseconds:06d}".rstrip("0").rstrip(".")
    return f"P{value.days}DT{seconds}S" if value.days else f"PT{seconds}S"
