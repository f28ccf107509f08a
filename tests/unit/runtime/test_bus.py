"""Leases: work goes to one worker at a time, and to the next one when a worker falls silent."""

from __future__ import annotations

from treadle.bus.local import LocalBus
from treadle.kernel.model import OpenIntent
from treadle.runtime.ports import Work

LEASE_NS = 1_000 * 1_000_000


class Clock:
    time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns


def works(*names: str) -> list[Work]:
    return [
        Work("run", "flow", "toy", "sha256:0", {}, OpenIntent(id=name, kind="work", params={}))
        for name in names
    ]


def names(found: list[Work]) -> list[str]:
    return [work.intent.id for work in found]


def make() -> tuple[LocalBus, Clock]:
    clock = Clock()
    return LocalBus(clock, lease_ms=1_000), clock


def test_work_is_taken_in_order_and_once() -> None:
    bus, _ = make()
    bus.put(works("a", "b", "c"))
    assert names(bus.take("w1", 2)) == ["a", "b"]
    assert names(bus.take("w2", 9)) == ["c"]
    assert bus.take("w1", 9) == []
    assert (bus.waiting, bus.leased) == (0, 3)


def test_the_work_of_a_silent_worker_goes_to_the_next_one_in_order() -> None:
    bus, clock = make()
    bus.put(works("a", "b", "c", "d"))
    bus.take("silent", 2)
    bus.take("lively", 1)
    clock.time_ns += LEASE_NS - 1
    assert bus.expire() == 0
    bus.renew("lively")
    clock.time_ns += 1
    assert bus.expire() == 2
    assert names(bus.take("lively", 9)) == ["a", "b", "d"]


def test_finished_work_is_not_handed_out_again() -> None:
    bus, clock = make()
    bus.put(works("a"))
    bus.take("w", 1)
    bus.done("a")
    clock.time_ns += 2 * LEASE_NS
    assert bus.expire() == 0
    assert bus.leased == 0


def test_revoked_work_that_waits_is_never_handed_out() -> None:
    bus, _ = make()
    bus.put(works("a", "b"))
    bus.done("a")
    assert names(bus.take("w", 9)) == ["b"]
    bus.done("unknown")
    bus.put(works("c"))
    assert names(bus.take("w", 9)) == ["c"]
