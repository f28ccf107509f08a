"""What an engine reads of its store: beside the core on connections of its own (`readers.py`), or, where a store has but one,
on the core's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.kernel.errors import EngineStopped
from treadle.runtime.registry import Registry
from treadle.store.marks import NOW, MovedRun
from treadle.store.open import Place

from .aside import aside
from .passage import Asks, HomeLoop
from .readers import Readers, events_after

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


T = TypeVar("T")


class StoreReading:
    def __init__(
        self,
        place: Place,
        home: HomeLoop,
        asks: Asks,
        registry_of: Callable[[Reads], Registry],
        *,
        onlooker: bool,
    ) -> None:
        self._place = place
        self._home = home
        self._asks = asks
        self._registry_of = registry_of
        self._onlooker = onlooker
        self._readers: Readers | None = None

    # --- life ---

    def begin(self) -> None:
        self._readers = Readers(self._place, onlooker=self._onlooker)

    async def make_way(self) -> None:
        """Before the owner's connection closes: the last to close, if it may write, tidies the log away."""
        if self._readers is not None:
            before, self._readers = self._readers, Readers(self._place, onlooker=self._onlooker)
            await aside(before.close)

    async def end(self) -> None:
        if self._readers is not None:
            readers, self._readers = self._readers, None
            await aside(readers.close)

    # --- questions ---

    async def read(self, question: Callable[[Reads], T], *, long: bool = False) -> T:
        """Asks the store on a connection of its own, off the core thread if there is one; `long`: it may take time."""
        self._home.check()
        if self._readers is None:
            raise EngineStopped()
        if not self._place.shared and not self._onlooker:
            return await self._asks.look(lambda view: question(view.store))
        if long:
            return await asyncio.wrap_future(self._readers.submit(question, long=True))
        return await self._readers.ask(question)

    def read_blocking(self, question: Callable[[Reads], T]) -> T:
        """For workers, from any thread but the core's."""
        if self._place.shared and self._readers is not None:
            return self._readers.submit(question).result()
        return self._asks.look_blocking(lambda view: question(view.store))

    def blob(self, digest: str) -> bytes:
        return self.read_blocking(lambda reads: reads.blob(digest))

    # --- events, for those who watch ---

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        return await events_after(self.read, self._registry_of, run, after, record)

    async def moved_since(self, since: tuple[int, int]) -> tuple[tuple[int, int], list[MovedRun]]:
        return await self.read(lambda reads: reads.moved(since))

    def moved_now(self, limit_s: float) -> tuple[int, int]:
        if self._readers is None:
            raise EngineStopped()
        return self._readers.submit(lambda reads: reads.moved(NOW)).result(limit_s)[0]

    async def runs_beyond(self, event_no: int) -> list[str]:
        return await self.read(lambda reads: reads.runs_beyond(event_no))
