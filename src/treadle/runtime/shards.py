"""Which runs are this core's: the shards of the store that it holds.

A shard is a number, an epoch and a lease; nothing else. One core drives all that its process holds, with one commit
over them; the store checks the epoch of each that the commit touches. On a file there is one shard, and it is held
as long as the core lives.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from treadle.kernel.model import shard_of

if TYPE_CHECKING:
    from treadle.store.protocol import Store


# Where what belongs to no run lives: deployed versions, documents.
HOME = 0


@lru_cache(maxsize=4096)
def home_on(shard: int, count: int) -> str:
    """A name that lives on a shard, for what is to be decided there and is about no run."""
    return next(name for name in (f"~{n}" for n in itertools.count()) if shard_of(name, count) == shard)


class Held:
    def __init__(self, count: int, shards: Iterable[int]) -> None:
        self._count = count
        self._shards = set(shards)
        # Whether there are others at all. Where there are none, events are not asked where they belong.
        self.several = count > 1
        # The shards on which something may be found for this core; None: on all that there are.
        self.chosen: Collection[int] | None = self._shards if self.several else None
        self._changed()

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

    def gain(self, shards: Iterable[int]) -> None:
        self._shards.update(shards)
        self._changed()

    def lose(self, shards: Iterable[int]) -> None:
        self._shards.difference_update(shards)
        self._changed()

    def _changed(self) -> None:
        # Whether all of them are ours. For as long as they are, every commit is: then this is one and the same object.
        self.all = self._count == len(self._shards)
        self.sole: object | None = object() if self.all else None
