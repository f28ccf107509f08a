"""How much work of a pool may be in hand at once, over all workers: what is beyond waits in its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class PoolCaps:
    """Counts what is in hand of every pool; under the lock of its bus."""

    def __init__(self) -> None:
        self._caps: dict[str, int] = {}
        self._busy: Counter[str] = Counter()

    def limit(self, caps: Mapping[str, int]) -> bool:
        """Whether these are others than those of before."""
        changed = self._caps != caps
        self._caps = dict(caps)
        return changed

    def move(self, pool: str, cap: int) -> bool:
        """Whether more of this pool may be in hand than before."""
        before, self._caps[pool] = self._caps.get(pool, cap), cap
        return cap > before

    def recount(self, pools: Iterable[str]) -> None:
        self._busy = Counter(pools)

    def limits(self, pool: str) -> bool:
        return pool in self._caps

    def room(self, pool: str) -> bool:
        return pool not in self._caps or self._busy[pool] < self._caps[pool]

    def took(self, pool: str) -> None:
        self._busy[pool] += 1

    def back(self, pool: str) -> None:
        self._busy[pool] -= 1
