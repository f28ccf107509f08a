"""How much work of a pool may be in hand at once, over all workers: what is beyond waits in its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping


class PoolCaps:
    """Counts what is in hand of the pools that are limited, and of no others; under the lock of its bus."""

    def __init__(self) -> None:
        # How much of each may be in hand. Who takes from a pool that is not in here need not ask.
        self.pools: dict[str, int] = {}
        # Whether anything of a limited pool may be handed out at all.
        self._may: Callable[[], bool] = lambda: True
        self._busy: Counter[str] = Counter()

    def only_while(self, may: Callable[[], bool]) -> None:
        """Of pools with a limit nothing is handed out but while this holds."""
        self._may = may

    def limit(self, caps: Mapping[str, int]) -> bool:
        """Whether these are others than those of before."""
        changed = self.pools != caps
        self.pools = dict(caps)
        return changed

    def move(self, pool: str, cap: int, busy: int) -> bool:
        """Whether more of this pool, of which so much is in hand, may be than before."""
        before, self.pools[pool] = self.pools.get(pool, cap), cap
        self._busy[pool] = busy
        return cap > before

    def recount(self, pools: Iterable[str]) -> None:
        self._busy = Counter(pool for pool in pools if pool in self.pools)

    def room(self, pool: str) -> bool:
        return pool not in self.pools or (self._busy[pool] < self.pools[pool] and self._may())

    def took(self, pool: str) -> None:
        if pool in self.pools:
            self._busy[pool] += 1

    def back(self, pool: str) -> None:
        if pool in self.pools:
            self._busy[pool] -= 1
