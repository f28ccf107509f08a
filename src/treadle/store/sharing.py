"""Who takes which shards: a pure answer to how things stand, the same for everybody who sees the same.

Those who help everybody share evenly. Somebody who works for its own runs alone takes shards only where nobody
helps, and then the one who has been there longest takes all. Each has its number of shards by its rank, so the
numbers add up; whoever has too many gives some away, whoever has too few takes what is free. Nobody is told to do
anything, and nothing moves that need not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec


class MemberRow(msgspec.Struct, frozen=True):
    """A process that decides runs of a store. `alone`: those that were started through it, and no others."""

    name: str
    alone: bool
    joined_ns: int
    url: str | None = None


class Standing(msgspec.Struct, frozen=True):
    """How things stand: who is there, and which shards nobody has who is."""

    members: Sequence[MemberRow]
    owners: Mapping[int, str | None]

    @property
    def free(self) -> list[int]:
        there = {member.name for member in self.members}
        return sorted(shard for shard, owner in self.owners.items() if owner not in there)

    def of(self, name: str) -> set[int]:
        return {shard for shard, owner in self.owners.items() if owner == name}

    @property
    def sharers(self) -> list[str]:
        """Those who take a part, longest there first."""
        ranked = sorted(self.members, key=lambda member: (member.joined_ns, member.name))
        helping = [member.name for member in ranked if not member.alone]
        return helping or [member.name for member in ranked[:1]]

    def share_of(self, name: str) -> int:
        """How many shards somebody should have."""
        sharers = self.sharers
        if name not in sharers:
            return 0
        each, over = divmod(len(self.owners), len(sharers))
        return each + (sharers.index(name) < over)

    def wanted_by(self, name: str) -> list[int]:
        """Free shards for somebody who has too few. Each begins at another place, so that those who look at the same
        time rarely want the same."""
        missing = self.share_of(name) - len(self.of(name))
        if missing <= 0:
            return []
        free, sharers = self.free, self.sharers
        start = sharers.index(name) * len(free) // len(sharers)
        return (free[start:] + free[:start])[:missing]

    def spare_of(self, name: str, keep: Collection[int] = ()) -> list[int]:
        """What somebody who has too many gives away, of what it need not `keep` for now."""
        mine = self.of(name)
        over = len(mine) - self.share_of(name)
        return sorted(mine.difference(keep), reverse=True)[: max(over, 0)]
