"""A column of many rows as one parameter: an array in the server's own bytes.

The driver finds the type of each value of a list anew and calls a function of its own for it, which cost more than all
else that a commit of many records does on our side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Any, Final

from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD: Final = Struct(">iiIii")
_LENGTH: Final = Struct(">i").pack
_SMALL: Final = Struct(">ii").pack
_LARGE: Final = Struct(">iq").pack
_NULL: Final = b"\xff\xff\xff\xff"


def _bytes(value: bytes) -> bytes:
    return _LENGTH(len(value)) + value


def _text(value: str) -> bytes:
    return _bytes(value.encode())


# The number of each type on every server, and a value as the server takes it.
_TYPES: Final[dict[str, tuple[int, Callable[[Any], bytes]]]] = {
    "bytea": (17, _bytes),
    "bigint": (20, lambda value: _LARGE(8, value)),
    "integer": (23, lambda value: _SMALL(4, value)),
    "text": (25, _text),
}


class Column:
    """The values of one column, in the order of their rows."""

    __slots__ = ("data",)

    def __init__(self, type: str, values: Sequence[Any]) -> None:
        number, spelled = _TYPES[type]
        head = _HEAD.pack(1, 1, number, len(values), 1)
        try:
            cells = [_NULL if value is None else spelled(value) for value in values]
        except error as refused:
            raise OverflowError(str(refused)) from None
        self.data = head + b"".join(cells)


class ColumnDumper(Dumper):
    """Its type is told by the cast in the statement."""

    format = Format.BINARY

    def dump(self, obj: Column) -> bytes:
        return obj.data
