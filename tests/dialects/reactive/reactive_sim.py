"""The choreography example in the simulator: orders, a ledger and notices under every fault it knows.

python tests/dialects/reactive/reactive_sim.py --seeds 500
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from treadle.apps import cells
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.kernel.machine import Machine
from treadle.performers.reactive.effects import EffectPerformer
from treadle.runtime.hot import BlobCache, load_state
from treadle.runtime.registry import Registry, machines_of
from treadle.testing.sim import Action, SimulationFailed, SimWorld, simulate
from treadle.tools.registry import ToolRegistry
from treadle.work.job import Performer

EXAMPLE = Path(__file__).parents[3] / "examples" / "reactive" / "choreography.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("treadle_choreography_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


shop = load_example()


@shop.send.executor
async def send_silently(call: Any) -> None:
    await call.progress("sending")


class Choreography:
    """A few orders, some of them placed twice; at the end the books must be right."""

    def __init__(self, rng: Random) -> None:
        machine = ReactiveMachine()
        machine.attach(shop.app)
        self.machines: Mapping[str, Machine] = {"reactive": machine}
        self.definitions = shop.app.definitions()
        perform = EffectPerformer(ToolRegistry(plugins=False), machine)
        self.performers: Mapping[str, Performer] = dict.fromkeys(shop.app.effects, perform)
        self._cents = {f"o-{n}": rng.randrange(1, 1000) for n in range(rng.randrange(2, 9))}

    def actions(self, rng: Random) -> list[Action]:
        found = []
        for order_id, cents in self._cents.items():
            for copy in range(rng.choice((1, 1, 2))):
                event = shop.app.event(shop.OrderPlaced(order_id, cents))
                (item,) = cells.items(shop.app, *event, submission=f"{order_id}:{copy}")
                name = f"place {order_id} {copy}"
                at_ms = rng.randrange(6_000)
                found.append(
                    Action(name, at_ms, item.run, item.event, create=item.create, submission=item.submission)
                )
        return found

    def endless(self, workflow: str) -> bool:
        return False

    def check(self, world: SimWorld) -> None:
        state = {row.id: self._state(world, row) for row in world.store.runs(limit=1_000)}
        books = state["shop/ledger@1"]
        assert books["balance"] == sum(self._cents.values()), f"the books say {books}"
        assert books["booked"] == sorted(self._cents), f"the books say {books}"
        for order_id in self._cents:
            assert state[f"shop/order@1/{order_id}"]["paid"]
            assert state[f"shop/notice@1/{order_id}"]["sent"]

    def _state(self, world: SimWorld, row: Any) -> Any:
        registry = Registry(machines_of(self.machines), world.store)
        return load_state(row, world.store, registry, BlobCache(world.store)).state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--from", type=int, default=0, dest="first")
    given = parser.parse_args()
    began, records, deaths = time.monotonic(), 0, 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            outcome = simulate(seed, Choreography)
        except SimulationFailed as failure:
            print(f"seed {seed} failed: {failure}", file=sys.stderr)
            return 1
        records, deaths = records + outcome.records, deaths + outcome.deaths
    took = time.monotonic() - began
    print(f"{given.seeds} seeds passed in {took:.0f} s: {records} records, {deaths} deaths of a process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
