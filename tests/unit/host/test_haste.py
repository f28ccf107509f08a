"""Haste between threads: tried for commits that take long and hold little, kept where more is done, and tried without."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treadle.engine import Engine
from treadle.host.haste import (
    CALM_LOOKS,
    FEW_RECORDS,
    HASTY_S,
    OTHERS_SHARE,
    RESTS,
    SLOW_S,
    TRIAL_LOOKS,
    TRIED_AFTER,
    WORTH,
    Haste,
    Threads,
)
from treadle.host.thread import CoreThread
from treadle.kernel.errors import StoreCorrupt
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


class House:
    """A haste whose time passes from look to look, while others compute for a share of it."""

    def __init__(self, share: float = 0.0) -> None:
        self.meter = CoreMeter()
        self._share = share
        self._now = 10.0
        self.haste = Haste(self.meter, lambda: self._share * self._now, monotonic=lambda: self._now)

    def looks(self, times: int, *, seconds: float = 2 * SLOW_S, records: int = 1, count: int = 3) -> None:
        for _ in range(times):
            self._now += 0.025
            commits(self.meter, count, seconds=seconds, records=records)
            self.haste.look()


@pytest.fixture
def house() -> House:
    return House()


def test_slow_small_commits_ask_for_haste(house: House) -> None:
    house.looks(CALM_LOOKS - 1)
    assert interval() == USUAL_S
    house.looks(1)
    assert interval() == HASTY_S


@pytest.mark.parametrize(
    ("seconds", "records"), [(SLOW_S / 2, 1), (2 * SLOW_S, FEW_RECORDS)], ids=["quick", "full"]
)
def test_others_do_not(house: House, seconds: float, records: int) -> None:
    house.looks(3 * CALM_LOOKS, seconds=seconds, records=records)
    assert interval() == USUAL_S


@pytest.mark.parametrize(("share", "expected"), [(0.2, USUAL_S), (0.9, HASTY_S)])
def test_full_ones_ask_for_it_where_others_take_much_of_the_time(share: float, expected: float) -> None:
    house = House(share)
    house.looks(CALM_LOOKS, records=FEW_RECORDS)
    assert interval() == expected
    assert house.haste.is_crowded() == (share > OTHERS_SHARE)
    house.haste.end()
    assert not house.haste.is_crowded()


def test_a_slow_disk_is_no_crowd(house: House) -> None:
    house.looks(CALM_LOOKS)
    assert not house.haste.is_crowded()


@pytest.mark.parametrize(
    ("times", "expected"), [(1.0, USUAL_S), (WORTH * 1.2, HASTY_S)], ids=["as much", "more"]
)
def test_it_stays_where_more_is_done(house: House, times: float, expected: float) -> None:
    house.looks(CALM_LOOKS, records=5)
    house.looks(TRIAL_LOOKS - 1, records=5, count=round(3 * times))
    assert interval() == HASTY_S
    house.looks(1, records=5, count=round(3 * times))
    assert interval() == expected


def test_time_in_which_nothing_is_committed_says_nothing(house: House) -> None:
    house.looks(CALM_LOOKS, records=5)
    house.looks(TRIED_AFTER // 2, count=0)
    assert interval() == HASTY_S
    house.looks(TRIAL_LOOKS, records=5, count=4)
    assert interval() == HASTY_S


def test_where_it_brings_nothing_it_is_tried_again_after_ever_longer_rests(house: House) -> None:
    house.looks(CALM_LOOKS)
    for rest in (RESTS[0], 2 * RESTS[0], 4 * RESTS[0], RESTS[1]):
        house.looks(TRIAL_LOOKS)
        assert interval() == USUAL_S
        house.looks(rest - 1)
        assert interval() == USUAL_S
        house.looks(1)
        assert interval() == HASTY_S


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the time of other threads")
def test_what_others_compute_is_told_apart_from_our_own() -> None:
    threads, stops = Threads(), False
    threads.begin()

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


def test_only_what_was_committed_since_the_last_look_counts(house: House) -> None:
    commits(house.meter, 100, seconds=2 * SLOW_S, records=1)
    house.haste.look()
    house.looks(2 * CALM_LOOKS, seconds=SLOW_S / 2)
    assert interval() == USUAL_S


def test_after_a_while_it_is_tried_without(house: House) -> None:
    house.looks(CALM_LOOKS)
    house.looks(TRIED_AFTER - 1, count=6)
    assert interval() == HASTY_S
    house.looks(1, count=6)
    assert interval() == USUAL_S
    house.haste.look()
    assert interval() == USUAL_S  # what was slow under haste says nothing of now
    house.looks(CALM_LOOKS)
    assert interval() == HASTY_S


def test_the_program_has_it_back_at_the_end(house: House) -> None:
    sys.setswitchinterval(0.003)
    house.looks(CALM_LOOKS)
    house.haste.end()
    assert interval() == 0.003
    sys.setswitchinterval(0.004)
    house.haste.end()
    assert interval() == 0.004  # it was not ours to give back


def test_a_program_in_more_haste_is_left_alone(house: House) -> None:
    sys.setswitchinterval(0.0001)
    house.looks(2 * CALM_LOOKS)
    assert interval() == 0.0001


async def test_why_a_store_is_not_opened_is_told_however_soon_its_thread_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has ended must not be asked for its clock."""
    start = CoreThread.start

    def over_at_once(thread: CoreThread) -> None:
        start(thread)
        thread.join(30)
        deadline = time.monotonic() + 30
        while Path(f"/proc/self/task/{thread.native_id}").exists() and time.monotonic() < deadline:
            time.sleep(0.001)  # for the system it ends a moment later

    monkeypatch.setattr(CoreThread, "start", over_at_once)
    (tmp_path / "t.db").write_text("no database, and longer than a header of one\n" * 100)
    with pytest.raises(StoreCorrupt):
        async with Engine(f"sqlite:///{tmp_path}/t.db"):
            raise AssertionError("it must not start")
