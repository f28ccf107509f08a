"""An engine as those see it who do its work, here with what they lend to it, or from outside: the bus, and ways to
hand in what they bring."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treadle.bus.local import LocalBus
from treadle.definitions.dialects import Dialects
from treadle.kernel.model import Receipt, shard_of
from treadle.lang.names import KnownNames
from treadle.runtime.commands import Progress
from treadle.runtime.ports import Work
from treadle.tools.registry import ToolRegistry
from treadle.work.worker import Worker

from .bridge import Bridge

if TYPE_CHECKING:
    from treadle.performers.process.transports import Transports

    from .tracing import EngineTraces


class WorkMethods:
    _bridge: Bridge
    worker: Worker
    dialects: Dialects
    tools: ToolRegistry
    _traces: EngineTraces | None

    @cached_property
    def transports(self) -> Transports:
        """What calls of processes go over, imported when somebody asks for one."""
        from treadle.performers.process.transports import Transports

        return Transports(self.tools)

    def _callables(self) -> KnownNames:
        """The names of what can be called. What is no tool here is looked for among the transports."""
        return KnownNames(self.tools.registered, lambda: self.transports.names())

    def transport(
        self, name: str, *, pure: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a function of the payload that processes can call: `@engine.transport("billing")`."""
        return self.transports.transport(name, pure=pure)

    def _tracing(self, telemetry: str | bool | None) -> EngineTraces | None:
        """`telemetry` is an OTLP address, or True: as the variables of OpenTelemetry say."""
        if telemetry is None or telemetry is False:
            return None
        from treadle.telemetry.settings import settings

        from .tracing import EngineTraces, TracedStore

        found, bridge = settings(telemetry, os.environ), self._bridge
        store = TracedStore(bridge.seat, bridge.reading, bridge.asks)
        return None if found is None else EngineTraces(found, store, bridge.vouching, self.dialects)

    async def _begin_traces(self) -> None:
        if self._traces is not None:
            await asyncio.to_thread(self._traces.start)

    async def _end_traces(self) -> None:
        if self._traces is not None:
            await asyncio.to_thread(self._traces.stop)

    def traced(self, work: Work) -> str | None:
        """What a worker elsewhere continues, where this engine traces its runs."""
        return None if self._traces is None else self._traces.traceparent(work)

    @property
    def bus(self) -> LocalBus:
        """What carries this engine's work to workers."""
        return self._bridge.bus

    @property
    def work_key(self) -> bytes:
        """What leases and workers of this store are known by."""
        return self._bridge.vouching.work_key

    def shards_held(self) -> frozenset[int]:
        """The shards of the store that this engine holds now."""
        core = self._bridge.seat.core
        return frozenset() if core is None else frozenset(tuple(core.store.held))

    def shard_of(self, run: str) -> int:
        core = self._bridge.seat.core
        return 0 if core is None else shard_of(run, core.store.shards)

    def _is_at_home(self, work: Work) -> bool:
        return work.dialect in self.dialects and self.dialects[work.dialect].is_at_home(work.intent)

    def hand_in(self, progress: Progress) -> None:
        """Progress of an intent; of one that is not open any more, nothing."""
        self._bridge.asks.submit(progress)

    def vouched(self, dialect: str, receipt: Receipt) -> Receipt:
        """A receipt with the node's signature, where its dialect asks for one: whoever brought it was known by
        the lease."""
        if dialect not in self.dialects or not self.dialects[dialect].machine.traits.signed:
            return receipt
        return self._bridge.vouching.vouched(receipt)

    def unavailable(self) -> dict[str, str]:
        """Intents that nobody here can do, and why."""
        return {**self.worker.unknown, **self._bridge.bus.undoable()}

    def resident_row(self, busy: int) -> dict[str, Any] | None:
        """The worker inside this engine, if it has one."""
        if self._bridge.worker is None:
            return None
        pools = self.worker.pools
        return {
            "id": "embedded",
            "name": "embedded",
            "pools": ["*"] if pools is None else sorted(pools),
            "concurrency": self.worker.concurrency,
            "busy": busy,
        }
