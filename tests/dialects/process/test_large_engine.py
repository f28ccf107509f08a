"""Large values through the engine: what goes in, what calls get, and what people see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import Engine, Run
from treadle.testing.clock import VirtualClock

ROWS = ["z" * 1000] * 2_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock) -> AsyncIterator[Engine]:
    engine = clock.engine("memory:")
    engine.transport("rows")(lambda: {"a": ROWS, "n": 1})
    engine.transport("count")(len)
    async with engine:
        yield engine


async def begun(engine: Engine, clock: VirtualClock, tmp_path: Path, text: str, input: Any = None) -> Run:
    path = tmp_path / "wf.yaml"
    path.write_text(f"dialect: process\nname: wf\n{text}\n")
    (definition,) = engine.load(str(path))
    run = await engine.start(definition.digest, input)
    await clock.settle()
    return run


async def test_a_large_part_of_a_result_is_sent_shown_and_returned(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    steps = """
    tasks: {look: {roles: [boss], payload: {rows: {$: state.rows}}}}
    steps:
      - call: {transport: rows, into: r}
      - set: {state.rows: {$: result.r.a}}
      - call: {transport: count, payload: {$: state.rows}, into: n}
      - task: look
      - complete: {n: {$: result.n}, rows: {$: state.rows}}
    """
    run = await begun(engine, clock, tmp_path, steps.replace("\n    ", "\n"))
    assert (await run.show())["state"] == {"rows": ROWS}
    (row,) = await engine.tasks()
    assert row["payload"] == {"rows": ROWS}
    await engine.task_complete(row["id"], user="ann", roles=["admin"])
    assert await run.result(timeout=5) == {"n": 2_000, "rows": ROWS}
    assert (await run.show())["result"] == {"n": 2_000, "rows": ROWS}
    assert await engine.replay(run.id) == {"id": run.id, "equal": True}


async def test_children_take_and_give_large_parts(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(
        "dialect: process\nname: half\nversion: 1.0.0\n"
        "steps: [{complete: {rows: {$: start.rows}, n: {$: length(start.rows)}}}]\n"
    )
    engine.deploy(str(child))
    steps = (
        "steps: [{call: {transport: rows, into: r}},"
        "{child: {workflow: half, input: {rows: {$: result.r.a}}, into: c}},"
        "{complete: {$: '[result.c.n, length(result.c.rows)]'}}]"
    )
    run = await begun(engine, clock, tmp_path, steps)
    assert await run.result(timeout=5) == [2_000, 2_000]
