"""What one rendering of a template may make and how much it may do.

Definitions come from people, and guards are evaluated where every run of a store waits its turn, so no
short template may take long or make much. What can grow is checked before it is made (`check_size`,
`Extent`); what repeats is counted (`Budget`): turns of loops, calls, items that filters go over,
characters that are made or compared. Nothing reads a clock, so the same template gives the same on replay.

A value that holds another one many times is small in memory and huge when it is written out or compared
(`[[[1]*1000]*1000]*1000`), so values are measured as they would be written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import msgspec

from .absent import Wanted
from .edition import is_first
from .handles import Handle, bare

T = TypeVar("T")

OUTPUT_CHARS_MAX: Final = 16 * 1024 * 1024
# What all templates of one place make together: the arguments of an arc, the fields of a task.
TOGETHER_CHARS_MAX: Final = 4 * OUTPUT_CHARS_MAX
ITEMS_MAX: Final = 10_000_000
# What a call of a macro, or of a loop by itself, is counted as: each may hold many others.
CALL_COST: Final = 64
# What an item of `map`, `select` and their like is counted as: each has a filter or a test called for it.
EACH_COST: Final = 8
# So many characters of a value that is made or searched are counted as one turn.
CHARS_PER_TURN: Final = 16
# So many items of a value that is compared are counted as one turn.
ITEMS_PER_TURN: Final = 4


class Misuse(Exception):
    """A template does what templates must not do, or cannot. The words are ours, so they may be recorded."""


class Extent:
    """How large values are when written out: items and characters, each counted as often as it occurs.
    What was measured is remembered by identity, so sharing costs nothing; templates cannot change values."""

    __slots__ = ("_known", "_texts", "distinct")

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int, int]] = {}
        self._texts: dict[int, str | bytes] = {}
        # Items and characters that there are in memory.
        self.distinct = 0

    def of(self, value: Any) -> tuple[int, int]:
        kind = type(value)
        if kind is str or kind is bytes:
            # A short text costs about as much wherever it stands.
            if len(value) <= CHARS_PER_TURN or id(value) not in self._texts:
                self.distinct += len(value)
                self._texts[id(value)] = value
            return 0, len(value)
        if kind is Handle:
            return self.of(value.payload())
        if kind is range:
            return len(value), 0
        if kind is not list and kind is not tuple and kind is not dict:
            return 0, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        items, chars = len(value), 0
        self.distinct += items
        for item in value.values() if kind is dict else value:
            if type(item) in _SMALL:
                continue
            inner, text = self.of(item)
            items += inner
            chars += text
        if kind is dict:
            keys = sum(len(key) for key in value if type(key) is str)
            chars += keys
            self.distinct += keys
        self._known[id(value)] = (value, items, chars)
        return items, chars

    def size(self, value: object) -> int:
        items, chars = self.of(value)
        return items + chars

    def turns(self, value: object) -> int:
        items, chars = self.of(value)
        return items // ITEMS_PER_TURN + chars // CHARS_PER_TURN


_SMALL: Final = frozenset({int, float, bool, type(None)})


class SizeBudget(msgspec.Struct):
    """Counts the turns of everything that repeats in one rendering."""

    left: int = ITEMS_MAX
    _extent: Extent | None = None

    @property
    def extent(self) -> Extent:
        """Few templates have anything measured."""
        if self._extent is None:
            self._extent = Extent()
        return self._extent

    def spend(self, turns: int) -> None:
        self.left -= turns
        if self.left < 0:
            raise Misuse(f"a template takes more than {ITEMS_MAX:,} turns")

    def count(self, items: Iterable[T], weight: int = 1) -> Iterator[T]:
        for item in items:
            self.spend(weight)
            yield item

    def pay(self, *values: object) -> None:
        """For work that goes through the whole of values: they are compared, sorted, written out."""
        for value in values:
            if type(value) not in _SMALL:
                self.spend(self.extent.turns(value))

    def made(self, value: T) -> T:
        """A value that was just made, item by item or character by character."""
        if isinstance(value, str | bytes):
            self.spend(len(value) // CHARS_PER_TURN)
        elif isinstance(value, list | tuple):
            self.spend(len(value) // ITEMS_PER_TURN)
        return value


# Set for the length of one rendering.
budget: ContextVar[SizeBudget] = ContextVar("treadle_playbook_budget")


def purse() -> SizeBudget:
    """The budget of the rendering at hand; outside one, of this one operation."""
    return budget.get(None) or SizeBudget()


def check_size(size: int) -> None:
    if size > OUTPUT_CHARS_MAX:
        raise Misuse(f"a template makes a value larger than {OUTPUT_CHARS_MAX:,} characters or items")


def check_repeated(value: object) -> None:
    """Refuses a value that is much larger written out than it is: it holds others many times."""
    extent = Extent()
    repeated = extent.size(value) - extent.distinct
    check_size(repeated)
    share(repeated)


class Tally(msgspec.Struct):
    """What the templates of one tree of values may still make together; and who is asked where one of them names what
    is not there, if they are arguments."""

    asking: Wanted | None = None
    left: int = TOGETHER_CHARS_MAX


# Set while the templates of one tree are rendered (the arguments of an arc, the fields of a task).
together: ContextVar[Tally] = ContextVar("treadle_playbook_together")


def share(size: int) -> None:
    """Counts what one template has made against what all of its tree may make."""
    tally = together.get(None)
    if tally is None or is_first():
        return
    tally.left -= size
    if tally.left < 0:
        raise Misuse(f"the templates here make more than {TOGETHER_CHARS_MAX:,} characters or items together")


def count(items: Iterable[T], weight: int = 1) -> Iterator[T]:
    """The items of a `{% for %}`, each counted with what is done for it."""
    return budget.get().count(items, 1 if is_first() else weight)


def passed(weight: int) -> None:
    """The body of a macro, or of a loop that calls itself, was entered."""
    if not is_first():
        purse().spend(weight)


def searched(items: object) -> Any:
    """What stands right of an `in`, with the search in it counted."""
    found = bare(items)
    if isinstance(found, str | bytes | list | tuple) and (spending := budget.get(None)) is not None:
        spending.spend(1 + len(found) // CHARS_PER_TURN)
        if not is_first():
            spending.pay(found)
    return found


def sliced(value: object) -> Any:
    """What a slice is taken of."""
    found = bare(value)
    return found if is_first() else purse().made(found)


def check_times(value: object, count: int) -> None:
    """Refuses to repeat a value so often that it would be too large written out."""
    if isinstance(value, str | bytes | list | tuple):
        check_size(len(value) * max(count, 0))
        if count > 1 and not is_first():
            check_size(purse().extent.size(value) * (count - 1))
