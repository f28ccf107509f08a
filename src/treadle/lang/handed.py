"""What somebody's own code hands in: the one value that may hold more than it looks.

In memory a value may hold one part many times: forty lists, each of which holds the one before it twice, stand for more
than any machine has room for, and YAML with aliases makes them of a few lines. Written out each part is there by
itself. What is absurdly larger written out than it is in memory is refused before anybody tries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from treadle.kernel import values
from treadle.kernel.errors import ValueRefused
from treadle.kernel.limits import INT_MAX, WRITTEN_BYTES_MIN, WRITTEN_TIMES_MAX
from treadle.kernel.values import NESTS, PART_BYTES, Nest, Value, is_modest, parts

_FLAT = frozenset((str, bytes, int, float, bool, type(None)))


class _Place(msgspec.Struct):
    """Where the walk is inside a part, and what it has counted there."""

    whole: Nest
    rest: Iterator[Any]
    size: int


def from_caller(value: object) -> Value:
    """A plain copy of what a caller hands in, in proportion to it, and no deeper than values may be."""
    return copied_from_caller(value)[0]


def copied_from_caller(value: object) -> tuple[Value, bytes]:
    """`from_caller`, and the canonical bytes of what it gives."""
    if _is_flat(value):
        return values.copied(value)  # it is not deep either
    _check_nested(value)
    return values.copied_from_caller(value)


def check_written(value: object) -> None:
    """Refuses a value that holds the same parts again and again, beyond all measure. Asked where somebody's own code
    hands something in; what was read from bytes holds nothing twice."""
    if not _is_flat(value):
        _check_nested(value)


def _check_nested(value: object) -> None:
    """`check_written`, of what is not flat."""
    if not isinstance(value, NESTS) or is_modest(value):
        return
    written, distinct = _sizes(value)
    if written > WRITTEN_BYTES_MIN and written > WRITTEN_TIMES_MAX * distinct:
        raise ValueRefused(
            f"written out the value takes {written:,} bytes, because it holds the same parts again and again; "
            "hand over each part once",
            details={"bytes": min(written, INT_MAX)},
        )


def _is_flat(value: Any) -> bool:
    """Whether a value holds nothing but a few texts and numbers: were they all the same one, it would not be so many
    times larger written out. Most are like this, and it is quickly seen."""
    if type(value) not in (dict, list) or len(value) > WRITTEN_TIMES_MAX:
        return False  # a class of somebody's own may say anything of its length
    return _FLAT.issuperset(map(type, value.values() if isinstance(value, dict) else value))


def _sizes(value: Nest) -> tuple[int, int]:
    """What a value takes written out, and what its parts take if each is counted once. Goes into each part once;
    one that is inside itself counts for nothing there, and is refused by whoever writes it."""
    sizes: dict[int, int] = {id(value): 0}
    texts: set[int] = set()
    distinct = 0
    found = parts(value)
    way: list[_Place] = [_Place(value, iter(found), PART_BYTES * len(found))]
    while way:
        here = way[-1]
        for part in here.rest:
            if isinstance(part, NESTS):
                known = sizes.get(id(part))
                if known is None:
                    sizes[id(part)] = 0
                    found = parts(part)
                    way.append(_Place(part, iter(found), PART_BYTES * len(found)))
                    break
                here.size += known
            elif isinstance(part, str | bytes):
                here.size += len(part)
                if id(part) not in texts:
                    texts.add(id(part))
                    distinct += len(part)
        else:
            way.pop()
            sizes[id(here.whole)] = here.size
            distinct += PART_BYTES * (1 + len(parts(here.whole)))
            if way:
                way[-1].size += here.size
    return sizes[id(value)], distinct
