"""MCP sessions live exactly as long as the visits they were started for.

A visit is over when its run waits for something else: the store knows, nobody has to remember to
tell. So a run with sessions is watched, and after each change those that nothing open belongs to
are stopped, be it that the node failed, the run was stopped or cancelled, or the model was done.
As long as a visit goes on, through rate limits and turns of any length, its session is renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import TERMINAL
from treadle.runtime.opened import open_work

from .api import McpServer, McpSession, Visit

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


log = logging.getLogger("treadle.agent")


class Waking(Protocol):
    async def changed(self, poll_s: float) -> None: ...


class Watched(Protocol):
    """What is needed of an engine."""

    def watch(self, run: str) -> AbstractContextManager[Waking]: ...

    def read(self, question: Callable[[Reads], Any]) -> Awaitable[Any]: ...


class KeptSessions(Protocol):
    """What is needed of `mcp.Sessions`."""

    idle_s: float

    async def open(
        self, key: Visit, servers: Mapping[str, McpServer], taken: Sequence[str]
    ) -> McpSession: ...

    def renew(self, key: Visit) -> None: ...

    async def release(self, key: Visit) -> None: ...

    async def close(self) -> None: ...


class VisitSessions:
    """The sessions of one engine, each held as long as its visit goes on."""

    def __init__(self, engine: Watched, sessions: KeptSessions) -> None:
        self._engine = engine
        self._sessions = sessions
        self._visits: dict[str, set[Visit]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def open(self, visit: Visit, servers: Mapping[str, McpServer], taken: Sequence[str]) -> McpSession:
        self._visits.setdefault(visit.run, set()).add(visit)
        if visit.run not in self._tasks:
            self._tasks[visit.run] = asyncio.create_task(self._watch(visit.run))
        return await self._sessions.open(visit, servers, taken)

    async def release(self, visit: Visit) -> None:
        self._visits.get(visit.run, set()).discard(visit)
        await self._sessions.release(visit)

    async def close(self) -> None:
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sessions.close()

    async def _watch(self, run: str) -> None:
        try:
            with self._engine.watch(run) as watch:
                while self._visits[run]:
                    await self._look(run)
                    await watch.changed(self._sessions.idle_s / 4)
        except TreadleError:
            # The engine stops: its sessions are closed with it.
            return
        except Exception:
            log.exception("the MCP sessions of %s are not watched any more; they end when they are idle", run)
        finally:
            del self._tasks[run], self._visits[run]

    async def _look(self, run: str) -> None:
        held = set(self._visits[run])
        goes_on = await self._engine.read(lambda reads: _going_on(reads, run, held))
        for visit in held:
            if visit not in goes_on:
                await self.release(visit)
            else:
                self._sessions.renew(visit)


def _going_on(reads: Reads, run: str, held: set[Visit]) -> set[Visit]:
    row = reads.run(run)
    if row is None or row.status in TERMINAL:
        return set()
    found: set[Visit] = set()
    for intent in open_work(row, reads).values():
        session = intent.params.get("session")
        if session is not None:
            found.add(Visit(run, session))
        elif intent.kind in ("timer", "task"):
            # A pause before the next try, a question to a person: the branch is where it was.
            found |= {visit for visit in held if visit.session.startswith(f"{intent.ref}/")}
    return found
