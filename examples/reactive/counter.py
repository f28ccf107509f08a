"""A counter whose manifest was written by hand, in AIR: `counter.air.json` beside this file.

The manifest says what the machine's parts are called and where events go; the code says what happens. Where the
two disagree, `rx.App` lists each difference.

    python examples/reactive/counter.py
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from treadle import Engine
from treadle import reactive as rx


@rx.schema("demo/Phase@1")
class Phase(Enum):
    Counting = 1
    Done = 2


@rx.schema("demo/Counter@1")
@dataclass(frozen=True)
class Counter:
    phase: Phase
    left: rx.Nat


@rx.schema("demo/Start@1")
@dataclass(frozen=True)
class Start:
    target: rx.Nat


@rx.schema("demo/Tick@1")
@dataclass(frozen=True)
class Tick:
    """An event that says nothing but that it happened: `unit` in the manifest."""


@rx.workflow("demo/counter@1", state=Counter, events=[Start, Tick], effects=[])
def counter(state: Counter | None, event: Start | Tick) -> rx.Output[Counter]:
    match state, event:
        case _, Start(target):
            return rx.Output(Counter(Phase.Counting if target else Phase.Done, target))
        case Counter(Phase.Counting, left), Tick():
            return rx.Output(Counter(Phase.Counting if left > 1 else Phase.Done, left - 1))
        case _:
            return rx.Output(state)


app = rx.App(
    "counter", [counter], manifest=json.loads(Path(__file__).with_name("counter.air.json").read_text())
)


async def main() -> None:
    async with Engine("memory:") as engine:
        engine.deploy(app)
        await engine.publish(Start(3))
        for _ in range(3):
            await engine.publish("demo/Event@1", {"$tag": "Tick"})
        cell = await engine.cell(counter, None)
        assert cell is not None
        state = (await cell.show())["state"]
        print(f"{state['left']} left, {state['phase']}")
        assert state == {"left": 0, "phase": "Done"}


if __name__ == "__main__":
    asyncio.run(main())
