"""A worker without a store: the same performers as an engine's, doing the work of a server elsewhere.

It has an engine in memory, for what an engine lends to performers (tools, transports, models, secrets, code); the
runs are the server's. Whatever needs the runs themselves is said not to be here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

from treadle.bus.local import LocalBus
from treadle.kernel.errors import Unsupported
from treadle.kernel.values import Value
from treadle.lang.definition import Dialect
from treadle.performers import performers_of
from treadle.runtime.ports import SystemClock
from treadle.runtime.registry import Loaded
from treadle.work.courier import Courier
from treadle.work.job import StaysOpen
from treadle.work.performers import PerformerTable
from treadle.work.worker import Worker

from .goods import StoreGoods

if TYPE_CHECKING:
    from treadle.bus.protocol import FarSide, Goods
    from treadle.engine import Engine
    from treadle.performers.agent.agents import Agents
    from treadle.store.protocol import Reads
    from treadle.telemetry.tracer import Tracer

T = TypeVar("T")

SERVICE: Final = "treadle-worker"
# How often a worker on a store looks at runs that it keeps something for.
LOOK_S: Final = 1.0
AT_HOME: Final = "what goes to other runs is done where the runs are"


class Looking:
    """A run of a store that others decide: nobody tells of it, so it is looked at now and then."""

    async def changed(self, poll_s: float) -> None:
        await asyncio.sleep(min(poll_s, LOOK_S))


class RemoteHouse:
    """What performers may have of the engine here (`performers.House`), and of the store if this worker is on one."""

    def __init__(self, engine: Engine, store: StoreGoods | None) -> None:
        from treadle.performers.agent.agents import Agents

        self._engine = engine
        self._store = store
        self.store_url = engine.store_url
        self.tools = engine.tools
        self.secrets = engine.secrets
        self.transports = engine.transports
        self.configs = engine.configs
        # The skills that were registered here; runs are elsewhere, so that what is built in is our own.
        self.agents: Agents = Agents(
            engine.models, engine.secrets, engine.configs, self, beside=engine.agents
        )

    @property
    def dialects(self) -> Mapping[str, Dialect]:
        return self._engine.dialects

    def read(self, question: Callable[[Reads], T]) -> Awaitable[T]:
        """Of the store; without one, of the engine here, which has no runs."""
        return self._engine.read(question) if self._store is None else self._store.read(question)

    async def definition(self, workflow: Any) -> Any:
        raise StaysOpen(AT_HOME)

    async def definitions(self) -> list[dict[str, Any]]:
        raise StaysOpen(AT_HOME)

    def watch(self, run: str) -> AbstractContextManager[Looking]:
        if self._store is None:
            raise Unsupported(
                "runs are at the server; a worker that reaches only a server cannot follow them"
            )
        return nullcontext(Looking())

    async def start(self, workflow: Any, input: Any = None, **options: Any) -> Any:
        raise StaysOpen(AT_HOME)

    async def run(self, id: str) -> Any:
        raise StaysOpen(AT_HOME)

    async def signal(self, id: str, name: str, data: Value = None, *, key: str | None = None) -> object:
        raise StaysOpen(AT_HOME)

    async def publish(
        self, event: object, value: Value = None, *, submission_id: str | None = None
    ) -> object:
        raise StaysOpen(AT_HOME)

    async def cancel(self, id: str, reason: str = "") -> dict[str, Any]:
        raise StaysOpen(AT_HOME)


class Fetched:
    """Definitions by digest, fetched once from the server."""

    def __init__(self, engine: Engine, courier: Courier) -> None:
        self._library = engine.library
        self._courier = courier

    def peek(self, digest: str) -> Loaded | None:
        return self._library.at_hand(digest)

    def load(self, digest: str) -> Loaded:
        found = self._library.at_hand(digest)
        return found or self._library.make_ready(self._courier.fetch_definition(digest))


def _tracer(telemetry: str | bool | None, worker: str, dialects: Mapping[str, Dialect]) -> Tracer | None:
    """Who tells of the work that is done here: it continues what the server says."""
    if telemetry is None or telemetry is False:
        return None
    from treadle.host.tracing import measured_by
    from treadle.telemetry.otlp import Otlp
    from treadle.telemetry.settings import settings
    from treadle.telemetry.tracer import Tracer

    found = settings(telemetry, os.environ)
    if found is None:
        return None
    return Tracer(lambda: Otlp(found, SERVICE, worker), worker, None, measured_by(dialects))


class RemoteWorker:
    def __init__(
        self,
        engine: Engine,
        far: FarSide,
        goods: Goods,
        *,
        pools: Collection[str],
        concurrency: int,
        threads: int = 8,
        name: str = "",
        telemetry: str | bool | None = None,
    ) -> None:
        near = LocalBus(SystemClock())
        house = RemoteHouse(engine, goods if isinstance(goods, StoreGoods) else None)
        self._house = house
        self._courier = Courier(far, goods, near, pools=pools, concurrency=concurrency)
        self._tracer = _tracer(telemetry, name, engine.dialects)
        self._worker = Worker(
            near,
            self._courier,
            engine.secrets,
            Fetched(engine, self._courier),
            PerformerTable(lambda dialect: performers_of(dialect, house)),
            concurrency=concurrency,
            threads=threads,
            name=name,
            tracer=self._tracer,
        )

    async def run(self) -> None:
        """Works until `leave` and all is done, or until it is cancelled."""
        self._worker.start(asyncio.get_running_loop())
        if self._tracer is not None:
            self._tracer.start()
        try:
            await self._courier.run()
        finally:
            await self._worker.stop()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.stop)
            await self._worker.performers.close()
            await self._house.agents.close()

    async def leave(self, drain_s: float) -> None:
        """Finishes what is in hand within a time; the rest is for others."""
        await self._courier.leave()
        await self._worker.finish(drain_s)
        await self._courier.flush()
        if self._worker.take_no_more():
            await self._worker.stop()
        await self._courier.give_back()
