"""Sets as steps see them: walked over in one order, in every process.

Python orders a set by hashes, and those of text differ from process to process: a step that joins a set's
words would decide differently after a restart, and its cell could not be loaded. So the sets in states,
events and receipts are sets like any other whose order is that of their items, and so are those made of
them (`a | b`). A set that a step writes itself (`{...}`, `set(...)`) is Python's own: sort it before its
order matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, TypeVar

# Only the class: a UUID is a value here, never drawn.
from uuid import UUID

T = TypeVar("T")

_ORDERED: Final = (str, int, float, bytes, Decimal, datetime, timedelta, UUID)

_MAKING: Final = (
    *(f"__{side}{name}__" for name in ("or", "and", "sub", "xor") for side in ("", "r")),
    *("union", "intersection", "difference", "symmetric_difference", "copy"),
)


def _order(item: object) -> tuple[str, object]:
    return type(item).__name__, item if isinstance(item, _ORDERED) else repr(item)


class SteadySet(set[T]):
    def __iter__(self) -> Iterator[T]:
        return iter(sorted(super().__iter__(), key=_order))

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}" if self else "set()"

    def pop(self) -> T:
        for first in self:
            self.remove(first)
            return first
        raise KeyError("pop from an empty set")


class SteadyFrozenSet(frozenset[T]):
    def __iter__(self) -> Iterator[T]:
        return iter(sorted(super().__iter__(), key=_order))

    def __repr__(self) -> str:
        return f"frozenset({{{', '.join(map(repr, self))}}})" if self else "frozenset()"


def _keep(steady: type, plain: type) -> None:
    """What is made of a steady set is one."""
    for name in _MAKING:

        def made(
            self: object, *others: object, _make: Callable[..., object] = getattr(plain, name)
        ) -> object:
            found = _make(self, *others)
            return found if found is NotImplemented else steady(found)

        setattr(steady, name, made)


_keep(SteadySet, set)
_keep(SteadyFrozenSet, frozenset)
