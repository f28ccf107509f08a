"""How several members share the limit of a pool: each hands out no more work than it was given leave for.

Whoever owns the first shard gives leave, and nobody else, by a row for each pool: so the sum of what members may have in
hand is never above the limit. A member says what it keeps (it has stopped to hand out more before it says so) and what
it could do; what others leave is given to it, up to its due. Its due is an even share among those who want more, and
where that does not come out even, those get one more who have been without it for longest. Whoever is above its due begins
nothing new, so that what is in hand when it ends goes to others: nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from treadle.kernel.errors import ValueRefused
from treadle.kernel.values import encode

from .desk import Desk
from .quotas import pool_caps

SHARE: Final = "pool"
# The kind of documents that say who has leave for how much, by pool.
LEAVES: Final = "pool"
# Whoever said nothing for so long is gone: its leave is for others.
GONE_NS: Final = 10_000_000_000
# For so long the odd one stays where it is.
DWELL_NS: Final = 1_000_000_000
# So old a row may get that says nothing new.
FRESH_NS: Final = 1_000_000_000


class Leave(msgspec.Struct):
    """What one member has of a pool."""

    held: int = 0
    wants: int = 0
    at_ns: int = 0
    # Since when it has the odd one, and when it had it last.
    got_ns: int = 0
    had_ns: int = 0


def perform(desk: Desk, asked: dict[str, Any]) -> dict[str, list[int]]:
    """What a member may have in hand of each of these pools, and what is its due. Of one without a limit, nothing."""
    member, asks = _checked(asked)
    caps, now = pool_caps(desk.store), desk.clock.now_ns()
    answer: dict[str, list[int]] = {}
    for pool, (keeps, wants) in asks.items():
        if pool not in caps:
            continue
        before = desk.store.document(LEAVES, pool) or {}
        leaves = {name: msgspec.convert(row, Leave) for name, row in before.items()}
        leaves = {name: leave for name, leave in leaves.items() if 0 <= now - leave.at_ns < GONE_NS}
        due = settle(leaves, member, caps[pool], keeps=keeps, wants=wants, now_ns=now)
        answer[pool] = [leaves[member].held, due]
        value = {name: msgspec.to_builtins(leave) for name, leave in leaves.items() if leave.wants}
        if _says_more(before, value):
            desk.belongs("")
            desk.batch.documents.append((LEAVES, pool, now, encode(value) if value else None))
    return answer


def settle(leaves: dict[str, Leave], member: str, cap: int, *, keeps: int, wants: int, now_ns: int) -> int:
    """Gives a member leave, as far as others leave room, up to its due; that."""
    mine = leaves.setdefault(member, Leave(had_ns=now_ns))
    mine.held, mine.wants, mine.at_ns = keeps, max(keeps, wants), now_ns
    due, even = shares(cap, leaves, now_ns)
    free = cap - sum(leave.held for leave in leaves.values())
    mine.held += max(0, min(free, due[member] - keeps))
    if mine.held > even:
        mine.had_ns = now_ns
        mine.got_ns = mine.got_ns or now_ns
    else:
        mine.got_ns = 0
    return due[member]


def shares(cap: int, leaves: Mapping[str, Leave], now_ns: int) -> tuple[dict[str, int], int]:
    """What is due to each: all that it wants where that is little, else the same as others; and how much that is."""
    open_ = {name: leave.wants for name, leave in leaves.items()}
    due: dict[str, int] = {}
    even = left = cap
    while open_:
        even = left // len(open_)
        modest = {name: wants for name, wants in open_.items() if wants <= even}
        if not modest:
            break
        due |= modest
        left -= sum(modest.values())
        open_ = {name: wants for name, wants in open_.items() if name not in modest}

    def turn(name: str) -> tuple[bool, int, str]:
        leave = leaves[name]
        stays = leave.held > even and now_ns - leave.got_ns < DWELL_NS
        return not stays, leave.had_ns, name

    for place, name in enumerate(sorted(open_, key=turn)):
        due[name] = even + (place < left - even * len(open_))
    return due, even


def _says_more(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    if before.keys() != value.keys():
        return True
    return any(
        (old["held"], old["wants"]) != (new["held"], new["wants"]) or new["at_ns"] - old["at_ns"] >= FRESH_NS
        for old, new in ((before[name], value[name]) for name in value)
    )


def _checked(asked: dict[str, Any]) -> tuple[str, dict[str, tuple[int, int]]]:
    try:
        return str(asked["member"]), msgspec.convert(asked["asks"], dict[str, tuple[int, int]])
    except (KeyError, msgspec.ValidationError) as error:
        raise ValueRefused(f"what a member asks of pools: {error}") from error
