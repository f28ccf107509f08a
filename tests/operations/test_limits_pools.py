"""How much work of a pool is in hand at once, over all workers, whoever takes it and whoever dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from treadle import Engine
from treadle.bus.local import LocalBus
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import OpenIntent
from treadle.runtime.pools import Leave, settle, shares
from treadle.runtime.ports import Work
from treadle.server.app import create_app
from treadle.testing import VirtualClock, assert_replays

FLOW = """
metadata: {name: train, version: "1"}
workflow:
  - step: only
    spec: {pool: gpu}
    tool: {kind: busy}
"""


class Busy:
    """Work that ends when it may, and knows how much of it there was at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.may_end = asyncio.Event()

    async def call(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.may_end.wait()
        finally:
            self.now -= 1


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def opened(folder: Path, busy: Busy) -> Engine:
    (folder / "train.yaml").write_text(FLOW)
    engine = Engine(f"sqlite:///{folder}/p.db")
    engine.tool("busy")(busy.call)
    engine.deploy(str(folder))
    return engine


async def test_no_more_work_of_a_pool_is_in_hand_than_its_limit_and_a_restart_knows_it(
    tmp_path: Path,
) -> None:
    first, second = Busy(), Busy()
    async with opened(tmp_path, first) as engine:
        assert (await engine.limit_set("pool:gpu", concurrency=2))["origin"] == "operator"
        for n in range(6):
            await engine.start("train", id=f"t{n}")
        await until(lambda: first.now == 2)
        row = await engine.limit("pool:gpu")
        assert (row["running"], row["queued"]) == (2, 4)
    async with opened(tmp_path, second) as engine:
        await until(lambda: second.now == 2)
        assert (await engine.limit("pool:gpu"))["running"] == 2
        await engine.limit_set("pool:gpu", concurrency=3)
        await until(lambda: second.now == 3)
        second.may_end.set()
        for n in range(6):
            await (await engine.run(f"t{n}")).result(timeout=60)
        assert (first.most, second.most) == (2, 3)
        await engine.limit_remove("pool:gpu")
        assert await engine.limits() == []
        await assert_replays(engine)


async def test_limits_of_pools_over_http_take_concurrency_only() -> None:
    async with Engine("memory:") as engine:
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
            said = await http.put("/limits/pool:gpu", json={"concurrency": 4})
            assert (said.status_code, said.json()["limits"]) == (200, {"concurrency": 4})
            assert (await http.put("/limits/pool:gpu", json={"rate": "1/s"})).status_code == 422
            assert (await http.put("/limits/pool:A%20B", json={"concurrency": 4})).status_code == 422
            assert [row["workflow"] for row in (await http.get("/limits")).json()["items"]] == ["pool:gpu"]
        with pytest.raises(TreadleError, match="concurrency, and nothing else"):
            await engine.limit_set("pool:gpu", concurrency=1, queue=3)


def work(name: str, pool: str = "gpu") -> Work:
    intent = OpenIntent(id=name, kind="step", params={}, pool=pool)
    return Work(run=name, workflow="w", dialect="playbook", definition="sha256:0", intent=intent, options={})


def test_who_takes_claims_or_comes_back_counts_and_who_is_silent_does_not() -> None:
    clock = VirtualClock()
    bus = LocalBus(clock)
    bus.limit_pools({"gpu": 2})
    woken: list[int] = []
    bus.listen(lambda: woken.append(1))
    bus.offer([work(f"{n}" * 32) for n in range(5)])
    assert len(bus.take("one", ["gpu"], 1)) == 1
    (second,), declined = bus.claim("two", ["1" * 32, "2" * 32])
    assert declined == []
    assert bus.take("one", ["gpu"], 9) == []
    woken.clear()
    bus.done(second.work.intent.id)
    assert woken, "who waits for the pool is told"
    assert len(bus.take("three", ["gpu"], 9)) == 1
    assert bus.in_pool("gpu") == (2, 2)
    clock._now_ns += 60 * 10**9
    assert bus.expire() == 2
    assert len(bus.take("four", ["gpu"], 9)) == 2
    bus.limit_pools({})
    assert len(bus.take("five", ["gpu"], 9)) == 2


def test_members_together_never_have_leave_for_more_than_the_limit_and_each_gets_its_turn() -> None:
    """Members that say at random what they keep and want; each keeps no more than it had leave for, and no less than
    what it has in hand."""
    chance = random.Random(7)
    for cap in (1, 2, 3, 7):
        names, leaves, now = ["a", "b", "c"], dict[str, Leave](), 0
        busy, due, ends = Counter[str](), dict.fromkeys(names, 0), Counter[str]()
        for _ in range(3_000):
            now += chance.randrange(400_000_000)
            name = chance.choice(names)
            held = leaves[name].held if name in leaves else 0
            # Something ends, and what is within both leave and due begins.
            done = chance.randint(0, busy[name])
            busy[name] -= done
            ends[name] += done
            keeps = max(busy[name], min(held, due[name]))
            due[name] = settle(leaves, name, cap, keeps=keeps, wants=99, now_ns=now)
            busy[name] = max(busy[name], min(leaves[name].held, due[name]))
            assert sum(leave.held for leave in leaves.values()) <= cap
            assert busy.total() <= cap
        assert min(ends.values()) * 3 > max(ends.values()), "nobody is left out"


def test_who_wants_little_gets_it_and_the_rest_is_for_the_others() -> None:
    leaves = {"a": Leave(wants=1), "b": Leave(wants=9), "c": Leave(wants=9, had_ns=5)}
    assert shares(8, leaves, 0)[0] == {"a": 1, "b": 4, "c": 3}
    assert shares(8, {"a": Leave(wants=0)}, 0)[0] == {"a": 0}
    assert shares(0, leaves, 0)[0] == {"a": 0, "b": 0, "c": 0}


class TimedBusy(Busy):
    """Work that takes a moment."""

    async def call(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1


async def test_three_members_together_keep_the_limit_of_a_pool_and_none_of_them_starves(
    tmp_path: Path, pg_store: str
) -> None:
    (tmp_path / "train.yaml").write_text(FLOW)
    busy = TimedBusy()
    engines = [Engine(pg_store) for _ in range(3)]
    for engine in engines:
        engine.tool("busy")(busy.call)
    async with engines[0]:
        await engines[0].limit_set("pool:gpu", concurrency=1)
        engines[0].deploy(str(tmp_path / "train.yaml"))
    async with engines[0], engines[1], engines[2]:
        await until(lambda: all(engine.shards_held() for engine in engines))
        runs = [await engines[n % 3].start("train", id=f"t{n}") for n in range(9)]
        for run in runs:
            await run.result(timeout=60)
        assert busy.most == 1
        await assert_replays(engines[0])
