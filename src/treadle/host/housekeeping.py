"""A server that keeps house by itself: now and then it removes the ended runs that operators said are old enough.

Of all servers of a store one does it, whoever asks first when it is time; one that dies in between leaves the rest for the
next time. What only a definition says, or nobody, waits for `treadle gc`: nothing is removed that no operator spoke of.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from treadle.kernel.errors import TreadleError
from treadle.runtime.commands import COLLECT

EVERY_S: Final = 3_600.0
# How often it is asked whether it is time.
LOOK_S: Final = 60.0

log = logging.getLogger("treadle.house")


class KeptHouse(Protocol):
    """What an engine is to whoever keeps its house."""

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any: ...
    async def gc(
        self, *, by: str | None = None, ruled: bool = False, archive: str | None = None
    ) -> dict[str, Any]: ...


class Housekeeping:
    def __init__(self, home: KeptHouse, *, archive: str | None = None, every_s: float = EVERY_S) -> None:
        self._home = home
        # The folder of the archive that runs go to before they are removed.
        self._archive = archive
        self._every_ns = round(every_s * 1e9)
        self._look_s = min(LOOK_S, every_s)

    async def go_on(self) -> None:
        """For as long as it is not cancelled."""
        while True:
            try:
                await self.step()
            except TreadleError as error:
                log.warning("keeping house waits: %s", error)
            await asyncio.sleep(self._look_s)

    async def step(self) -> bool:
        """Collects, if it is time and nobody else does it; whether it did."""
        if not await self._home.operate(COLLECT, {"step": "take", "every_ns": self._every_ns}):
            return False
        done = await self._home.gc(ruled=True, archive=self._archive)
        if done["runs"]:
            log.info("removed %d runs that are past their retention", done["runs"])
        return True
