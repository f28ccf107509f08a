"""Instants in queries: RFC 3339, or a duration ago."""

from __future__ import annotations

from contextlib import suppress

from treadle.kernel.errors import TreadleError
from treadle.lang.duration import parse_duration, parse_instant

from .problems import RequestRefused


def instant_ns(text: str | None, name: str, now_ns: int) -> int | None:
    if text is None:
        return None
    with suppress(TreadleError):
        return parse_instant(text)
    with suppress(TreadleError):
        return now_ns - parse_duration(text)
    raise RequestRefused(
        "INPUT_INVALID", f"{name} is an instant (2026-11-15T09:00:00Z) or a duration ago (2h)", where=name
    )
