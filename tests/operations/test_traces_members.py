"""Members of one store and their traces: one of them tells, and whoever takes over goes on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from treadle import Engine
from treadle.testing import assert_replays

from .collector import collecting

FLOW = """
dialect: process
name: told
version: "1"
steps:
  - call: {transport: here, payload: 1, into: a}
"""


async def member(stack: AsyncExitStack, store: str, folder: Path, collector: str) -> Engine:
    engine = Engine(store, telemetry=collector)

    @engine.transport("here")
    def here(payload: object) -> object:
        return payload

    (folder / "told.yaml").write_text(FLOW)
    engine.deploy(str(folder / "told.yaml"))
    return await stack.enter_async_context(engine)


async def test_what_one_member_told_another_goes_on_with(pg_store: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stays, AsyncExitStack() as leaves:
        collector = stays.enter_context(collecting())
        one = await member(leaves, pg_store, tmp_path, collector.url)
        two = await member(stays, pg_store, tmp_path, collector.url)
        for index, engine in enumerate((one, two, one, two)):
            await (await engine.start("told", id=f"r{index}")).result(timeout=60)
        await leaves.aclose()
        for index in (4, 5):
            await (await two.start("told", id=f"r{index}")).result(timeout=60)
        runs = [f"r{index}" for index in range(6)]
        for run in runs:
            collector.until(lambda run=run: {"run told", "perform a"} <= {s.name for s in collector.of(run)})
            spans = collector.once(run)
            assert sorted(span.name for span in spans.values()) == [
                *("attempt a", "call a", "perform a", "run told"),
            ]
        assert len({span.trace for run in runs for span in collector.of(run)}) == len(runs)
        await assert_replays(two)
