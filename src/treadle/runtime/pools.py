"""How several members share the limit of a pool: each hands out no more work than it was given leave for.

Whoever owns the first shard gives leave, and nobody else, by a row for each pool: so the sum of what members may have in
hand is never above the limit. A member says what it keeps (it has stopped to hand out more before it says so) and what
it could do; what others leave is given to it, up to its due. Its due is an even share among those who want more, and
where that does not come out even, those get one more who have been without it for longest. Whoever is above its due begins
nothing new, so that what is in hand when it ends goes to others: nobody waits for ever.

Leave counts for as long as its member may have work in hand: until its lease has run out by the store's clock and its
shards are others'. A member hands nothing out of such a pool past its lease (`host/pool_sharing.py`). Where a limit is
new, members have work in hand that nobody counted: nobody is given leave before each of those who were there has said
what it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.errors import ValueRefused
from treadle.kernel.limits import LEASE_RENEW_MS
from treadle.kernel.values import Value, encode

from .lines import pool_caps

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


SHARE: Final = "pool"
# The kind of documents that say who has leave for how much, by pool.
LEAVES: Final = "pool"
# For so long the odd one stays where it is.
DWELL_NS: Final = 1_000_000_000
# Workers elsewhere go on with what a member gave them that has died. By then they have told whoever took over.
TOLD_NS: Final = (LEASE_RENEW_MS + 1_000) * 1_000_000


class Leave(msgspec.Struct):
    """What one member has of a pool."""

    held: int = 0
    wants: int = 0
    # Whether workers elsewhere have some of it in hand.
    elsewhere: bool = False
    # Since when it has the odd one, and when it had it last.
    got_ns: int = 0
    had_ns: int = 0
    # Since when its member is gone.
    gone_ns: int = 0


class Leaves(msgspec.Struct):
    """Who has leave of a pool."""

    members: dict[str, Leave] = {}
    # Those who were there when the limit was made, and have not said yet what they have in hand.
    awaits: list[str] = []


def awaiting(reads: Reads, member: str) -> set[str]:
    """The pools of which a member is yet to say what it has in hand."""
    return {pool for pool, leaves in reads.documents(LEAVES) if member in leaves["awaits"]}


def perform(desk: Desk, asked: dict[str, Value]) -> dict[str, list[int]]:
    """What a member may have in hand of each of these pools, and what is its due. Of one without a limit, nothing."""
    member, asks = _checked(asked)
    caps, now = pool_caps(desk.store), desk.clock.now_ns()
    present = desk.store.members_present()
    answer: dict[str, list[int]] = {}
    for pool, (keeps, wants, elsewhere) in asks.items():
        if pool not in caps:
            continue
        before = desk.store.document(LEAVES, pool)
        leaves = msgspec.convert(before or {}, Leaves)
        leaves.members = remaining(leaves.members, present, now)
        leaves.awaits = [name for name in leaves.awaits if name in present and name != member]
        due = settle(
            leaves.members, member, 0 if leaves.awaits else caps[pool], keeps=keeps, wants=wants, now_ns=now
        )
        leaves.members[member].elsewhere = elsewhere
        answer[pool] = [leaves.members[member].held, due]
        if _says_more(before, leaves):
            desk.belongs("")
            desk.batch.documents.append((LEAVES, pool, now, encode(msgspec.to_builtins(leaves))))
    return answer


def begin(desk: Desk, pool: str) -> None:
    """A pool has a limit from this commit on: whoever is there may have any amount of its work in hand."""
    if awaits := sorted(desk.store.members_present()):
        desk.belongs("")
        value = encode(msgspec.to_builtins(Leaves(awaits=awaits)))
        desk.batch.documents.append((LEAVES, pool, desk.clock.now_ns(), value))


def end(desk: Desk, pool: str) -> None:
    """A pool has no limit from this commit on."""
    if desk.store.document(LEAVES, pool) is not None:
        desk.belongs("")
        desk.batch.documents.append((LEAVES, pool, desk.clock.now_ns(), None))


def remaining(leaves: Mapping[str, Leave], present: Collection[str], now_ns: int) -> dict[str, Leave]:
    """What still counts: of those who are there, and for a while what others had given to workers elsewhere."""
    found: dict[str, Leave] = {}
    for name, leave in leaves.items():
        if name in present:
            leave.gone_ns = 0
        elif leave.elsewhere and leave.held and now_ns - (leave.gone_ns or now_ns) < TOLD_NS:
            leave.wants, leave.gone_ns = 0, leave.gone_ns or now_ns
        else:
            continue
        found[name] = leave
    return found


def settle(leaves: dict[str, Leave], member: str, cap: int, *, keeps: int, wants: int, now_ns: int) -> int:
    """Gives a member leave, as far as others leave room, up to its due; that."""
    mine = leaves.setdefault(member, Leave(had_ns=now_ns))
    mine.held, mine.wants = keeps, max(keeps, wants)
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


def _says_more(before: Mapping[str, Value] | None, leaves: Leaves) -> bool:
    """Whether something else is said than whose turn it is next."""
    if before is None:
        return True
    said = msgspec.convert(before, Leaves)
    return said.awaits != leaves.awaits or _said(said) != _said(leaves)


def _said(leaves: Leaves) -> dict[str, tuple[int, int, bool, int]]:
    return {
        name: (leave.held, leave.wants, leave.elsewhere, leave.gone_ns)
        for name, leave in leaves.members.items()
    }


def _checked(asked: dict[str, Value]) -> tuple[str, dict[str, tuple[int, int, bool]]]:
    try:
        return str(asked["member"]), msgspec.convert(asked["asks"], dict[str, tuple[int, int, bool]])
    except (KeyError, msgspec.ValidationError) as error:
        raise ValueRefused(f"what a member asks of pools: {error}") from error
