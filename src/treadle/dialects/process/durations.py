"""The one spelling of a duration in canonical definitions."""

from __future__ import annotations

from typing import Final

_UNITS: Final = (("w", 604_800_000_000_000), ("d", 86_400_000_000_000), ("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000))  # fmt: skip


def duration_text(duration_ns: int) -> str:
    """The largest unit that divides it: 60s is `1m`, 90s is `90s`; below a millisecond, a fraction."""
    if duration_ns == 0:
        return "0s"
    for unit, size in _UNITS:
        # Weeks are read, but people count in days.
        if unit != "w" and duration_ns % size == 0:
            return f"{duration_ns // size}{unit}"
    whole, rest = divmod(duration_ns, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0") + "ms"
