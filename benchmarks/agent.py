"""How fast agent workflows run when the model costs nothing: durable on SQLite, log off.

    python benchmarks/agent.py [--json]

Prints, from one run on one machine: how many bare FULL commits per second the disk takes (the
yardstick), nodes per second in chains of 10 and of 3,000, and with 100 runs at once. The cost of a
node must not depend on the length of its chain, and no model is asked twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from calibrate import commits

from treadle import Engine
from treadle.agent import TurnReply, TurnRequest

SECONDS = 2.0


class Instant:
    """A model that answers at once, and asks for nothing."""

    default_model: str | None = None
    small_model: str | None = None
    keeps_history = False
    instant = True

    def __init__(self) -> None:
        self.turns = 0

    async def turn(self, request: TurnRequest) -> TurnReply:
        self.turns += 1
        return TurnReply(data={"node": request.node, "ok": True})

    async def close(self) -> None:
        """Nothing is held open."""


def chain(length: int) -> dict[str, Any]:
    names = [f"n{index}" for index in range(length)]
    return {
        "id": f"chain{length}",
        "name": f"Chain of {length}",
        "entry": names[0],
        "max_steps": length,
        "nodes": {name: {"name": name, "instruction": f"Do {name}."} for name in names},
        "edges": [{"from": a, "to": b} for a, b in itertools.pairwise(names)],
    }


async def one_after_another(folder: Path, length: int, runs: int) -> float:
    engine, model = prepare(folder / f"chain{length}.db", length)
    async with engine:
        await (await engine.start(f"chain{length}", model="instant")).result(timeout=300)
        model.turns, start = 0, time.perf_counter()
        for _ in range(runs):
            await (await engine.start(f"chain{length}", model="instant")).result(timeout=300)
        took = time.perf_counter() - start
    assert model.turns == runs * length, "a node was asked twice"
    return runs * length / took


async def at_once(folder: Path, length: int, runs: int) -> float:
    engine, model = prepare(folder / "many.db", length)
    async with engine:
        await (await engine.start(f"chain{length}", model="instant")).result(timeout=300)
        model.turns, start = 0, time.perf_counter()
        started = await asyncio.gather(
            *(engine.start(f"chain{length}", model="instant") for _ in range(runs))
        )
        await asyncio.gather(*(run.result(timeout=300) for run in started))
        took = time.perf_counter() - start
    assert model.turns == runs * length, "a node was asked twice"
    return runs * length / took


def prepare(path: Path, length: int) -> tuple[Engine, Instant]:
    file = path.with_suffix(".json")
    file.write_text(json.dumps(chain(length)))
    engine, model = Engine(f"sqlite:///{path}"), Instant()
    engine.models["instant"] = model
    engine.deploy(str(file))
    return engine, model


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {"bare_commits": commits(folder, SECONDS / 2, 1)}
        found["chain_10"] = asyncio.run(one_after_another(folder, 10, 150))
        found["chain_300"] = asyncio.run(one_after_another(folder, 300, 5))
        found["chain_3000"] = asyncio.run(one_after_another(folder, 3000, 1))
        found["many_100x50"] = asyncio.run(at_once(folder, 50, 100))
    return {key: round(value) for key, value in found.items()}


def main() -> None:
    found = measure()
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    print(f"bare FULL commits      {found['bare_commits']:>8} /s")
    print(f"chains of 10           {found['chain_10']:>8} nodes/s")
    print(f"chains of 300          {found['chain_300']:>8} nodes/s")
    print(f"a chain of 3,000       {found['chain_3000']:>8} nodes/s")
    print(f"100 runs at once (50)  {found['many_100x50']:>8} nodes/s")


if __name__ == "__main__":
    main()
