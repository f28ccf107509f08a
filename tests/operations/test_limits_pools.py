"""How much work of a pool is in hand at once, over all workers, whoever takes it and whoever dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from treadle import Engine
from treadle.bus.local import LocalBus
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import OpenIntent
from treadle.runtime import quotas
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


def test_members_hand_out_their_shares_and_never_nothing() -> None:
    assert quotas.share({"gpu": 4}, 1, 1) == {"gpu": 4}
    assert quotas.share({"gpu": 4}, 32, 64) == {"gpu": 2}
    assert quotas.share({"gpu": 1}, 1, 64) == {"gpu": 1}
    assert quotas.share({"gpu": 1}, 0, 64) == {"gpu": 1}
