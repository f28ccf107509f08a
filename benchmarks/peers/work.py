"""The work that steps do, the same for every peer: next to nothing, or a short sleep that leaves a trace."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path

marks: list[float] = []
_marking = False
_numbers = itertools.count()
_log = -1
_hang = False
_seconds = 0.0


def count(n: int) -> int:
    """One more. W7 notes when."""
    if _marking:
        marks.append(time.perf_counter())
    return n + 1


def mark() -> None:
    global _marking
    _marking = True
    marks.clear()


def trace(path: Path, *, seconds: float, hang: bool) -> None:
    """Where W4's steps leave their traces: a file that outlives the process, one write a line."""
    global _log, _hang, _seconds
    _log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _hang, _seconds = hang, seconds


async def slow(run: str, step: int) -> str:
    """W4's step: a token that no other execution of any step gives. Before the kill, the second step of
    every run never ends, so that all runs are in flight when it comes."""
    token = f"{os.getpid()}.{next(_numbers)}"
    os.write(_log, f"{run} {step} {token}\n".encode())
    if step > 0:
        await asyncio.sleep(3600 if _hang else _seconds)
    return token
