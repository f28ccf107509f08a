"""Work of those who ask for it. An owner that works for its own runs only does what its guests ask of it; and as the guest of
such an owner, an engine asks it for what is wanted here.

The owner's lock says whether it works alone. If it does, a guest that helps everybody asks it to do the same,
and one that wants certain runs names them. A new owner is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from treadle.kernel.errors import TreadleError
from treadle.work.worker import Worker

from .passage import Seat

log = logging.getLogger("treadle")

HELP: Final = "help"
_LOOK_S: Final = 0.25


class Helping:
    def __init__(
        self, seat: Seat, worker: Worker, operate: Callable[[str, dict[str, Any]], Awaitable[Any]]
    ) -> None:
        self._seat = seat
        self._worker = worker
        self._operate = operate
        self._task: asyncio.Task[None] | None = None

    def help(self, runs: list[str] | None) -> None:
        """On the core thread: somebody wants these runs done, or all."""
        self._worker.help(runs)
        if runs is None:
            self._seat.help_all()

    # --- as a guest ---

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            # Waited for, not awaited: what befell it must not keep an engine from its end.
            await asyncio.wait([self._task])
            self._task = None

    async def _ask(self) -> None:
        """Until this process owns the store itself: on a file it stays the owner, and has nobody to ask."""
        told: object = None
        while self._seat.shares or self._seat.core is None:
            try:
                asked = self._wanted()
                if asked is not None and asked != told:
                    await self._operate(HELP, {"runs": asked[1]})
                    told = asked
            except TreadleError:
                pass  # an owner that is going: the next one is asked
            except Exception:
                log.exception("nobody can be asked to help")
                return
            await asyncio.sleep(_LOOK_S)

    def _wanted(self) -> tuple[str, Any] | None:
        """Whom to ask and for what; None where there is nothing to ask for."""
        owner = self._seat.works_alone()
        others = self._worker.others
        runs = None if others.helps else others.wanted
        return None if owner is None or runs == [] else (owner, runs)
