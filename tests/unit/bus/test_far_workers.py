"""What workers elsewhere are handed, and what is said of what they bring back, where time or other work comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from treadle.bus.data import DEFAULT_POOL, Handed, Told
from treadle.bus.hatch import Hatch
from treadle.bus.local import LOOK_MAX, LocalBus
from treadle.runtime.ports import SystemClock, Work
from treadle.testing.bus_conformance import Recorder, work, works
from treadle.testing.clock import VirtualClock

POOLS = (DEFAULT_POOL,)


class SlowOwner(Recorder):
    """The lease of whoever saves something runs out while that becomes durable, and another worker gets the work."""

    def __init__(self, bus: LocalBus, clock: VirtualClock) -> None:
        super().__init__()
        self._bus = bus
        self._clock = clock
        self.others: list[Handed] = []

    async def progress(self, work: Work, told: Sequence[Told]) -> bool:
        await self._clock.advance(11)
        self._bus.expire()
        self.others = self._bus.take("two", POOLS, 1)
        return True


async def test_a_mark_that_the_next_worker_did_not_see_is_no_mark() -> None:
    """Both would go on from before it, and do what must not be repeated."""
    clock = VirtualClock()
    bus = LocalBus(clock, lease_ms=10_000)
    owner = SlowOwner(bus, clock)
    bus.offer(works("a"))
    (handed,) = bus.take("one", POOLS, 1)
    mark = Told(intent="a", lease=handed.lease, seq=1, kind="checkpoint", value={"begun": True})
    noted = await Hatch(bus, owner).of("one").progress([mark])
    assert owner.others[0].work.checkpoint is None
    assert (noted.durable, noted.lost) == ([], ["a"])


def test_work_behind_much_that_a_worker_cannot_do_is_found() -> None:
    bus = LocalBus(SystemClock())
    known = [f"w{number}" for number in range(2 * LOOK_MAX)]
    bus.offer(works(*known, "good"))
    found: list[Handed] = []
    for _ in range(3):
        found += bus.take("one", POOLS, 1, lambda work: work.intent.id == "good")
    assert [handed.work.intent.id for handed in found] == ["good"]
    assert sorted(handed.work.intent.id for handed in bus.take("two", POOLS, 9_999)) == sorted(known)


def test_what_nobody_can_do_does_not_hide_what_somebody_can() -> None:
    bus = LocalBus(SystemClock())
    bus.offer(works("a", "b", "c"))
    bus.tell_undone({"a": "no tool slack", "b": "no tool slack"})
    assert [intent for _, intent, _, _ in bus.still_waiting(POOLS, 1)] == ["c"]


def test_what_is_revoked_beyond_the_bound_is_not_asked_for() -> None:
    again: list[str] = []
    bus = LocalBus(SystemClock(), queue_max=2, again=again.extend)
    bus.offer([work(name, run="run") for name in ("a", "b", "c", "d")])
    bus.revoke(["c"])
    bus.take("one", POOLS, 2)
    assert again == ["d"]


def test_what_is_taken_back_waited_and_is_nowhere_any_more() -> None:
    again: list[str] = []
    bus = LocalBus(SystemClock(), queue_max=2, again=again.extend)
    bus.offer(works("a"))
    bus.take("one", POOLS, 1)
    bus.offer([work(name, run="run") for name in ("b", "c", "d")])
    assert bus.take_back(["a", "b", "d", "unknown"]) == ["b"]
    assert again == ["d"], "there is room for it now"
    assert [(found.intent.id, in_hand) for found, in_hand in bus.works()] == [("a", True), ("c", False)]
    bus.offer(works("b"))
    assert [handed.work.intent.id for handed in bus.take("one", POOLS, 9)] == ["c", "b"]


def test_work_that_is_claimed_by_its_name_leaves_no_trace_in_a_queue_that_nobody_takes_from() -> None:
    """Where all workers come over a carrier they claim what they have tickets for, and nobody takes."""
    bus = LocalBus(SystemClock())
    for number in range(3_000):
        bus.offer(works(f"w{number}"))
        (handed,), _ = bus.claim("one", [f"w{number}"])
        bus.done(handed.work.intent.id)
    assert sum(len(queue.entries) for queue in bus._queues.values()) < 1_100


async def test_a_worker_that_leaves_while_it_is_looked_after_gets_nothing_more() -> None:
    bus = LocalBus(SystemClock())
    hatch = Hatch(bus, Recorder())
    bus.offer(works("a"))

    async def gone() -> bool:
        hatch.dismiss("one")
        return False

    assert (await hatch.take("one", POOLS, 1, gone=gone)).items == []


def test_who_tells_of_work_does_not_mind_that_the_loop_of_a_waiting_worker_is_closed() -> None:
    """It is the thread of the core that tells, and that would be its end."""
    bus = LocalBus(SystemClock())
    telling: list[Callable[[], None]] = []

    async def wait() -> None:
        hatch = Hatch(bus, Recorder())
        taking = asyncio.ensure_future(hatch.take("one", POOLS, 1, wait_s=60))
        await asyncio.sleep(0)
        telling.extend(bus._listeners)
        hatch.close()
        await taking

    asyncio.run(wait())
    for tell in telling:
        tell()
    assert telling
