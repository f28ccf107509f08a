"""When something recurs, held against the clocks of five zones, quarter by quarter, through a whole year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from treadle.kernel.errors import DefinitionError
from treadle.lang.duration import instant_text, parse_instant
from treadle.lang.recurrence import Cron, Every, OneTime, instants, jitter_ns, latest
from treadle.lang.retention import Retention
from treadle.lang.schedules import Schedule, run_id

ZONES = ["Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago"]
# Clocks are set at quarters of an hour, and the expressions name quarters.
QUARTER = timedelta(minutes=15)


def at(text: str) -> int:
    return parse_instant(text)


def seen(expression: str, zone: str) -> list[str]:
    """All ticks of 2026, as the clocks of the zone show them."""
    return [
        instant_text(t)[:16]
        for t in instants(Cron(expression, zone), at("2025-12-31T23:59:59Z"), at("2026-12-31T23:59:00Z"))
    ]


def expected(zone: str, hours: range, minutes: set[int]) -> list[str]:
    """The same by looking at a clock every quarter: each wall time once, those it skips at the end of the gap."""
    clock, moment, found = ZoneInfo(zone), datetime(2026, 1, 1, tzinfo=UTC), []
    shown = (moment - QUARTER).astimezone(clock).replace(tzinfo=None)
    while moment.year == 2026:
        now = moment.astimezone(clock)
        wall = now.replace(tzinfo=None)
        passed = [shown + QUARTER * n for n in range(1, int((wall - shown) / QUARTER) + 1)]
        if now.fold == 0 and any(w.hour in hours and w.minute in minutes for w in passed):
            found.append(moment.strftime("%Y-%m-%dT%H:%M"))
        shown = max(shown, wall)
        moment += QUARTER
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_through_a_year_every_wall_time_is_met_once_also_where_clocks_are_set(zone: str) -> None:
    assert seen("30 2 * * *", zone) == expected(zone, range(2, 3), {30})
    assert seen("15 0 * * *", zone) == expected(zone, range(1), {15})
    assert seen("*/30 * * * *", zone) == expected(zone, range(24), {0, 30})


def test_a_time_that_the_clock_skips_is_the_end_of_the_gap_and_one_shown_twice_the_first() -> None:
    daily = Cron("30 2 * * *", "Europe/Zurich")
    assert instant_text(daily.after(at("2026-03-28T12:00:00Z")) or 0) == "2026-03-29T01:00:00.000000Z"
    assert instant_text(daily.after(at("2026-10-24T12:00:00Z")) or 0) == "2026-10-25T00:30:00.000000Z"
    assert instant_text(daily.after(at("2026-10-25T00:30:00Z")) or 0) == "2026-10-26T01:30:00.000000Z"


def test_an_interval_is_the_multiples_since_1970_whatever_the_clocks_do() -> None:
    assert Every(90 * 10**9).after(0) == 90 * 10**9
    assert Every(90 * 10**9).after(90 * 10**9 - 1) == 90 * 10**9
    assert Every(90 * 10**9, offset_ns=5 * 10**9).after(90 * 10**9) == 95 * 10**9


def test_the_latest_tick_is_found_from_the_end_however_long_nobody_looked() -> None:
    minutely = Cron("* * * * *", "Europe/Zurich")
    first = minutely.after(at("2016-01-01T00:00:00Z"))
    assert first is not None
    assert latest(minutely, first, at("2026-01-01T00:00:59Z")) == at("2026-01-01T00:00:00Z")
    yearly = Cron("0 0 1 1 *")
    assert latest(yearly, at("2020-01-01T00:00:00Z"), at("2026-11-15T00:00:00Z")) == at(
        "2026-01-01T00:00:00Z"
    )
    assert latest(OneTime(5), 5, 10) == 5


def test_jitter_is_below_its_bound_and_always_the_same() -> None:
    found = [jitter_ns("nightly", tick, 1000) for tick in range(200)]
    assert found == [jitter_ns("nightly", tick, 1000) for tick in range(200)]
    assert all(0 <= delay < 1000 for delay in found)
    assert len(set(found)) > 100
    assert jitter_ns("nightly", 7, 0) == 0


def test_the_run_of_a_tick_is_named_after_the_instant_to_the_second() -> None:
    assert run_id("nightly", at("2026-03-29T01:00:00Z")) == "nightly@2026-03-29T01:00:00Z"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"cron": "61 * * * *"}, "BAD_CRON"),
        ({"cron": "0 0 31 2 *"}, "BAD_CRON"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "BAD_TIMEZONE"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "BAD_TIMEZONE"),
        ({"every": "500ms"}, "SCHEDULE_INVALID"),
        ({"every": "soon"}, "SCHEDULE_INVALID"),
        ({"at": "tomorrow"}, "BAD_INSTANT"),
        ({"at": "9999-12-31T23:59:59-23:59"}, "SCHEDULE_INVALID"),
        ({}, "SCHEDULE_INVALID"),
        ({"every": "1h", "cron": "* * * * *"}, "SCHEDULE_INVALID"),
        ({"every": "1h", "overlap": "maybe"}, "SCHEDULE_INVALID"),
        ({"every": "1h", "catch_up": "some"}, "SCHEDULE_INVALID"),
        ({"every": "1h", "often": True}, "SCHEDULE_INVALID"),
        ({"every": "1h", "name": "a@b"}, "SCHEDULE_INVALID"),
        ({"every": "1h", "paused": "no"}, "SCHEDULE_INVALID"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused_by_its_field(wrong: dict[str, object], code: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Schedule.read({"name": "n", "workflow": "w", **wrong})
    assert refused.value.code == code


def test_a_tiny_number_of_seconds_is_still_a_duration_when_the_tick_comes() -> None:
    """Python writes it with an exponent, which no duration has."""
    schedule = Schedule.read({"name": "n", "workflow": "w", "every": 60, "jitter": 0.00001})
    assert 0 <= schedule.starts_ns(0) <= 10_000
    assert Retention.read({"completed": 0.00001}).ages_ns == {"completed": 10_000}
