"""One durable function through the whole house: steps, sleep, signal, gather, child, replay, crash."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from treadle import Engine, flow
from treadle.testing import assert_replays

CALLS: list[str] = []


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Receipt:
    payment: str
    shipped: list[str]
    note: str


@flow.step(name="slice.charge")
async def charge(order: str, cents: int) -> str:
    CALLS.append(f"charge {order} {cents}")
    return f"p-{order}"


@flow.step(name="slice.ship", retry={"attempts": 3, "delay": "10ms"})
def ship(order: str, part: int) -> str:
    CALLS.append(f"ship {order} {part}")
    if part == 2 and flow.current().attempt == 1:
        raise OSError("the van broke down")
    return f"s-{order}-{part}"


@flow.workflow
async def note(ctx: flow.Context, text: str) -> str:
    await ctx.sleep("5ms")
    return text.upper()


@flow.workflow(version="1")
async def order(ctx: flow.Context, request: Order) -> Receipt:
    payment = await charge(request.id, request.cents)
    approved = await ctx.signal("approved")
    ctx.state["stage"] = "approved"
    await asyncio.sleep(0.01)
    shipped = await flow.gather(*(ship(request.id, part) for part in range(3)))
    said = await ctx.run(note, approved["by"])
    ctx.state["stage"] = "done"
    return Receipt(payment, shipped, said)


EXPECTED = Receipt("p-o1", ["s-o1-0", "s-o1-1", "s-o1-2"], "ANN")


@pytest.mark.house
async def test_a_function_runs_to_its_typed_result(tmp_path: Path) -> None:
    CALLS.clear()
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(order, Order("o1", 500), id="o-1")
        await engine.signal("o-1", "approved", {"by": "ann"})
        assert await run.result(20) == EXPECTED
        assert (await run.state())["stage"] == "done"
        assert CALLS.count("charge o1 500") == 1
        assert CALLS.count("ship o1 2") == 2
        assert await assert_replays(engine) == 2


@pytest.mark.house
async def test_a_run_goes_on_after_its_process_ended(tmp_path: Path) -> None:
    CALLS.clear()
    store = f"sqlite:///{tmp_path}/t.db"
    async with Engine(store) as engine:
        run = await engine.start(order, Order("o1", 500), id="o-1")
        await run.settled(timeout=20)
    async with Engine(store) as engine:
        engine.deploy(order)
        await engine.signal("o-1", "approved", {"by": "ann"})
        run = await engine.run("o-1")
        assert await run.result(20) == {"payment": "p-o1", "shipped": EXPECTED.shipped, "note": "ANN"}
        assert CALLS.count("charge o1 500") == 1
        await assert_replays(engine)
