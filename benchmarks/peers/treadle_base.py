"""What Treadle's dialects have in common as subjects of the comparison: the engine, as its defaults are."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from peers import work
from peers.peer import version
from treadle import Engine

# `cluster.py` names a database on PostgreSQL; else each has a file.
POSTGRES = os.environ.get("BENCH_POSTGRES")
DURABILITY = (
    "PostgreSQL, synchronous_commit=on; group commit"
    if POSTGRES
    else "SQLite, WAL, synchronous=FULL; group commit"
)
NO_MODEL = "measured with the agent dialect"


class TreadlePeer(ABC):
    """A dialect gives `definitions` and, where they are not these, the input of each workload."""

    cannot: dict[str, str] = {"W8": NO_MODEL}  # noqa: RUF012
    names: dict[str, Any]  # workload's program → what is started
    served_file: tuple[
        str, str
    ]  # for `treadle serve --deploy`: name and text; its step needs nothing of ours

    def __init__(self) -> None:
        self.engine: Engine
        self._server: asyncio.subprocess.Process | None = None
        self._port = 0

    @property
    def about(self) -> dict[str, str]:
        return {"version": version("treadle"), "durability": DURABILITY, "recovery": "by itself"}

    @abstractmethod
    def prepare(self, engine: Engine, folder: Path, program: str) -> None:
        """Registers and deploys what the program needs."""

    async def open(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.engine = Engine(POSTGRES or f"sqlite:///{folder}/treadle.db")
        self.prepare(self.engine, folder, program)
        await self.engine.__aenter__()

    async def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            await self._server.wait()
        else:
            await self.engine.__aexit__(None, None, None)

    async def _ran(self, program: str, given: dict[str, Any]) -> Any:
        run = await self.engine.start(self.names[program], given)
        return await run.result()

    async def chain(self, steps: int) -> Any:
        return await self._ran("chain", {"steps": steps})

    async def fan(self, width: int) -> Any:
        return await self._ran("fan", {"width": width})

    async def children(self, count: int) -> Any:
        return await self._ran("children", {"count": count})

    async def wait(self, run: str) -> None:
        await self.engine.start(self.names["wait"], {}, id=run)

    async def wake(self, run: str) -> None:
        await self.engine.signal(run, "go", 7)

    async def woken(self, run: str) -> Any:
        return await (await self.engine.run(run)).result()

    async def slow(self, run: str, steps: int) -> None:
        await self.engine.start(self.names["slow"], {"run": run, "steps": steps}, id=run)

    async def slow_result(self, run: str, steps: int) -> Any:
        return await (await self.engine.run(run)).result()

    async def serve(self, folder: Path) -> tuple[str, int, str, dict[str, Any]]:
        file = folder / self.served_file[0]
        file.write_text(self.served_file[1], "utf-8")
        command = [str(Path(sys.executable).with_name("treadle")), "serve", "--port", "0", "--json"]
        command += ["--store", f"sqlite:///{folder}/treadle.db", "--deploy", str(file)]
        self._server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert self._server.stdout is not None
        said = json.loads(await self._server.stdout.readline())
        self._port = int(str(said["url"]).rsplit(":", 1)[1].strip("/"))
        return "127.0.0.1", self._port, "/api/v1/runs", {"workflow": "served", "input": {}}

    async def served(self, folder: Path) -> int:
        connection = sqlite3.connect(f"file:{folder}/treadle.db?mode=ro", uri=True)
        try:
            question = "SELECT count(*) FROM runs WHERE status = 'completed'"
            return int(connection.execute(question).fetchone()[0])
        finally:
            connection.close()


async def slow(payload: dict[str, Any]) -> str:
    return await work.slow(payload["run"], payload["step"])


def count(payload: dict[str, Any]) -> int:
    return work.count(payload["n"])
