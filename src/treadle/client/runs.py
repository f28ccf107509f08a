"""A handle on a run at a server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

from treadle.kernel.model import TERMINAL
from treadle.kernel.values import Value
from treadle.runs import result_of, unfinished

from .wire import ANSWER_S, Wire

# How long one request waits for a run; then it asks anew.
WAIT_S: Final = 25.0
PAGE: Final = 1000


def path_of(*parts: str) -> str:
    return "".join(f"/{quote(part, safe='')}" for part in parts)


class RemoteRun:
    def __init__(self, wire: Wire, id: str) -> None:
        self._wire = wire
        self.id = id
        self._path = path_of("runs", id)

    async def show(self, *, engine: bool = False, at: int | None = None) -> dict[str, Any]:
        found: dict[str, Any] = await self._wire.get(self._path, engine=engine or None, at=at)
        return found

    async def journal(self, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = await self._wire.get(f"{self._path}/journal", after=after + len(found), limit=wanted)
            found += page
            if len(page) < wanted:
                break
        return found

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[dict[str, Any]]:
        path = f"{self._path}/events"
        if follow:
            async for event in self._wire.stream(path, after):
                yield event
            return
        at: int | None = after
        while at is not None:
            page = await self._wire.get(path, after=at, limit=PAGE)
            for event in page["items"]:
                yield event
            at = page["next"]

    async def settled(self, *, until_wait: bool = False) -> dict[str, Any]:
        """Waits as a run on a store does: until it has ended, or only others can move it on."""
        while True:
            settled, shown = await self._wait(WAIT_S, "timers" if until_wait else None)
            if settled:
                return shown

    async def at_rest(self, *, until_wait: bool = False) -> dict[str, Any]:
        """As `settled`; a server gives the document anyhow."""
        return await self.settled(until_wait=until_wait)

    async def result(self, timeout: float | None = None) -> Value:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_S if until is None else max(0.0, min(WAIT_S, until - time.monotonic()))
            _, shown = await self._wait(left, "terminal")
            if shown["status"] in TERMINAL:
                return result_of(shown)
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(unfinished(shown, timeout))

    async def _wait(self, timeout_s: float, until: str | None) -> tuple[bool, dict[str, Any]]:
        answer = await self._wire.ask(
            "POST",
            f"{self._path}/wait",
            params={"timeout": timeout_s, "until": until},
            again=True,
            timeout_s=timeout_s + ANSWER_S,
        )
        return answer.headers.get("x-treadle-settled") == "true", answer.json()
