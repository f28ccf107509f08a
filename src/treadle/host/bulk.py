"""Who does bulk work: takes chunks of jobs (`runtime/bulks.py`) and goes about their runs, many at once.

What was begun by somebody who died is begun again, and changes nothing the second time: a retry and a signal carry the
job's name, under which a run remembers its answer; a cancelled run stays as it is; a run that is gone is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from treadle.kernel.errors import RunNotFound, TreadleError
from treadle.kernel.run import error_of
from treadle.runtime import bulks

from .acting import Origin, acting

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


T = TypeVar("T")
AT_ONCE: Final = 64
# How often jobs are looked for that another server accepted, or left.
LOOK_S: Final = 1.0

log = logging.getLogger("treadle.bulk")


class BulkHome(Protocol):
    """What an engine is to whoever does bulk work on it."""

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any: ...
    async def read(self, question: Callable[[Reads], T], *, long: bool = False) -> T: ...
    async def retry(
        self,
        /,
        id: str,
        *,
        by: str | None = None,
        definition: Any = None,
        once: tuple[str, str] | None = None,
        **how: Any,
    ) -> dict[str, Any]: ...
    async def cancel(self, id: str, reason: str = "", *, by: str | None = None) -> dict[str, Any]: ...
    async def signal(
        self,
        id: str,
        name: str,
        data: Any = None,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> dict[str, Any]: ...
    async def delete(self, id: str, *, by: str | None = None) -> dict[str, Any]: ...


class BulkWork:
    """One process that goes on with the jobs of a store."""

    def __init__(self, home: BulkHome, *, server: str = "") -> None:
        self._home = home
        self._server = server
        self._holder = f"{server}:{token_hex(6)}"
        self._news = asyncio.Event()

    async def accept(
        self, action: bulks.Action, ids: list[str], arguments: dict[str, Any], *, by: str, scope: str = ""
    ) -> dict[str, Any]:
        """A new job on these runs; it is durable when this returns."""
        asked = {"id": f"bulk-{token_hex(8)}", "action": action, "arguments": arguments, "ids": ids}
        row: dict[str, Any] = await self._home.operate(
            bulks.KIND, {"op": "accept", **asked, "by": by, "scope": scope}
        )
        self._news.set()
        return row

    async def go_on(self) -> None:
        """For as long as it is not cancelled: does what there is to do."""
        while True:
            try:
                busy = await self.step()
            except TreadleError as error:
                log.warning("bulk work waits: %s", error)
                busy = False
            if not busy:
                self._news.clear()
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
                except TimeoutError:
                    continue

    async def step(self) -> bool:
        """One chunk of one job; False if there is none."""
        if not await self._home.read(
            lambda reads: any(row.status == "running" for row in bulks.all_of(reads))
        ):
            return False
        taken = await self._home.operate(bulks.KIND, {"op": "take", "holder": self._holder})
        if taken is None:
            return False
        room = asyncio.Semaphore(AT_ONCE)
        with acting(Origin(taken["by"], server=self._server, request=taken["id"])):
            found = await asyncio.gather(*(self._one(room, taken, id) for id in taken["ids"]))
        errors = [error for error in found if error is not None]
        told = {"done": len(found) - len(errors), "failed": len(errors), "errors": errors[: bulks.ERRORS_MAX]}
        asked = {"op": "advance", "id": taken["id"], "nth": taken["nth"], "holder": self._holder, **told}
        await self._home.operate(bulks.KIND, asked)
        return True

    async def _one(self, room: asyncio.Semaphore, job: dict[str, Any], id: str) -> dict[str, Any] | None:
        async with room:
            try:
                await self._act(job, id)
            except TreadleError as error:
                return {"id": id, "error": error_of(error)}
        return None

    async def _act(self, job: dict[str, Any], id: str) -> None:
        arguments, by, name = job["arguments"], job["by"], f"bulk:{job['id']}"
        match job["action"]:
            case "retry":
                await self._home.retry(id, by=by, once=(f"run:{id}", name), **arguments)
            case "cancel":
                await self._home.cancel(id, arguments.get("reason", ""), by=by)
            case "signal":
                key = arguments.get("key") or name
                await self._home.signal(id, arguments["name"], arguments.get("data"), key=key, by=by)
            case "delete":
                try:
                    await self._home.delete(id, by=by)
                except RunNotFound:
                    return
