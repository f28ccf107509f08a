"""A change behind an engine's back, for tests that need a store as no caller could leave it: made on the core's thread, in a
commit to itself, as what the core asks of itself. No engine has such a door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from treadle.engine import Engine
from treadle.host.passage import LoopAck
from treadle.runtime.desk import Desk
from treadle.runtime.own_changes import OwnChange

T = TypeVar("T")


async def change(engine: Engine, do: Callable[[Desk], T]) -> T:
    core = engine._bridge.seat.core
    assert core is not None, "only who owns the store has a core"
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    core.change(OwnChange(do, LoopAck(done)))
    return await done
