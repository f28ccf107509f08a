"""DBOS Transact as its documentation sets it up: on SQLite, asked for WAL and FULL; on PostgreSQL if `cluster.py` names one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS, SetWorkflowID, WorkflowHandleAsync

from peers import work
from peers.peer import version

POSTGRES = os.environ.get("BENCH_POSTGRES")


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def durable(connection: Any, record: Any) -> None:
    """DBOS leaves SQLite's rollback journal on, which is slower at the same durability."""
    if POSTGRES:
        return
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


@DBOS.step()
async def count(n: int) -> int:
    return work.count(n)


@DBOS.step()
async def slow(run: str, step: int) -> str:
    return await work.slow(run, step)


@DBOS.workflow()
async def chain(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = await count(n)
    return n


@DBOS.workflow()
async def fan(width: int) -> int:
    return sum(await asyncio.gather(*(count(0) for _ in range(width))))


@DBOS.workflow()
async def leaf() -> int:
    return await count(0)


@DBOS.workflow()
async def parent(children: int) -> int:
    started = [await DBOS.start_workflow_async(leaf) for _ in range(children)]
    return sum([await handle.get_result() for handle in started])


@DBOS.workflow()
async def wait() -> Any:
    return await DBOS.recv_async("go", timeout_seconds=3600)


@DBOS.workflow()
async def slowly(run: str, steps: int) -> list[str]:
    return [await slow(run, number) for number in range(steps + 1)]


class Peer:
    cannot = {  # noqa: RUF012
        "W8": "a library of durable functions: it has no agent graphs",
        "W9": "a library: it has no server that takes starts over HTTP",
    }

    @property
    def about(self) -> dict[str, str]:
        return {
            "version": version("dbos"),
            "durability": "PostgreSQL, synchronous_commit=on, a commit a step"
            if POSTGRES
            else "SQLite, WAL, synchronous=FULL (set here; its default is a rollback journal), a commit a step",
            "recovery": "by itself",
        }

    async def open(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        url = POSTGRES or f"sqlite:///{folder}/dbos.sqlite"
        DBOS(
            config={
                "name": "bench",
                "system_database_url": url,
                "log_level": "ERROR",
                "run_admin_server": False,
                "application_version": "1",
            }
        )
        DBOS.launch()

    async def close(self) -> None:
        await asyncio.to_thread(DBOS.destroy)

    async def chain(self, steps: int) -> int:
        return await chain(steps)

    async def fan(self, width: int) -> int:
        return await fan(width)

    async def children(self, count: int) -> int:
        return await parent(count)

    async def wait(self, run: str) -> None:
        with SetWorkflowID(run):
            await DBOS.start_workflow_async(wait)

    async def wake(self, run: str) -> None:
        await DBOS.send_async(run, 7, "go")

    async def woken(self, run: str) -> Any:
        handle: WorkflowHandleAsync[Any] = await DBOS.retrieve_workflow_async(run)
        return await handle.get_result()

    async def slow(self, run: str, steps: int) -> None:
        with SetWorkflowID(run):
            await DBOS.start_workflow_async(slowly, run, steps)

    async def slow_result(self, run: str, steps: int) -> Any:
        return await self.woken(run)
