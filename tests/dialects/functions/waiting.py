"""Waiting on a condition, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

STEP_S = 0.005


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 20) -> None:
    for _ in range(round(seconds / STEP_S)):
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(STEP_S)
    raise AssertionError(f"not within {seconds} s")
