"""Values that are too large for the journal: references, and addresses of what is inside them.

A reference stands for a payload in the blob store. With a `path` it is an address: it stands for what
is found there. A template that passes a large part of a payload on gives its address, so nothing is
copied and no record grows. Whatever looks into a value gets it at hand and never sees either.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value

AtHand = Callable[[Value], Value]


def part_of(reference: dict[str, Value], *keys: str | int) -> dict[str, Value]:
    """The address of what stands at `keys` in the payload of a reference (or of an address)."""
    return {**reference, "path": [*(reference.get("path") or ()), *keys]}


def is_large(value: Value) -> bool:
    """Whether a value is better passed on by its address. Looks no further than the bound."""
    total, queue = 0, [value]
    while queue:
        item = queue.pop()
        total += 9
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, list):
            queue.extend(item)
        elif isinstance(item, dict):
            total += sum(map(len, item))
            queue.extend(item.values())
        if total + len(queue) > PAYLOAD_INLINE_BYTES_MAX:
            return True
    return False


def same_payload(left: Value, right: Value) -> bool:
    """Whether both are references to the very same bytes. They may still be equal if not."""
    return (
        is_reference(left)
        and is_reference(right)
        and left["checksum"] == right["checksum"]
        and (left.get("path") or []) == (right.get("path") or [])
    )
