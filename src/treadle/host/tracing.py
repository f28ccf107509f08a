"""Traces of one engine: who follows its journal, and who tells of the work that is done here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from treadle.kernel.tracing import TraceIds
from treadle.kernel.values import Value
from treadle.lang.definition import Dialect
from treadle.runtime import traced
from treadle.runtime.ports import Work
from treadle.telemetry.follower import Follower, nothing_measured
from treadle.telemetry.otlp import Otlp
from treadle.telemetry.settings import OtlpSettings
from treadle.telemetry.spans import Measured
from treadle.telemetry.tracer import Tracer

from .passage import Asks, Seat
from .reading import StoreReading
from .signing import Vouching

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


T = TypeVar("T")

SERVICE: Final = "treadle"


class TracedStore:
    """The store of an engine, as a follower needs it."""

    def __init__(self, seat: Seat, reading: StoreReading, asks: Asks) -> None:
        self._seat = seat
        self._reading = reading
        self._asks = asks

    def is_ours(self) -> bool:
        return self._seat.decides("")

    def read(self, question: Callable[[Reads], T]) -> T:
        return self._reading.read_blocking(question)

    def saved(self) -> Value | None:
        return self.read(traced.saved)

    def save(self, body: dict[str, Value]) -> None:
        self._asks.operate_blocking(traced.KIND, body)


class EngineTraces:
    def __init__(
        self, settings: OtlpSettings, store: TracedStore, vouching: Vouching, dialects: Mapping[str, Dialect]
    ) -> None:
        self._settings = settings
        self._store = store
        self._vouching = vouching
        self._measured = measured_by(dialects)
        self._key: bytes | None = None
        self._ids = TraceIds()
        self._follower: Follower | None = None
        self.tracer = Tracer(self._connect, "embedded", self.ids, self._measured)

    def _connect(self) -> Otlp:
        return Otlp(self._settings, SERVICE)

    def ids(self) -> TraceIds:
        """Those of the store, which is known once it is open."""
        if self._key != self._vouching.work_key:
            self._key = self._vouching.work_key
            self._ids = TraceIds(self._key, ratio=self._settings.ratio)
        return self._ids

    def traceparent(self, work: Work) -> str:
        return str(self.ids().context(work.run, work.options, work.intent.id))

    def start(self) -> None:
        """The store is open. Not on the event loop."""
        self._follower = Follower(self._store, self._connect(), self.ids, self._measured)
        self._follower.start()
        self.tracer.start()

    def stop(self) -> None:
        """The store is about to close. Not on the event loop."""
        self.tracer.stop()
        if self._follower is not None:
            self._follower.stop()


def measured_by(dialects: Mapping[str, Dialect]) -> Callable[[str], Measured]:
    def found(name: str) -> Measured:
        return dialects[name].measured if name in dialects else nothing_measured

    return found
