"""What the subjects of an engine stand on (`*_methods.py`): how they reach its core and its store, and what they are handed.

Each subject is a class that is made of these alone, and works by itself: `TaskMethods(host, …)` is an inbox. An engine is
all of them, so that their names are its own. None of them knows another, or anything else of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from treadle.arguments import checked_event
from treadle.bus.local import LocalBus
from treadle.definitions.dialects import Dialects
from treadle.definitions.library import Library
from treadle.kernel.model import Event
from treadle.runtime.commands import Command, Deliver, View
from treadle.runtime.meter import CoreMeter
from treadle.runtime.ports import Ack, Clock
from treadle.secrets.providers import Secrets
from treadle.store.open import Place
from treadle.work.worker import Worker

from .news import Watching
from .offers import DialectOffers
from .passage import Asks, Seat
from .reading import StoreReading
from .signing import Vouching

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .pool_sharing import PoolSharing

T = TypeVar("T")


if TYPE_CHECKING:

    class HostParts(Protocol):
        """What stands between an engine and its core (`bridge.py`), without its life."""

        place: Place
        asks: Asks
        reading: StoreReading
        seat: Seat
        watching: Watching
        vouching: Vouching
        bus: LocalBus
        meter: CoreMeter
        pools: PoolSharing | None


class Reaches:
    # What does work here. It is made last, of all the rest.
    worker: Worker

    def __init__(
        self,
        host: HostParts,
        *,
        store_url: str,
        library: Library,
        dialects: Dialects,
        secrets: Secrets,
        clock: Clock,
        offers: DialectOffers,
    ) -> None:
        self._host = host
        self.store_url = store_url
        self.library = library
        self.dialects = dialects
        self.secrets = secrets
        # What timers and deadlines go by; `treadle.testing.VirtualClock` in tests.
        self.clock = clock
        # What dialects can be asked for besides events of their runs.
        self.offers = offers
        # Wakes when a run changes (or ends); for those who then read the store.
        self.watch = host.watching.watch

    async def submit(self, /, run: str, event: Event, **more: Any) -> dict[str, Any]:
        """Hands one event to a run; returns when the decision on it is durable."""
        return dict(await self.ask(lambda ack: Deliver(run, checked_event(event), ack=ack, **more)))

    async def look(self, question: Callable[[View], T]) -> T:
        """Asks on the core thread, between two commits; changes nothing. Only where the store is owned."""
        return await self._host.asks.look(question)

    async def read(self, question: Callable[[Reads], T], *, long: bool = False) -> T:
        """Asks the store, off the core thread where possible; `long` if the answer may take its time."""
        return await self._host.reading.read(question, long=long)

    async def ask(self, make: Callable[[Ack], Command]) -> Any:
        """Hands the core a command that answers by itself."""
        return await self._host.asks.ask(make)

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        """Performs a named operation where the store is owned, here or in another process. `home` is the
        run at which it is decided, if there is one."""
        return await self._host.asks.operate(name, body, home=home)
