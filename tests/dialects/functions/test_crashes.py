"""Six workflows, each cut at every record: results, events and the steps that were called are those of a run that
nobody disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, flow
from treadle.testing import assert_replays, play
from treadle.testing.playing import Play

Act = Callable[[Play[Any]], object]


@flow.step(name="crashes.do")
def do(what: str) -> str:
    if what.startswith("bad"):
        raise ValueError(what)
    return what.upper()


@flow.step(name="crashes.undo", retry={"attempts": 2, "delay": "5s", "jitter": 0.5})
def undo(what: str) -> None:
    return None


@flow.workflow(name="crashes.saga")
async def saga(ctx: flow.Context) -> None:
    for what in ("a", "b", "bad"):
        ctx.state["at"] = what
        done = await do(what)
        ctx.compensate(undo, done)


@flow.workflow(name="crashes.many")
async def many(ctx: flow.Context) -> list[Any]:
    found = await flow.gather(do("x"), do("y"), flow.race(do("z"), ctx.sleep("1h")))
    ctx.event("gathered", n=len(found))
    return [found, str(ctx.uuid()), await flow.race(slow=ctx.sleep("2h"), quick=ctx.sleep("1m"))]


@flow.workflow(name="crashes.signals")
async def signals(ctx: flow.Context) -> list[Any]:
    found: list[Any] = [await ctx.signal("one"), await ctx.signal("late", timeout="1h", default="never")]
    async for item in ctx.signals("item", timeout="10m"):
        found.append(await do(item))
    try:
        async with asyncio.timeout(60):
            await ctx.signal("none")
    except TimeoutError:
        found.append(ctx.now().isoformat())
    return found


@flow.workflow(name="crashes.human")
async def human(ctx: flow.Context) -> str:
    answer = await ctx.ask("review", roles=["boss"], payload={"n": 1}, timeout="3d")
    again = await ctx.ask("late", timeout="1d", default="nobody")
    return f"{answer['ok']} {again} {await do('h')}"


@flow.workflow(name="crashes.parent")
async def parent(ctx: flow.Context) -> list[Any]:
    first = await ctx.run("child", {"n": 1})
    try:
        await ctx.run("bad child")
    except flow.ChildFailed as error:
        return [first, error.code, await do("p")]
    return []


@flow.workflow(name="crashes.endless")
async def endless(ctx: flow.Context, n: int) -> int:
    ctx.state["n"] = n
    await do(str(n))
    await ctx.sleep("1h")
    if n < 3:
        ctx.continue_as(n + 1)
    return n


def signal(name: str, data: Any = None) -> Act:
    return lambda run: run.signal(name, data)


def advance(duration: str) -> Act:
    return lambda run: run.advance(duration)


CASES: dict[str, tuple[Any, Any, list[Act]]] = {
    "saga": (saga, None, [advance("1m")]),
    "many": (many, None, [advance("1m"), advance("3h")]),
    "signals": (
        signals,
        None,
        [
            signal("item", "i1"),
            signal("one", 1),
            advance("1h"),
            signal("item", "i2"),
            advance("10m"),
            advance("1m"),
        ],
    ),
    "human": (human, None, [lambda run: run.answer("review", {"ok": True}), advance("1d")]),
    "parent": (parent, None, []),
    "endless": (endless, 1, [advance("1h")] * 3),
}


def played(name: str, crash_before: Callable[[int], bool]) -> dict[str, Any]:
    workflow, input, acts = CASES[name]
    failing = {"child": [[1, 2]], "bad child": [OSError("no")], undo: [OSError("busy"), None]}
    run: Play[Any] = play(workflow, input, steps=failing, by_hand=True)
    acts, moves = list(acts), 0
    while run.open or acts:
        if crash_before(moves):
            run.crash()
        moves += 1
        if run.open:
            run.perform(run.open[0])
        else:
            acts.pop(0)(run)
    run.assert_replays()
    return {
        "status": run.status,
        "result": run.driver.run.result,
        "error": run.error,
        "state": run.state,
        "events": run.events,
        "calls": run._calls,
        "moves": moves,
    }


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_cut_at_any_record_is_the_same_run(name: str) -> None:
    whole = played(name, lambda move: False)
    assert whole["status"] == ("failed" if name == "saga" else "completed")
    assert played(name, lambda move: True) == whole
    for at in range(whole["moves"]):
        assert played(name, lambda move, at=at: move == at) == whole


@pytest.mark.house
async def test_runs_that_are_evicted_after_each_event_end_the_same(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db", hot_runs=1) as engine:
        runs = [await engine.start(human_free, n, id=f"r{n}") for n in range(8)]
        for n in range(8):
            await engine.signal(f"r{n}", "go", n)
        assert [await run.result(60) for run in runs] == [[n, f"N{n}", n] for n in range(8)]
        await assert_replays(engine)


@flow.workflow(name="crashes.evicted")
async def human_free(ctx: flow.Context, n: int) -> list[Any]:
    done = await do(f"n{n}")
    return [await ctx.signal("go"), done, n]
