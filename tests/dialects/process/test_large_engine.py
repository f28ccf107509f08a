"""Large values through the engine: what goes in, what calls get, and what people see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import Engine, Run
from treadle.kernel.model import make_reference
from treadle.kernel.values import digest
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


@pytest.mark.house
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
    assert await run.result(timeout=60) == {"n": 2_000, "rows": ROWS}
    assert (await run.show())["result"] == {"n": 2_000, "rows": ROWS}
    assert await engine.replay(run.id) == {"id": run.id, "equal": True}


@pytest.mark.house
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
    assert await run.result(timeout=60) == [2_000, 2_000]


@pytest.mark.house
async def test_a_childs_large_result_outlives_the_child(clock: VirtualClock, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    child = tmp_path / "half.yaml"
    child.write_text(
        "dialect: process\nname: half\nversion: 1.0.0\nretention: 1h\n"
        "steps: [{call: {transport: rows, into: r}}, {complete: {$: result.r.a}}]\n"
    )
    async with clock.engine(store) as engine:
        engine.transport("rows")(lambda: {"a": ROWS, "n": 1})
        engine.deploy(str(child))
        steps = "steps: [{child: {workflow: half, into: c}}, {await: go}, {complete: {$: length(result.c)}}]"
        run = await begun(engine, clock, tmp_path, steps)
        await clock.advance(7_200)
        await engine.gc()
        assert [row["id"] for row in await engine.list()] == [run.id]
    async with clock.engine(store) as engine:
        await engine.signal(run.id, "go")
        again = await engine.run(run.id)
        assert await again.result(timeout=60) == 2_000


@pytest.mark.house
@pytest.mark.parametrize(("type", "fits"), [("array", True), ("integer", False)])
async def test_a_childs_schema_sees_what_a_large_input_is(
    engine: Engine, clock: VirtualClock, tmp_path: Path, type: str, fits: bool
) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(
        "dialect: process\nname: strict\nversion: 1.0.0\n"
        f"start: {{schema: {{type: object, properties: {{rows: {{type: {type}}}}}}}}}\n"
        "steps: [{complete: {$: length(start.rows)}}]\n"
    )
    engine.deploy(str(child))
    steps = (
        "steps: [{call: {transport: rows, into: r}},"
        "{child: {workflow: strict, input: {rows: {$: result.r.a}}, into: c,"
        " on_failure: [{complete: {$: error.code}}]}}, {complete: {$: result.c}}]"
    )
    run = await begun(engine, clock, tmp_path, steps)
    assert await run.result(timeout=60) == (2_000 if fits else "INPUT_INVALID")


LARGE = {"a": "z" * 3_000_000, "n": 1}


@pytest.mark.house
async def test_a_large_start_payload(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    steps = "steps: [{complete: {n: {$: length(start.a)}, a: {$: start.a}, all: {$: start == start}}}]"
    run = await begun(engine, clock, tmp_path, steps, LARGE)
    assert await run.result(timeout=60) == {"n": 3_000_000, "a": LARGE["a"], "all": True}
    assert (await run.show())["input"] == LARGE
    assert await engine.replay(run.id) == {"id": run.id, "equal": True}


@pytest.mark.house
@pytest.mark.parametrize("early", [True, False])
async def test_a_large_signal(engine: Engine, clock: VirtualClock, tmp_path: Path, early: bool) -> None:
    wait = "{wait: 1s}, " if early else ""
    steps = (
        f"steps: [{wait}{{await: {{signal: docs, into: d}}}}, {{complete: {{$: '[result.d.n, result.d]'}}}}]"
    )
    run = await begun(engine, clock, tmp_path, steps)
    await engine.signal(run.id, "docs", LARGE)
    await clock.advance(1)
    assert await run.result(timeout=60) == [1, LARGE]
    assert await engine.replay(run.id) == {"id": run.id, "equal": True}


@pytest.mark.house
async def test_a_large_answer_to_a_task(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    steps = "tasks: {t: {roles: [x]}}\nsteps: [{task: t}, {complete: {$: '[payload.n, payload]'}}]"
    run = await begun(engine, clock, tmp_path, steps)
    (row,) = await engine.tasks()
    await engine.task_complete(row["id"], LARGE, user="ann", roles=["admin"])
    assert await run.result(timeout=60) == [1, LARGE]


@pytest.mark.house
async def test_large_patches_and_retries(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    tries = []

    @engine.transport("flaky")
    def flaky(payload: Any) -> Any:
        tries.append(payload)
        if len(tries) < 3:
            raise ValueError("not yet")
        return payload["n"]

    steps = (
        "steps: [{set: {state.x: {n: 0}}}, {call: {transport: flaky, payload: {$: state.x}, into: r}},"
        "{call: {transport: nobody, into: s}}, {complete: {$: '[result.r, result.s.n]'}}]"
    ).replace("nobody", "broken")
    engine.transport("broken")(lambda payload: payload["no"])
    run = await begun(engine, clock, tmp_path, steps)
    await engine.patch(run.id, {"x": LARGE})
    await engine.retry(run.id)
    await clock.settle()
    await engine.retry(run.id, input={**LARGE, "n": 2})
    await clock.settle()
    assert tries == [{"n": 0}, LARGE, {**LARGE, "n": 2}]
    assert (await run.show())["state"] == {"x": LARGE}
    await engine.retry(run.id, skip={**LARGE, "n": 3})
    assert await run.result(timeout=60) == [2, 3]
    assert await engine.replay(run.id) == {"id": run.id, "equal": True}


@pytest.mark.house
async def test_what_looks_like_a_reference_is_data(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    """Whoever knows the digest of a payload of another run does not get it by sending its reference."""
    await begun(engine, clock, tmp_path, "steps: [{call: {transport: rows, into: r}}, {wait: 1h}]")
    stolen = make_reference(checksum=digest({"a": ROWS, "n": 1}), size=1, schema_hint="process")
    steps = "steps: [{await: {signal: s, into: d}}, {complete: {$: '[result.d.a, result.d.store]'}}]"
    run = await begun(engine, clock, tmp_path, steps)
    await engine.signal(run.id, "s", stolen)
    assert await run.result(timeout=60) == [None, "blob"]
