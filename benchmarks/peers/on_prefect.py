"""Prefect: flows and tasks, their states kept by its server on SQLite, their results in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from peers import work
from peers.peer import version

SUSPENDED = "a flow that waits is suspended and begun anew by a worker of a deployment, not in this process"


class Peer:
    cannot = {  # noqa: RUF012
        "W3": SUSPENDED,
        "W4": "a flow whose process was killed stays Running; nothing takes it up where it was",
        "W8": "it has no agent graphs",
        "W9": "a start over HTTP stores a row that a worker of a deployment polls for; nothing of it is run by the server",
    }

    @property
    def about(self) -> dict[str, str]:
        return {
            "version": version("prefect"),
            "durability": "SQLite, WAL, synchronous=NORMAL (its own setting: the last commits can be lost with the power)",
            "recovery": "none in the middle of a flow",
            "processes": "a server and the flows (both Python)",
        }

    async def open(self, folder: Path, program: str) -> None:
        """Prefect reads its settings when it is imported, so that comes after the folder is known."""
        folder.mkdir(parents=True, exist_ok=True)
        os.environ |= {
            "PREFECT_HOME": str(folder),
            "PREFECT_LOGGING_LEVEL": "CRITICAL",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
            "DO_NOT_TRACK": "1",
        }
        import asyncio

        from prefect import flow, task

        @task(persist_result=True)
        async def count(n: int) -> int:
            return work.count(n)

        @flow(persist_result=True)
        async def chain(steps: int) -> int:
            n = 0
            for _ in range(steps):
                n = await count(n)
            return n

        @flow(persist_result=True)
        async def fan(width: int) -> int:
            return sum(await asyncio.gather(*(count(0) for _ in range(width))))

        @flow(persist_result=True)
        async def parent(children: int) -> int:
            return sum(await asyncio.gather(*(chain(1) for _ in range(children))))

        self._chain: Any = chain
        self._fan: Any = fan
        self._parent: Any = parent

    async def close(self) -> None:
        """Its server ends with this process."""

    async def chain(self, steps: int) -> int:
        return int(await self._chain(steps))

    async def fan(self, width: int) -> int:
        return int(await self._fan(width))

    async def children(self, count: int) -> int:
        return int(await self._parent(count))
