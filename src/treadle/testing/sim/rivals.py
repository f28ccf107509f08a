"""Calls that meet: two look at one run at the same moment, and each wants to change what it saw.

One of them may. Whoever is told so is told the version after the one that it saw, and nobody else is told the same.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.model import TERMINAL, Patch
from treadle.runtime.commands import Deliver
from treadle.store.rows import GUEST

from .clients import Guest
from .weather import MS

if TYPE_CHECKING:
    from .world import SimWorld

EVERY_NS: Final = 400 * MS
MEETINGS_MAX: Final = 25


class Rivals:
    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._guest = Guest(world)
        self._number = 0
        self._met = 0
        # Who was told that what they saw in a run at a version was theirs to change.
        self._first: dict[tuple[int, int], str] = {}
        # They go on as long as others do; nobody waits for them.
        self.left = 0

    def begin(self) -> None:
        if any(isinstance(asked.action.event, Patch) for asked in self._world.clients.asked):
            self._world.after(EVERY_NS, self._meet)

    def _meet(self) -> None:
        world = self._world
        self._met += 1
        if world.journals.closed or self._met > MEETINGS_MAX:
            return
        world.after(world.rng.randrange(2 * EVERY_NS), self._meet)
        patched = {a.action.run for a in world.clients.asked if isinstance(a.action.event, Patch)}
        seen = [
            (no, life.id, life.seq)
            for no, life in world.journals.lives.items()
            if life.id in patched and life.status not in TERMINAL
        ]
        if seen:
            met = world.rng.choice(seen)
            for rival in ("ann", "bob"):
                world.after(world.rng.randrange(MS), partial(self._ask, *met, rival))

    def _ask(self, no: int, run: str, seq: int, rival: str) -> None:
        world = self._world
        self._number += 1
        patch = Patch(data={"rival": f"{rival} {self._number}"})
        item = Deliver(run, patch, expected_version=seq)
        told = partial(self._answered, no, run, seq, patch)
        if world.chance(world.faults.guest):
            with suppress(*PASSING):
                self._guest.ask(f"{GUEST}rival:{self._number}", item, told)
        elif (owner := world.reach()) is not None:
            item.ack = told
            owner.core.submit(item)

    def _answered(
        self, no: int, run: str, seq: int, patch: Patch, value: Any, error: TreadleError | None
    ) -> None:
        if error is not None or value.get("stale"):
            return
        mine = str(patch.data["rival"])
        assert value["seq"] == seq + 1, f"{run}: {mine} saw version {seq}, and changed {value['seq'] - 1}"
        first = self._first.setdefault((no, seq), mine)
        assert first == mine, f"{run}: {mine} and {first} have both changed version {seq}"
        self._world.journals.assert_recorded(run, value["seq"], patch)

    def committed(self) -> None:
        """What they were told is looked at when they are."""
