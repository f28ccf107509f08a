"""Whether an engine tells a collector of its runs. Nothing of that is imported where nobody is told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.lang.definition import Dialect
from treadle.runtime.ports import Work

from .passage import Asks, Seat
from .reading import StoreReading
from .signing import Vouching

if TYPE_CHECKING:
    from treadle.telemetry.tracer import Tracer

    from .tracing import EngineTraces


class TraceSwitch:
    def __init__(
        self,
        telemetry: str | bool | None,
        *,
        seat: Seat,
        reading: StoreReading,
        asks: Asks,
        vouching: Vouching,
        dialects: Mapping[str, Dialect],
    ) -> None:
        """`telemetry` is an OTLP address, or True: as the variables of OpenTelemetry say."""
        self._traces: EngineTraces | None = None
        if telemetry is None or telemetry is False:
            return
        from treadle.telemetry.settings import settings

        from .tracing import EngineTraces, TracedStore

        if (found := settings(telemetry, os.environ)) is not None:
            self._traces = EngineTraces(found, TracedStore(seat, reading, asks), vouching, dialects)

    @property
    def tracer(self) -> Tracer | None:
        return None if self._traces is None else self._traces.tracer

    def traceparent(self, work: Work) -> str | None:
        return None if self._traces is None else self._traces.traceparent(work)

    async def begin(self) -> None:
        """The store is open."""
        if self._traces is not None:
            await asyncio.to_thread(self._traces.start)

    async def end(self) -> None:
        """The store is about to close."""
        if self._traces is not None:
            await asyncio.to_thread(self._traces.stop)
