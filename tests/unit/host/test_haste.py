"""Haste between threads: asked for by commits that take long and hold little, given back, and tried without."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from treadle.host.haste import FEW_RECORDS, HASTY_S, SLOW_S, TRIED_AFTER, Haste
from treadle.runtime.meter import CoreMeter

USUAL_S = 0.005


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


def commits(meter: CoreMeter, count: int, *, seconds: float, records: int) -> None:
    for _ in range(count):
        meter.commit_seconds.observe(seconds)
        meter.records += records


def interval() -> float:
    return round(sys.getswitchinterval(), 6)


@pytest.fixture
def meter() -> CoreMeter:
    return CoreMeter()


@pytest.fixture
def haste(meter: CoreMeter) -> Haste:
    return Haste(meter)


def test_slow_small_commits_ask_for_haste(meter: CoreMeter, haste: Haste) -> None:
    commits(meter, 3, seconds=2 * SLOW_S, records=1)
    haste.look()
    assert interval() == HASTY_S


@pytest.mark.parametrize(
    ("seconds", "records"), [(SLOW_S / 2, 1), (2 * SLOW_S, FEW_RECORDS)], ids=["quick", "full"]
)
def test_others_do_not(meter: CoreMeter, haste: Haste, seconds: float, records: int) -> None:
    commits(meter, 3, seconds=seconds, records=records)
    haste.look()
    assert interval() == USUAL_S


def test_only_what_was_committed_since_the_last_look_counts(meter: CoreMeter) -> None:
    commits(meter, 100, seconds=2 * SLOW_S, records=1)
    haste = Haste(meter)
    haste.look()
    commits(meter, 3, seconds=SLOW_S / 2, records=1)
    haste.look()
    assert interval() == USUAL_S


def test_after_a_while_it_is_tried_without(meter: CoreMeter, haste: Haste) -> None:
    commits(meter, 3, seconds=2 * SLOW_S, records=1)
    haste.look()
    for _ in range(TRIED_AFTER - 1):
        commits(meter, 1, seconds=2 * SLOW_S, records=1)
        haste.look()
        assert interval() == HASTY_S
    haste.look()
    assert interval() == USUAL_S
    haste.look()
    assert interval() == USUAL_S  # what was slow under haste says nothing of now
    commits(meter, 3, seconds=2 * SLOW_S, records=1)
    haste.look()
    assert interval() == HASTY_S


def test_the_program_has_it_back_at_the_end(meter: CoreMeter, haste: Haste) -> None:
    sys.setswitchinterval(0.003)
    commits(meter, 3, seconds=2 * SLOW_S, records=1)
    haste.look()
    haste.end()
    assert interval() == 0.003
    sys.setswitchinterval(0.004)
    haste.end()
    assert interval() == 0.004  # it was not ours to give back


def test_a_program_in_more_haste_is_left_alone(meter: CoreMeter, haste: Haste) -> None:
    sys.setswitchinterval(0.0001)
    commits(meter, 3, seconds=2 * SLOW_S, records=1)
    haste.look()
    assert interval() == 0.0001
