"""DBOS Transact on SQLite: a workflow of no-op steps. Runs in the peer's own environment."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dbos import DBOS

FOLDER, RUNS, STEPS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.chdir(FOLDER)
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite", "log_level": "ERROR"})


@DBOS.step()
def step(number: int) -> int:
    return number


@DBOS.workflow()
def workflow(steps: int) -> int:
    for number in range(steps):
        step(number)
    return steps


def durability() -> str:
    import sqlite3

    with sqlite3.connect(FOLDER / "dbos.sqlite") as connection:
        mode: Any = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return f"SQLite, journal {mode}, its defaults"


DBOS.launch()
workflow(5)
begin = time.perf_counter()
workflow(STEPS * 5)
sequential = STEPS * 5 / (time.perf_counter() - begin)

begin = time.perf_counter()
handles = [DBOS.start_workflow(workflow, STEPS // 10 or 1) for _ in range(RUNS)]
for handle in handles:
    handle.get_result()
concurrent = RUNS * (STEPS // 10 or 1) / (time.perf_counter() - begin)
found = {
    "sequential": sequential,
    "concurrent": concurrent,
    "version": version("dbos"),
    "durability": durability(),
}
DBOS.destroy()
print(json.dumps(found))
