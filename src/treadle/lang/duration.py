"""Durations and instants as people write them: `500ms`, `30s`, `2h`, `3d`, `PT2S`, `P3D`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from treadle.kernel.errors import DefinitionError

_UNITS: Final = {
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
# Patterns are texts: compiled when the first duration is read, not at every start of a process.
_SIMPLE: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)"
_ISO: Final = (
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?\Z"
)
# Longer than any that is meant, shorter than a number that cannot be read.
TEXT_MAX: Final = 100
DURATION_NS_MAX: Final = 1000 * 365 * 86400 * 10**9
# All are in UTC: a zone would cost, and say nothing.
_EPOCH: Final = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)


def parse_duration(value: object) -> int:
    """Nanoseconds. A number counts seconds. Raises DefinitionError for anything else."""
    total: float | int
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise DefinitionError(f"{value!r} is not a duration", code="BAD_DURATION")
    if isinstance(value, int | float):
        total = value * 10**9
    else:
        text = value.strip() if len(value) <= TEXT_MAX else ""
        parts = re.findall(_SIMPLE, text)
        if parts and "".join(number + unit for number, unit in parts) == text.replace(" ", ""):
            total = sum(_scaled(number, unit) for number, unit in parts)
        elif (iso := re.match(_ISO, text)) and text not in ("P", "PT") and not text.endswith("T"):
            total = sum(_scaled(number, unit) for unit, number in iso.groupdict().items() if number)
        else:
            raise DefinitionError(
                f"{value[:TEXT_MAX]!r} is not a duration; write 500ms, 30s, 2h, 3d or ISO 8601 (PT2S, P3D)",
                code="BAD_DURATION",
            )
    if not 0 <= total <= DURATION_NS_MAX:
        raise DefinitionError(
            f"{value!r} is not a duration between zero and 1,000 years", code="BAD_DURATION"
        )
    return int(total)


def _scaled(number: str, unit: str) -> int:
    return int(number) * _UNITS[unit] if number.isdigit() else round(float(number) * _UNITS[unit])


def seconds_text(seconds: float) -> str:
    """A number of seconds as a duration is written: Python would give a tiny one an exponent."""
    text = str(seconds)
    return f"{seconds:.9f}s" if "e" in text else f"{text}s"


def parse_instant(value: object) -> int:
    """Nanoseconds since 1970 of an ISO 8601 text; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
            seconds = int(moment.replace(microsecond=0).timestamp())
            return seconds * 10**9 + moment.microsecond * 1000
    raise DefinitionError(f"{value!r} is not an instant; write 2026-11-15T08:00:00Z", code="BAD_INSTANT")


def instant_text(at_ns: int) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return f"{(_EPOCH + timedelta(microseconds=at_ns // 1000)).isoformat(timespec='microseconds')}Z"
