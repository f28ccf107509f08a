"""Every check on every bus. Another one is one more `Post`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import psycopg
import pytest

from treadle import Engine
from treadle.bus.carrier import Carrier
from treadle.bus.data import Taken
from treadle.bus.far import FarBus, Relay, rows_of
from treadle.bus.hatch import Hatch
from treadle.bus.http import HttpBus
from treadle.bus.local import LocalBus
from treadle.bus.protocol import Bus, NearSide
from treadle.bus.seal import Seal
from treadle.server.app import create_app
from treadle.server.workers import Workers
from treadle.store.open import open_store
from treadle.testing import bus_conformance, resident_conformance
from treadle.testing.bus_conformance import LEASE_S, QUEUE_MAX, Check, Recorder
from treadle.testing.resident_conformance import NearCheck, NearPost

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
            again=self.owner.again.update,
        )
        bus.seal_with(KEY)
        return bus

    @property
    def near(self) -> NearSide:
        return self.offers

    async def restart(self) -> None:
        self.offers = self._begin()
        self.hatch.bus = self.offers

    def worker(self, name: str) -> Bus:
        return self.hatch.of(name)

    async def lose(self) -> None:
        """There is nothing between this owner and its workers."""

    def pass_time(self, seconds: float) -> None:
        self._clock.time_ns += int(seconds * 1e9)


@asynccontextmanager
async def local() -> AsyncIterator[NearPost]:
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
async def http() -> AsyncIterator[NearPost]:
    async with Engine("memory:", work=False) as engine:
        post = HttpPost(engine)
        try:
            yield post
        finally:
            await post.close()


class Quiet:
    """A far worker, asked once everything that the owner said is on its way: checks expect it to be there at once."""

    def __init__(self, post: FarPost, bus: FarBus) -> None:
        self._post = post
        self._bus = bus

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        self._post.offers.expire()
        await self._post.relay.flush()
        return await self._bus.take(pools, limit, wait_s=wait_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


class FarPost(LocalPost):
    """The local bus behind a relay; workers come over a carrier of their own."""

    def __init__(self, carrier: Callable[[], Carrier], empty: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._carrier = carrier
        self._empty = empty
        self._made: list[FarBus] = []
        self._relay_to(carrier())

    def _relay_to(self, carrier: Carrier) -> None:
        self._own = carrier
        self.relay = Relay(
            self.hatch, carrier, Seal(KEY), shards=lambda: {0}, shard_of=lambda run: 0, patience_s=0
        )
        self._running = asyncio.ensure_future(self.relay.run())

    def worker(self, name: str) -> Bus:
        bus = FarBus(self._carrier(), name, Seal(KEY).key_of(name), declined_s=0)
        self._made.append(bus)
        return Quiet(self, bus)

    async def restart(self) -> None:
        await self._stop()
        await super().restart()
        self._relay_to(self._carrier())

    async def lose(self) -> None:
        await self._empty()

    async def _stop(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._own.close()

    async def close(self) -> None:
        await self._stop()
        for bus in self._made:
            await bus.close()


@asynccontextmanager
async def postgres(pg_store: str) -> AsyncIterator[NearPost]:
    from treadle.bus.postgres import PostgresCarrier

    async def empty() -> None:
        async with await psycopg.AsyncConnection.connect(pg_store, autocommit=True) as connection:
            await connection.execute("TRUNCATE work_tickets, work_letters, work_answers, work_members")

    post = FarPost(lambda: PostgresCarrier(pg_store), empty)
    try:
        yield post
    finally:
        await post.close()
        await empty()


@asynccontextmanager
async def nats(url: str) -> AsyncIterator[NearPost]:
    from treadle.bus.nats import NatsCarrier
    from treadle.bus.nats_client import connected

    space = secrets.token_hex(4)

    async def empty() -> None:
        client = await connected(url)
        streams = client.jetstream()
        for info in await streams.streams_info():
            if space in str(info.config.name):
                await streams.delete_stream(str(info.config.name))
        await client.close()

    post = FarPost(lambda: NatsCarrier(url, space), empty)
    try:
        yield post
    finally:
        await post.close()
        await empty()


@pytest.fixture(scope="module")
def pg_work(pg_uri: str) -> str:
    """One store for all checks: each leaves its tables empty."""
    # A name of its own: who shares tests among processes may come back to a module.
    schema = f"work_bus_{secrets.token_hex(4)}"
    with psycopg.connect(pg_uri, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    address = f"{pg_uri}&options=-csearch_path%3D{schema}"
    open_store(address).close()
    return address


@pytest.fixture(params=["local", "http", "postgres", "nats"])
def make(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[NearPost]]:
    if request.param == "postgres":
        address = request.getfixturevalue("pg_work")
        return lambda: postgres(address)
    if request.param == "nats":
        address = request.getfixturevalue("nats_bus")
        return lambda: nats(address)
    return local if request.param == "local" else http


@pytest.mark.parametrize(
    "check", bus_conformance.CHECKS, ids=lambda check: check.__name__.removeprefix("check_")
)
async def test_a_bus_keeps_its_promises(
    make: Callable[[], AbstractAsyncContextManager[NearPost]], check: Check
) -> None:
    await check(make)


@pytest.mark.parametrize(
    "check", resident_conformance.CHECKS, ids=lambda check: check.__name__.removeprefix("check_")
)
async def test_a_bus_keeps_what_it_promises_the_resident(
    make: Callable[[], AbstractAsyncContextManager[NearPost]], check: NearCheck
) -> None:
    """Whoever the others are beside it, and over whatever they come."""
    await check(make)


@pytest.fixture(params=["postgres", "nats"])
def carrier(request: pytest.FixtureRequest) -> Callable[[], Carrier]:
    from treadle.bus.nats import NatsCarrier
    from treadle.bus.postgres import PostgresCarrier

    if request.param == "postgres":
        address = request.getfixturevalue("pg_work")
        return lambda: PostgresCarrier(address)
    url, space = request.getfixturevalue("nats_bus"), secrets.token_hex(4)
    return lambda: NatsCarrier(url, space)


async def test_a_worker_that_leaves_is_not_counted_on_any_more(carrier: Callable[[], Carrier]) -> None:
    """Nobody waits for it, as for one that fell silent; and it takes no other one of its name along."""
    looking = carrier()

    async def joined(name: str, pool: str) -> FarBus:
        bus = FarBus(carrier(), name, Seal(KEY).key_of(name), about={"pools": [pool]})
        await bus.register()
        return bus

    try:
        old = await joined("ann", "a")
        other = await joined("bea", "a")
        assert set(await looking.members()) == {"ann", "bea"}
        await other.close()
        assert set(await looking.members()) == {"ann"}
        new = await joined("ann", "b")
        await old.close()
        assert rows_of(await looking.members())["ann"]["pools"] == ["b"]
        await new.close()
        assert await looking.members() == {}
    finally:
        await looking.close()


async def test_the_open_take_of_a_worker_that_leaves_ends(carrier: Callable[[], Carrier]) -> None:
    """Else whoever stops a worker that has nothing to do waits for nothing."""
    bus = FarBus(carrier(), "ann", Seal(KEY).key_of("ann"))
    try:
        await bus.register()
        taking = asyncio.ensure_future(bus.take(["default"], 1, wait_s=3600))
        await asyncio.sleep(0)
        await bus.register(draining=True)
        async with asyncio.timeout(60):
            assert (await taking).items == []
    finally:
        await bus.close()
