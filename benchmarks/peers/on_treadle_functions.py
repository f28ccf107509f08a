"""Treadle, durable functions: an `async def` and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import work
from peers.treadle_base import TreadlePeer
from treadle import Engine, flow


@flow.step
def count(n: int) -> int:
    return work.count(n)


@flow.step
async def slow(run: str, step: int) -> str:
    return await work.slow(run, step)


@flow.workflow(version="1")
async def chain(ctx: flow.Context, steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = await count(n)
    return n


@flow.workflow(version="1")
async def fan(ctx: flow.Context, width: int) -> int:
    return sum(await flow.gather(*(count(0) for _ in range(width))))


@flow.workflow(version="1")
async def leaf(ctx: flow.Context) -> int:
    return await count(0)


@flow.workflow(version="1")
async def parent(ctx: flow.Context, children: int) -> int:
    return sum(await flow.gather(*(ctx.run(leaf) for _ in range(children))))


@flow.workflow(version="1")
async def wait(ctx: flow.Context) -> int:
    return await ctx.signal("go", type=int)


@dataclass
class Slow:
    run: str
    steps: int


@flow.workflow(version="1")
async def slowly(ctx: flow.Context, given: Slow) -> list[str]:
    return [await slow(given.run, number) for number in range(given.steps + 1)]


SERVED = """\
from treadle import flow


@flow.step
def one() -> int:
    return 1


@flow.workflow(version="1")
async def served(ctx: flow.Context) -> int:
    return await one()
"""


class Peer(TreadlePeer):
    names = {"chain": chain, "fan": fan, "children": parent, "wait": wait, "slow": slowly}  # noqa: RUF012
    served_file = ("served.py", SERVED)

    def prepare(self, engine: Engine, folder: Path, program: str) -> None:
        engine.deploy(self.names[program])
        if program == "children":
            engine.deploy(leaf)

    async def _ran(self, program: str, given: dict[str, Any]) -> Any:
        (only,) = given.values()
        return await (await self.engine.start(self.names[program], only)).result()

    async def wait(self, run: str) -> None:
        await self.engine.start(wait, id=run)

    async def slow(self, run: str, steps: int) -> None:
        await self.engine.start(slowly, Slow(run, steps), id=run)

    async def serve(self, folder: Path) -> tuple[str, int, str, dict[str, Any]]:
        host, port, path, _ = await super().serve(folder)
        return host, port, path, {"workflow": "served"}
