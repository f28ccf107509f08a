"""A turn of the core that brings work more than once leaves none of it lying."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.fast_paths import always_overlap

from treadle import Engine
from treadle.process import process, result, start, state
from treadle.testing import assert_replays

DEADLINE_S = 60
RUNS, STEPS = 60, 8


@process("chain", version="1.0.0")
def chain(p: Any) -> None:
    p.set(state.n, 0)
    with p.while_(state.n < start.steps, max=100):
        p.call("count", payload={"n": state.n}, into="n")
        p.set(state.n, result.n)
    p.complete(state.n)


async def test_all_work_is_taken_up_where_each_commit_is_built_upon(tmp_path: Path) -> None:
    """As on a slow disk: one turn has several commits, and each of them brings work."""
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.transport("count")(lambda payload: payload["n"] + 1)
    engine.deploy(chain)

    async def client() -> None:
        for _ in range(3):
            run = await engine.start("chain", {"steps": STEPS})
            assert await run.result(DEADLINE_S) == STEPS

    with always_overlap():
        async with engine:
            await asyncio.gather(*(client() for _ in range(RUNS // 3)))
            await assert_replays(engine)
