"""The worker inside a simulated process, where it has one: few places, and work that waits in line for them.

It takes from the bus as `treadle.work.worker` does, holds what it has without a lease, and hands its receipts to its own core, so
that none gets lost on the way. Looked at whenever it takes something: no run whose work waits is passed by another's again
and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from treadle.runtime.ports import Work

if TYPE_CHECKING:
    from treadle.bus.protocol import NearSide


LANE: Final = "functions"
# How many pieces of another run's work may be begun before one that waits.
PASSED_MAX: Final = 2


class SimResident:
    def __init__(
        self,
        bus: NearSide,
        places: int,
        begin: Callable[[Work], None],
        drop: Callable[[Sequence[str]], None],
        look: Callable[[], None],
    ) -> None:
        """`begin` does a piece of work, and says `done` when it has come to its end; `look` has it `pump` soon."""
        self._bus = bus
        self._places = places
        self._begin = begin
        self._drop = drop
        self._look = look
        self.in_hand: set[str] = set()
        # What waits, by its id: whose it is, and how much of others' was begun since.
        self._waiting: dict[str, tuple[str, Counter[str]]] = {}
        bus.attach(self)

    # --- what the bus asks of it ---

    def lane_of(self, work: Work) -> str:
        if work.intent.id not in self.in_hand:
            self._waiting.setdefault(work.intent.id, (work.run, Counter()))
        return LANE

    def offered(self, lanes: dict[str, int]) -> None:
        self._look()

    def revoked(self, intents: Sequence[str]) -> None:
        self.in_hand.difference_update(intents)
        self._drop(intents)
        self._look()

    # --- its life ---

    def pump(self) -> None:
        while len(self.in_hand) < self._places and (taken := self._bus.take_here(LANE, 1)):
            (work,) = taken
            self.in_hand.add(work.intent.id)
            self._passes(work)
            self._begin(work)

    def done(self, intent: str) -> None:
        self.in_hand.discard(intent)
        self._bus.done(intent)

    def _passes(self, taken: Work) -> None:
        for intent, (run, passed) in list(self._waiting.items()):
            if self._bus.find(intent) is None or self._bus.is_held(intent):
                del self._waiting[intent]
            elif run == taken.run:
                passed.clear()
            else:
                passed[taken.run] += 1
                assert passed[taken.run] <= PASSED_MAX, (
                    f"{run} waits for a place, and {taken.run} was given {passed[taken.run]} meanwhile"
                )
