"""The same tests in another house: every engine on PostgreSQL, with no worker of its own.

All work is then done by a worker that knows only a carrier and the store, as `treadle serve --no-worker --bus …` and
`treadle worker --store … --bus …` share it between processes: the same objects, in the process of the test. `nats` and
`postgres` are the carriers.

A test that is marked `house` runs here too, in every run of the suite; `make house` (`TREADLE_HOUSE=nats pytest
tests/dialects tests/acceptance`) runs all of them here and nowhere else. What needs a file, or a worker inside the engine, is marked
`at_home`, with the reason.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from treadle.engine import Engine
from treadle.server.joining import Joined, join
from treadle.server.remote import RemoteWorker
from treadle.server.workers import Workers
from treadle.store import open as opening

POOLS = ["default", "gpu"]
FILE = "sqlite:///"


class Stores:
    """Schemas of one database in place of files: a file that is opened again is the same store again."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._of_files: dict[str, str] = {}
        self._made: list[str] = []

    def at(self, asked: str) -> str:
        """The address of the store that stands for a file, or for one in memory."""
        if not asked.startswith((FILE, "memory:", ":memory:")):
            return asked
        if not asked.startswith(FILE):
            return self._new()
        file = str(Path(asked.removeprefix(FILE)).absolute())
        if file not in self._of_files:
            self._of_files[file] = self._new()
        return self._of_files[file]

    def _new(self) -> str:
        schema = f"house_{secrets.token_hex(6)}"
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        self._made.append(schema)
        return f"{self._database}&options=-csearch_path%3D{schema}"

    def drop(self) -> None:
        with psycopg.connect(self._database, autocommit=True) as connection:
            for schema in self._made:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")


class Work:
    """What does an engine's work: a server's side of the bus, and a worker that reaches it only over the carrier."""

    def __init__(self, engine: Engine, bus: str, concurrency: int) -> None:
        self._engine, self._bus, self._concurrency = engine, bus, concurrency
        self._tasks: list[asyncio.Future[Any]] = []
        self._workers: Workers | None = None
        self._joined: Joined | None = None

    async def begin(self) -> None:
        engine = self._engine
        # Nobody else is on their way: what cannot be done here is said so at once.
        workers = self._workers = Workers(engine, bus=self._bus, watch_s=0.1, patience_s=0)
        joined = self._joined = await join(
            f"house-{secrets.token_hex(4)}",
            {"pools": list(POOLS), "concurrency": self._concurrency},
            servers=(),
            store=engine.store_url,
            bus=self._bus,
            token=None,
            say=lambda text: None,
        )
        worker = RemoteWorker(engine, joined.far, joined.goods, pools=POOLS, concurrency=self._concurrency)
        running = (workers.carrying.run(), workers.watch(), worker.run())
        self._tasks = [asyncio.ensure_future(one) for one in running]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._joined is not None:
            await self._joined.close()
        if self._workers is not None:
            await self._workers.carrying.close()


@contextmanager
def installed(database: str, bus: str) -> Iterator[None]:
    """For as long as this lasts the engines of this process live in the other house."""
    stores = Stores(database)
    working: dict[int, Work] = {}
    plain_init, plain_enter, plain_exit = Engine.__init__, Engine.__aenter__, Engine.__aexit__
    plain_dialect, is_postgres = opening._postgres_dialect, opening.is_postgres

    def init(self: Engine, store: str | None = None, **options: Any) -> None:
        works = options.get("work", True) and not options.get("readonly")
        asked = store or os.environ.get("TREADLE_STORE") or f"{FILE}treadle.db"
        plain_init(self, stores.at(asked), **{**options, "work": False})
        if works:
            working[id(self)] = Work(self, bus, options.get("concurrency", 64))

    async def enter(self: Engine) -> Engine:
        found = await plain_enter(self)
        if id(self) in working:
            await working[id(self)].begin()
        return found

    async def leave(self: Engine, *exc: object) -> None:
        if id(self) in working:
            await working[id(self)].end()
        await plain_exit(self, *exc)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", init)
        patch.setattr(Engine, "__aenter__", enter)
        patch.setattr(Engine, "__aexit__", leave)
        # Whoever asks for a store beside an engine gets the same one: the command line does.
        patch.setattr(opening, "is_postgres", lambda url: is_postgres(url) or url.startswith(FILE))
        patch.setattr(opening, "_postgres_dialect", lambda url: plain_dialect(stores.at(url)))
        try:
            yield
        finally:
            stores.drop()
