"""Times as people write and read them: in their own zone, which is always shown, or in UTC (`--utc`).

What is shown can be given back: a time without a zone is read in the zone that times are shown in.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from treadle.kernel.errors import DefinitionError
from treadle.lang.duration import parse_duration, parse_instant

from .output import Usage

# The zone of the reader; None is that of the machine.
ZONE: ContextVar[tzinfo | None] = ContextVar("ZONE", default=None)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Beyond 2262 an instant does not fit into 64 bits of nanoseconds; nothing is that new.
_NS_MAX: Final = 2**63 - 1


def moment(text: str) -> str:
    """An RFC 3339 instant in the reader's zone, to the second: `2026-11-15 09:22:39-05:00`, in UTC with a `Z`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    shown = at.astimezone(ZONE.get()).isoformat(sep=" ", timespec="seconds")
    return shown.replace("+00:00", "Z")


def instant_ns(text: str | None, option: str) -> int | None:
    """An instant, or a duration before now."""
    if text is None:
        return None
    try:
        return time.time_ns() - parse_duration(text)
    except DefinitionError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return min(parse_instant(text), _NS_MAX)
        except DefinitionError as error:
            raise Usage(
                f"{option} takes a duration (2h, 3d) or an instant (2026-11-15 08:00, 2026-11-15T08:00:00Z), not {text!r}"
            ) from error
    if at.tzinfo is None:
        zone = ZONE.get()
        try:
            at = at.astimezone() if zone is None else at.replace(tzinfo=zone)
        except (ValueError, OverflowError):  # no clock of this machine has shown it
            at = at.replace(tzinfo=UTC)
    return min((at - _EPOCH) // timedelta(microseconds=1) * 1000, _NS_MAX)
