"""The worker inside the engine's process: it takes from the bus like every other, only without a lease."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.bus.data import DEFAULT_POOL, OTHERS, RESIDENT
from treadle.bus.local import LocalBus
from treadle.kernel.model import Intent, OpenIntent
from treadle.runtime.ports import SystemClock, Work
from treadle.testing import assert_replays
from treadle.testing.bus_conformance import work, works
from treadle.testing.clock import VirtualClock


class Resident:
    """Does what has no pool, on one lane."""

    def __init__(self) -> None:
        self.told: list[dict[str, int]] = []
        self.gone: list[str] = []

    def lane_of(self, work: Work) -> str:
        return OTHERS if work.intent.pool else "lane"

    def offered(self, lanes: dict[str, int]) -> None:
        self.told.append(lanes)

    def revoked(self, intents: Sequence[str]) -> None:
        self.gone += intents


def make() -> tuple[LocalBus, Resident]:
    bus, resident = LocalBus(SystemClock()), Resident()
    bus.attach(resident)
    return bus, resident


def names(found: list[Work]) -> list[str]:
    return [piece.intent.id for piece in found]


def test_what_the_resident_declines_goes_to_others_until_it_reconsiders() -> None:
    bus, _ = make()
    bus.offer(works("a", "b"))
    bus.take_here("lane", 9)
    bus.decline("a", RESIDENT, "no tool slack")
    bus.decline("b", RESIDENT, "no tool slack")
    assert bus.take_here("lane", 9) == []
    assert bus.undone([("other", (DEFAULT_POOL,))]) == {}, "somebody else may do it"
    (handed,) = bus.take("other", (DEFAULT_POOL,), 1)
    bus.release("other", [handed.lease], "no tool slack either")
    assert bus.undone([("other", (DEFAULT_POOL,))]) == {"a": "no tool slack"}
    bus.reconsider(lambda work: work.dialect == "toy", declined=True)
    assert sorted(names(bus.take_here("lane", 9))) == ["a", "b"]


def test_revoked_work_leaves_no_trace_in_a_queue_that_nobody_takes_from() -> None:
    bus, _ = make()
    for number in range(3_000):
        bus.offer([work(f"w{number}", pool="gpu")])
        bus.revoke([f"w{number}"])
    assert bus.waiting() == {"gpu": 0}
    assert sum(len(queue.entries) for queue in bus._queues.values()) < 1_100


def test_a_pool_is_recorded_only_where_one_is_asked_for() -> None:
    assert "pool" not in OpenIntent(id="i", kind="call", params={}).to_value()
    assert OpenIntent(id="i", kind="call", params={}, pool="gpu").to_value()["pool"] == "gpu"
    assert Intent(kind="call", params={}).pool == ""


LOOP = """
metadata: {name: many, version: "1"}
workflow:
  - step: each
    loop: {in: "{{ range(40) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 40}}
    tool: {kind: noop, result: "{{ iter.n }}"}
"""


async def test_work_beyond_the_bound_of_its_pool_stays_open_and_is_done_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "flow.yaml").write_text(LOOP)
    engine = Engine(f"sqlite:///{tmp_path}/t.db", concurrency=1, threads=1)
    engine.bus.queue_max = 4
    async with engine:
        engine.deploy(str(tmp_path / "flow.yaml"))
        run = await engine.start("many")
        await run.result(timeout=60)
        shown: dict[str, Any] = await run.show()
        assert shown["status"] == "completed"
        assert shown["stats"]["intents"] >= 40
        await assert_replays(run)


@pytest.mark.parametrize("waits", [False, True], ids=["functions", "coroutines"])
async def test_what_is_done_is_not_done_again_when_there_is_room_for_more_of_its_run(
    tmp_path: Path, waits: bool
) -> None:
    """A run that opens more at once than the bound of its pool, while receipts of its other work are on their way."""
    engine = Engine(f"sqlite:///{tmp_path}/t.db", concurrency=4, threads=4)
    engine.bus.queue_max = 8
    calls: Counter[int] = Counter()
    if waits:

        @engine.tool("count")
        async def count(n: int) -> None:
            calls[n] += 1

    else:

        @engine.tool("count")
        def count_at_once(n: int) -> None:
            calls[n] += 1

    (tmp_path / "flow.yaml").write_text(LOOP.replace("{kind: noop, result:", "{kind: count, n:"))
    async with engine:
        engine.deploy(str(tmp_path / "flow.yaml"))
        await (await engine.start("many")).result(timeout=60)
    assert calls == Counter(range(40))


def test_what_comes_back_is_next_and_what_is_gone_is_skipped() -> None:
    bus, _ = make()
    bus.offer(
        [work("a-0", run="a", pool="far"), work("a-1", run="a", pool="far"), work("b-0", run="b", pool="far")]
    )
    assert [handed.work.intent.id for handed in bus.take("w", ("far",), 1)] == ["a-0"]
    bus.decline("a-0", "w", "not here")
    bus.revoke(["b-0"])
    assert [handed.work.intent.id for handed in bus.take("w", ("far",), 9)] == ["a-1"]
    assert [handed.work.intent.id for handed in bus.take("other", ("far",), 9)] == ["a-0"]


class Asking(Resident):
    """While it is asked for its lane, the owner of the work hears how that ended."""

    def __init__(self, bus: LocalBus) -> None:
        super().__init__()
        self._bus = bus
        self.helps = False

    def lane_of(self, work: Work) -> str:
        if self.helps:
            self._bus.done("a")
        return "lane" if self.helps else OTHERS


def test_what_is_settled_while_the_resident_reconsiders_it_is_not_offered_again() -> None:
    bus = LocalBus(SystemClock())
    resident = Asking(bus)
    bus.attach(resident)
    bus.offer(works("a", "b"))
    resident.helps = True
    bus.reconsider(lambda work: True)
    assert names(bus.take_here("lane", 9)) == ["b"]
    assert bus.find("a") is None


async def test_work_that_was_renewed_while_it_waited_has_one_place_in_line_when_it_comes_back() -> None:
    """With a second one it would be taken from there, too, in the place of other work, which nobody would do then."""
    clock = VirtualClock()
    bus = LocalBus(clock)
    bus.attach(Resident())
    bus.offer(works("a"))
    (handed,) = bus.take("other", (DEFAULT_POOL,), 1)
    await clock.advance(60)
    bus.expire()
    assert bus.renew("other", [handed.lease]) == [], "it has the work again, which stood in line by then"
    bus.release("other", [handed.lease])
    assert names(bus.take_here("lane", 1)) == ["a"]
    bus.decline("a", RESIDENT, "no tool slack")
    bus.offer(works("b"))
    assert names(bus.take_here("lane", 9)) == ["b"]
    bus.done("b")
    assert not bus.unsettled_in("lane")


async def test_a_run_with_much_to_do_does_not_hold_up_another(tmp_path: Path) -> None:
    """With two places for coroutines, a run that opened hundreds of them, and one that comes later."""
    engine = Engine(f"sqlite:///{tmp_path}/fair.db", concurrency=2)
    done: list[str] = []
    go = asyncio.Event()

    @engine.tool("note", idempotent=True)
    async def note(who: str) -> str:
        await go.wait()
        done.append(who)
        return who

    loop = {"in": "{{ range(workload.items) }}", "iterator": "n"}
    step = {
        "step": "each",
        "loop": {**loop, "spec": {"mode": "parallel", "max_in_flight": 500}},
        "tool": {"kind": "note", "who": "{{ workload.who }}"},
    }
    file = tmp_path / "each.json"
    file.write_text(json.dumps({"metadata": {"name": "each"}, "workload": {"items": 1}, "workflow": [step]}))
    (definition,) = engine.deploy(str(file))
    async with engine:
        big = await engine.start(definition.name, {"items": 400, "who": "big"})
        small = await engine.start(definition.name, {"items": 5, "who": "small"})
        go.set()  # the work of both is offered by now, and two of the first run's are in hand
        await small.result(60)
        await big.result(60)
        assert len(done) == 405
        assert "small" not in done[20:], "its work was done in turn with the other's"
        await assert_replays(engine)


@pytest.mark.parametrize("all_at_once", [True, False])
def test_what_was_in_hand_before_its_pool_was_limited_counts(all_at_once: bool) -> None:
    bus, _ = make()
    bus.offer(works("a", "b", "c", "d"))
    assert names(bus.take_here("lane", 2)) == ["a", "b"]
    if all_at_once:
        bus.limit_pools({DEFAULT_POOL: 2})
    else:
        assert bus.limit_pool(DEFAULT_POOL, 2) == (2, 2)
    assert bus.take_here("lane", 9) == [], "as much is in hand as may be"
    bus.done("a")
    assert names(bus.take_here("lane", 9)) == ["c"]
    bus.limit_pools({})
    bus.done("b")
    assert names(bus.take_here("lane", 9)) == ["d"], "and without a limit whatever comes"
    bus.limit_pools({DEFAULT_POOL: 3})
    bus.offer(works("e", "f"))
    assert names(bus.take_here("lane", 9)) == ["e"], "what came while there was no limit counts too"


async def test_work_that_is_not_open_any_more_is_not_said_to_be_unavailable(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    file = tmp_path / "flow.json"
    file.write_text(
        json.dumps({"metadata": {"name": "odd"}, "workflow": [{"step": "a", "tool": {"kind": "odd"}}]})
    )
    async with engine:
        engine.deploy(str(file))
        run = await engine.start("odd")
        async with asyncio.timeout(30):
            while not engine.unavailable():  # noqa: ASYNC110 (what is awaited has no event)
                await asyncio.sleep(0.01)
        await engine.cancel(run.id)
        async with asyncio.timeout(30):
            while engine.unavailable():  # noqa: ASYNC110 (what is awaited has no event)
                await asyncio.sleep(0.01)
