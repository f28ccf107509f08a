"""A quick measurement of this machine: how many durable steps a second, beside a bare commit loop."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any


async def measure(runs: int, steps: int) -> dict[str, Any]:
    """Runs `runs` playbooks of `steps` no-op steps at once on a fresh SQLite store."""
    from treadle.engine import Engine

    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as folder:
        flow = Path(folder) / "bench.yaml"
        flow.write_text(_playbook(steps), "utf-8")
        bare = _commit_loop(Path(folder) / "bare.db")
        async with Engine(f"sqlite:///{folder}/bench.db") as engine:
            (definition,) = engine.load(str(flow))
            begin = time.perf_counter()
            started = await asyncio.gather(*(engine.start(definition, id=f"bench-{n}") for n in range(runs)))
            await asyncio.gather(*(run.result(timeout=600) for run in started))
            took = time.perf_counter() - begin
        size = sum(file.stat().st_size for file in Path(folder).glob("bench.db*"))
    return {
        "runs": runs,
        "steps": runs * steps,
        "seconds": round(took, 3),
        "steps_per_second": round(runs * steps / took),
        "bytes_per_step": round(size / (runs * steps)),
        "bare_commits_per_second": round(bare),
    }


def _playbook(steps: int) -> str:
    lines = ["metadata: {name: bench}", "workflow:"]
    for number in range(steps):
        lines.append(f"  - step: s{number}")
        lines.append("    tool: {kind: noop}")
        if number + 1 < steps:
            lines.append(f"    next: {{arcs: [{{step: s{number + 1}}}]}}")
    return "\n".join(lines) + "\n"


def _commit_loop(path: Path) -> float:
    """What the disk gives to a program that only commits single rows, durably."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE rows (body BLOB)")
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.5:
            connection.execute("INSERT INTO rows VALUES (?)", (bytes(300),))
            count += 1
        took = time.perf_counter() - begin
    return count / took
