"""When something recurs: by cron, by an interval, once. Pure: instants in, instants out, in nanoseconds since 1970.

**Daylight saving.** A cron expression names times on a wall's clock. Each that it names becomes one instant: a time that
the clock skips is the end of the gap, one that it shows twice is the first of the two. Several that fall on one
instant are one. So every matching wall time is met exactly once, and the instants never go back. What must happen
every thirty minutes of real time, whatever the clocks do, is an interval.

`cronsim` reads the expressions and finds wall times; it is asked without a zone, because its own rule for changes of
the clock (that of Debian's cron) depends on how an expression is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.errors import DefinitionError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

SECOND_NS: Final = 10**9
# How far back the latest instant is looked for, step by step: most schedules recur within an hour or a day.
_LOOK_BACK_NS: Final = tuple(seconds * SECOND_NS for seconds in (3600, 86_400, 40 * 86_400, 400 * 86_400))


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # most engines have no schedule

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise DefinitionError(
            f"{name!r:.60} is no time zone; write one of the IANA database, like Europe/Zurich",
            code="BAD_TIMEZONE",
        ) from error


def _cron(expression: str, after: datetime) -> CronSim:
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(expression, after)
    except CronSimError as error:
        # The library's own words are few, and may change: only which field it means is worth telling.
        raise DefinitionError(
            f"{expression!r:.60} is no cron expression: minute hour day month weekday, or with seconds first",
            code="BAD_CRON",
        ) from error


class Cron(msgspec.Struct, frozen=True):
    """Times on the clocks of a zone."""

    expression: str
    timezone: str = "UTC"

    def after(self, at_ns: int) -> int | None:
        """The first instant later than this one; None if there is none any more."""
        clock = zone(self.timezone)
        wall = datetime.fromtimestamp(at_ns // SECOND_NS, UTC).astimezone(clock).replace(tzinfo=None)
        try:
            for local in _cron(self.expression, wall):
                if (found := _instant(local, clock)) > at_ns:
                    return found
        except OverflowError:
            pass  # beyond the last year that there is
        return None


def _instant(local: datetime, clock: ZoneInfo) -> int:
    """The instant at which clocks show a time: the first of two, or the end of the gap that it falls into."""
    early = local.replace(tzinfo=clock).astimezone(UTC)
    if early.astimezone(clock).replace(tzinfo=None) != local:
        early = _transition(local.replace(tzinfo=clock, fold=1).astimezone(UTC), early, clock)
    return int(early.timestamp()) * SECOND_NS


def _transition(before: datetime, after: datetime, clock: ZoneInfo) -> datetime:
    """The second at which the clock is set, between two instants of which one is before it and one is not."""
    offset = before.astimezone(clock).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if middle.astimezone(clock).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


class Every(msgspec.Struct, frozen=True):
    """The multiples of an interval since 1970, moved by an offset."""

    interval_ns: int
    offset_ns: int = 0

    def after(self, at_ns: int) -> int | None:
        return (
            (at_ns - self.offset_ns) // self.interval_ns * self.interval_ns
            + self.interval_ns
            + self.offset_ns
        )


class OneTime(msgspec.Struct, frozen=True):
    at_ns: int

    def after(self, at_ns: int) -> int | None:
        return self.at_ns if self.at_ns > at_ns else None


Recurrence = Cron | Every | OneTime


def instants(recurrence: Recurrence, after_ns: int, until_ns: int | None = None) -> Iterator[int]:
    """Every instant later than one and not later than another."""
    found = recurrence.after(after_ns)
    while found is not None and (until_ns is None or found <= until_ns):
        yield found
        found = recurrence.after(found)


def latest(recurrence: Recurrence, first_ns: int, until_ns: int) -> int:
    """The last instant that is not later than `until_ns`; `first_ns` is one, and the earliest that counts. Looked for
    from the end, so that years nobody looked cost no more than a day."""
    for back_ns in _LOOK_BACK_NS:
        since = until_ns - back_ns
        if since <= first_ns:
            break
        found = [*instants(recurrence, since, until_ns)]
        if found:
            return found[-1]
    return max(instants(recurrence, first_ns, until_ns), default=first_ns)


def jitter_ns(name: str, tick_ns: int, at_most_ns: int) -> int:
    """How long a start is delayed: below the bound, always the same for one tick, spread over the names."""
    if at_most_ns <= 0:
        return 0
    return int.from_bytes(sha256(f"{name}@{tick_ns}".encode()).digest()[:8], "big") % at_most_ns
