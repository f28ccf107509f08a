"""The owner's side of the bus between machines (`bus/far.py: Relay`): what waits has a ticket, whatever becomes of tickets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from treadle.bus.carrier import Ticket
from treadle.bus.far import Relay
from treadle.bus.hatch import Hatch
from treadle.bus.local import LocalBus
from treadle.bus.seal import Seal
from treadle.runtime.ports import SystemClock
from treadle.testing.bus_conformance import Recorder, works


class Carrier:
    """Tickets in a list, from which a test takes what it likes."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    async def push(self, tickets: Sequence[Ticket]) -> None:
        self.tickets += tickets

    async def queued(self, pools: Collection[str]) -> Mapping[str, int]:
        return {pool: sum(one.pool == pool for one in self.tickets) for pool in pools}

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks for {name} here")


def intents(carrier: Carrier) -> list[str]:
    return sorted(one.intent for one in carrier.tickets)


async def test_work_whose_ticket_is_gone_gets_another_though_tickets_of_other_work_go_round() -> None:
    """Those of work that all workers have declined do so for ever: it waits for one who can do it."""
    bus, carrier = LocalBus(SystemClock()), Carrier()
    hatch = Hatch(bus, Recorder())
    relay = Relay(
        hatch,
        carrier,
        Seal(),
        shards=lambda: [0],
        shard_of=lambda run: 0,
        patience_s=0,
        passed_by_s=(0.0, 300.0),
    )
    bus.offer(works("a", "b"))
    bus.tell_undone({"a": "no tool slack"})
    await relay.flush()
    assert intents(carrier) == ["a", "b"]
    # Shown to us by a worker when there was no room in its pool, say.
    carrier.tickets = [one for one in carrier.tickets if one.intent == "a"]
    await relay.sweep()
    assert intents(carrier) == ["a", "b"]
