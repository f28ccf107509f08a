"""How often somebody may ask: buckets that fill with time, a bounded number of them.

Whoever comes with ever new names costs no more memory than those who stay: the bucket that was touched longest ago is
forgotten. A forgotten bucket is a full one, so this errs in favour of whoever asks.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEYS_MAX: Final = 10_000


class RateLimit:
    """`per_s` requests a second for each key, and as many at once."""

    def __init__(
        self, per_s: float, *, keys_max: int = KEYS_MAX, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s)
        self._keys_max = keys_max
        self._now = now
        # key -> (what was left, when)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> bool:
        """Whether this request may go on; it counts if it may."""
        level = self._level(key)
        allowed = level >= 1
        self._buckets[key] = (level - 1 if allowed else level, self._now())
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return allowed

    def spent(self, key: str) -> bool:
        """Whether the next request would be refused; counts nothing."""
        return self._level(key) < 1

    def _level(self, key: str) -> float:
        left, since = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, left + (self._now() - since) * self._per_s)


def address_key(host: str) -> str:
    """One name for what one party has: an IPv4 address, a network of 64 bits of IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
