"""Which runs are this core's: the shards of the store that it holds.

A shard is a number, an epoch and a lease; nothing else. One core drives all that its process holds, with one commit
over them; the store checks the epoch of each that the commit touches. On a file there is one shard, and it is held
as long as the core lives.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.kernel.ids import shard_of
from treadle.store.protocol import Store

# Where what belongs to no run lives: deployed versions, documents.
HOME = 0


class Held:
    def __init__(self, count: int, shards: Iterable[int]) -> None:
        self._count = count
        self._shards = set(shards)
        # Whether there are others at all. Where there are none, events are not asked where they belong.
        self.several = count > 1

    @staticmethod
    def of(store: Store) -> Held:
        """What a store has claimed for its owner."""
        return Held(store.shards, store.held)

    def __bool__(self) -> bool:
        return bool(self._shards)

    def shard_of(self, run: str) -> int:
        """Where a run lives; what belongs to no run ("") is at home."""
        return HOME if not run else shard_of(run, self._count)

    def holds(self, run: str) -> bool:
        return self._count == 1 or self.shard_of(run) in self._shards

    def lose(self, shards: Iterable[int]) -> None:
        self._shards.difference_update(shards)
