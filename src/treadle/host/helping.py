"""As the guest of an owner that works for its own runs only: has it do what is wanted here.

The owner's lock says whether it works alone. If it does, a guest that helps everybody asks it to do the same,
and one that wants certain runs names them. A new owner is asked again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import TreadleError

if TYPE_CHECKING:
    from .bridge import Bridge

HELP: Final = "help"
_LOOK_S: Final = 0.25


class Asking:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _ask(self) -> None:
        """Until this process owns the store itself: on a file it stays the owner, and has nobody to ask."""
        told: object = None
        while self._bridge.member is not None or self._bridge.core is None:
            asked = self._wanted()
            if asked is not None and asked != told:
                with suppress(TreadleError):  # an owner that is going: the next one is asked
                    await self._bridge.operate(HELP, {"runs": asked[1]})
                    told = asked
            await asyncio.sleep(_LOOK_S)

    def _wanted(self) -> tuple[str, Any] | None:
        """Whom to ask and for what; None where there is nothing to ask for."""
        worker = self._bridge.worker
        if worker is None:
            return None
        owner = self._bridge.works_alone()
        runs = None if worker.others.helps else worker.others.wanted
        return None if owner is None or runs == [] else (owner, runs)
