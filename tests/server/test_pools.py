"""A definition names the workers that do it; work of a pool that nobody serves waits, and says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, flow
from treadle import reactive as rx
from treadle.kernel.errors import TreadleError
from treadle.server.workers import Workers

PLAYBOOK = """
metadata: {name: split, version: "1"}
executor: {spec: {pool: outer}}
workflow:
  - step: a
    tool: {kind: noop, result: 1}
    next: {arcs: [{step: b}]}
  - step: b
    spec: {pool: gpu}
    tool: [{name: first, kind: noop}, {name: second, kind: noop, result: 2}]
    next: {arcs: [{step: c}]}
  - step: c
    loop: {in: [1, 2], iterator: n, spec: {pool: wide}}
    tool: {kind: noop, result: "{{ n }}", spec: {pool: inner}}
"""
PROCESS = """
dialect: process
name: priced
version: "1"
steps:
  - call: {transport: python, code: "result = 1", pool: gpu, into: x}
  - complete: {x: {$: result.x}}
"""


@flow.step(name="pools.there", pool="gpu")
def there() -> int:
    return 1


@flow.workflow(name="pooled", version="1")
async def pooled(ctx: flow.Context, n: int) -> int:
    return await there()


async def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := holds()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return found


def opened(records: list[dict[str, Any]]) -> list[str]:
    return [intent.get("pool", "") for record in records for intent in record.get("opened", ())]


async def test_a_step_names_its_pool_and_the_inner_name_wins(tmp_path: Path) -> None:
    (tmp_path / "split.yaml").write_text(PLAYBOOK)
    async with Engine("memory:") as engine:
        engine.deploy(str(tmp_path))
        run = await engine.start("split")
        await run.result(20)
        assert opened(await run.journal())[:3] == ["outer", "gpu", "inner"]
        assert (await engine.replay(run.id))["equal"]


async def test_calls_and_steps_of_functions_name_their_pools(tmp_path: Path) -> None:
    (tmp_path / "priced.yaml").write_text(PROCESS)
    async with Engine("memory:") as engine:
        engine.deploy(str(tmp_path))
        runs = [await engine.start("priced"), await engine.start(pooled, 1)]
        for run in runs:
            await run.result(20)
            assert "gpu" in opened(await run.journal())
            assert (await engine.replay(run.id))["equal"]


AGENT = """
{"id": "looked", "name": "looked", "entry": "look", "edges": [],
 "nodes": {"look": {"name": "Look", "run": "pooled_looks:look", "pool": "gpu"}}}
"""


@rx.schema("pools/Wanted@1")
@dataclass(frozen=True)
class Wanted:
    what: str


@rx.schema("pools/Painting@1")
@dataclass(frozen=True)
class Painting:
    done: bool = False


paint = rx.effect("pools/paint@1", params=str, receipt=str, pool="brushes")


@paint.executor
async def paint_it(call: rx.Call[str]) -> str:
    return f"a red {call.params}"


@rx.workflow(
    "pools/painting@1",
    state=Painting,
    events=[Wanted],
    key="what",
    effects=[paint],
    terminal=lambda painting: painting.done,
)
def painting(state: Painting | None, event: Any, ctx: Any) -> rx.Output:
    match state, event:
        case None, Wanted(what):
            return rx.Output(Painting(), effects=[paint(what, ref="paint")])
        case _:
            return rx.Output(Painting(done=True))


async def test_nodes_of_agents_and_effects_name_their_pools(tmp_path: Path) -> None:
    (tmp_path / "looked.json").write_text(AGENT)
    (tmp_path / "pooled_looks.py").write_text("def look(context):\n    return {'seen': 1}\n")
    async with Engine("memory:") as engine:
        (definition,) = engine.load(str(tmp_path / "looked.json"))
        engine.deploy(rx.App("pools", [painting]))
        agent = await engine.start(definition)
        await agent.result(20)
        (cell,) = await engine.publish(Wanted("door"))
        painted = await engine.run(cell)
        await painted.result(20)
        assert "gpu" in opened(await agent.journal())
        assert "brushes" in opened(await painted.journal())
        for run in (agent, painted):
            assert (await engine.replay(run.id))["equal"]


def test_a_wrong_pool_of_an_effect_or_a_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="no name of a pool"):
        rx.effect("pools/other@1", params=str, receipt=str, pool="Not Good")
    (tmp_path / "looked.json").write_text(AGENT.replace('"gpu"', '"Not Good"'))
    with pytest.raises(TreadleError) as refused:
        Engine("memory:").load(str(tmp_path / "looked.json"))
    assert "BAD_POOL" in str(refused.value.details)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("spec: {pool: Not Good}\n    tool: {kind: noop}", "pool_invalid"),
        ("tool: [{name: a, kind: noop, spec: {pool: x}}, {name: b, kind: noop}]", "pool_mixed"),
    ],
)
def test_a_wrong_pool_is_refused(tmp_path: Path, text: str, code: str) -> None:
    head = "metadata: {name: f, version: '1'}\nworkflow:\n  - step: s\n    "
    (tmp_path / "f.yaml").write_text(head + text + "\n")
    with pytest.raises(TreadleError) as refused:
        Engine("memory:").load(str(tmp_path / "f.yaml"))
    assert code in str(refused.value.details)


async def test_work_of_a_pool_that_nobody_serves_waits_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "split.yaml").write_text(PLAYBOOK)
    async with Engine("memory:", pools=["default"]) as engine:
        engine.deploy(str(tmp_path))
        run = await engine.start("split")
        workers = Workers(engine)
        (reason,) = await until(lambda: list(workers.undone().values()))
        assert reason == "no worker serves the pool outer"
        workers.see("one", "local", pools=["outer"])
        assert workers.undone() == {}
        engine.bus.tell_undone({next(iter(engine.bus.still_waiting(["outer"], 1)))[1]: reason})
        (waits,) = (await run.show())["waiting_for"]
        assert waits["reason"] == reason
