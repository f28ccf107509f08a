"""Every check on every bus. Another one is one more entry of BUSES."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest

from treadle import Engine
from treadle.bus.hatch import Hatch
from treadle.bus.http import HttpBus
from treadle.bus.local import LocalBus
from treadle.bus.protocol import Bus
from treadle.server.app import create_app
from treadle.server.workers import Workers
from treadle.testing import bus_conformance
from treadle.testing.bus_conformance import LEASE_S, QUEUE_MAX, Check, Post, Recorder

KEY = b"k" * 32


class Clock:
    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns


class LocalPost:
    def __init__(self) -> None:
        self._clock = Clock()
        self.owner = Recorder()
        self.offers = self._begin()
        self.hatch = Hatch(self.offers, self.owner)

    def _begin(self) -> LocalBus:
        bus = LocalBus(
            self._clock,
            lease_ms=int(LEASE_S * 1_000),
            queue_max=QUEUE_MAX,
            again=self.owner.again.extend,
        )
        bus.seal_with(KEY)
        return bus

    async def restart(self) -> None:
        self.offers = self._begin()
        self.hatch.bus = self.offers

    def worker(self, name: str) -> Bus:
        return self.hatch.of(name)

    def pass_time(self, seconds: float) -> None:
        self._clock.time_ns += int(seconds * 1e9)


@asynccontextmanager
async def local() -> AsyncIterator[Post]:
    yield LocalPost()


class HttpPost(LocalPost):
    """The local bus behind a server; workers speak HTTP to it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        app = create_app(engine, workers=Workers(engine, self.hatch))
        self._transport = httpx.ASGITransport(app=app)
        self._made: list[HttpBus] = []

    def worker(self, name: str) -> Bus:
        self._made.append(HttpBus(["http://localhost"], name, transport=self._transport))
        return self._made[-1]

    async def close(self) -> None:
        for bus in self._made:
            await bus.close()


@asynccontextmanager
async def http() -> AsyncIterator[Post]:
    async with Engine("memory:", work=False) as engine:
        post = HttpPost(engine)
        try:
            yield post
        finally:
            await post.close()


BUSES: dict[str, Callable[[], AbstractAsyncContextManager[Post]]] = {"local": local, "http": http}


@pytest.mark.parametrize("bus", BUSES)
@pytest.mark.parametrize(
    "check", bus_conformance.CHECKS, ids=lambda check: check.__name__.removeprefix("check_")
)
async def test_a_bus_keeps_its_promises(bus: str, check: Check) -> None:
    await check(BUSES[bus])
