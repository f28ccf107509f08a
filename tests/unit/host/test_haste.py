"""Haste between threads: asked for by commits that take long and hold little, given back, and tried without."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from treadle.host.haste import FEW_RECORDS, HASTY_S, OTHERS_SHARE, SLOW_S, TRIED_AFTER, Haste, Threads
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


@pytest.mark.parametrize(("share", "expected"), [(0.2, USUAL_S), (0.9, HASTY_S)])
def test_full_ones_ask_for_it_where_others_take_much_of_the_time(
    meter: CoreMeter, share: float, expected: float
) -> None:
    now = 10.0
    haste = Haste(meter, lambda: share * now, monotonic=lambda: now)
    now = 10.1
    commits(meter, 3, seconds=2 * SLOW_S, records=FEW_RECORDS)
    haste.look()
    assert interval() == expected
    assert haste.is_crowded() == (share > OTHERS_SHARE)
    haste.end()
    assert not haste.is_crowded()


def test_a_slow_disk_is_no_crowd(meter: CoreMeter, haste: Haste) -> None:
    commits(meter, 3, seconds=2 * SLOW_S, records=1)
    haste.look()
    assert not haste.is_crowded()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the time of other threads")
def test_what_others_compute_is_told_apart_from_our_own() -> None:
    threads, stops = Threads(), False
    threads.know(threading.get_ident())

    def computes() -> None:
        while not stops:
            pass

    def waits_until_it_has_taken(seconds: float, taken: Callable[[], float]) -> None:
        until = time.monotonic() + 30
        begin = taken()
        while taken() - begin < seconds:
            assert time.monotonic() < until

    before = threads.others_s()
    waits_until_it_has_taken(0.1, time.thread_time)
    assert threads.others_s() - before < 0.05
    other = threading.Thread(target=computes)
    other.start()
    try:
        waits_until_it_has_taken(0.1, threads.others_s)
    finally:
        stops = True
        other.join()


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
