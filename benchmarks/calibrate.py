"""What this machine gives at this moment, without any engine: a yardstick beside every figure."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

BATCH = 64
ROW = bytes(300)


def calibrate(folder: Path, seconds: float) -> dict[str, float]:
    """Turns of an empty Python loop, rows committed one by one, rows committed by 64: each per second. And the load."""
    return {
        "cpu_loop_per_s": _cpu(seconds),
        "single_commits_per_s": commits(folder, seconds, 1),
        "batched_rows_per_s": commits(folder, seconds, BATCH),
        "load": os.getloadavg()[0],
    }


def _cpu(seconds: float) -> float:
    count, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        for _ in range(10_000):
            pass
        count += 10_000
    return count / took


def commits(folder: Path, seconds: float, rows: int) -> float:
    """SQLite as Treadle has it: WAL, synchronous=FULL."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY, body BLOB)")
    count, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        if rows == 1:
            connection.execute("INSERT INTO journal (body) VALUES (?)", (ROW,))
        else:
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO journal (body) VALUES (?)", [(ROW,)] * rows)
            connection.execute("COMMIT")
        count += rows
    connection.close()
    return count / took
