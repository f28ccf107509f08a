"""Whether runs take turns: whoever waits for its turn is not passed by another run again and again.

Seen from outside: a client has handed an event to the process that decides its run, and nothing of that run is in the
commits that the process makes, while another run is in one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .process import SimProcess

# In so many commits another run may be before one that waits has its turn: the event is taken in between two commits, a
# commit that fails is made again, and a run goes to the end of the ring then.
PASSED_MAX: Final = 12


@dataclass(slots=True, eq=False)
class Waiter:
    """An event that waits for the turn of its run."""

    process: SimProcess
    run: str
    # At which epoch its shard was held: lost and gained again, it may be on its way through the store.
    epoch: int
    passed: Counter[str] = field(default_factory=Counter)


class Turns:
    def __init__(self) -> None:
        self._waiting: dict[Waiter, None] = {}

    def waits(self, process: SimProcess, run: str) -> Waiter:
        waiter = Waiter(process, run, process.epoch_of(run))
        if waiter.epoch >= 0:
            self._waiting[waiter] = None
        return waiter

    def answered(self, waiter: Waiter) -> None:
        """Its run has had a turn, also where nothing came of it."""
        self._waiting.pop(waiter, None)
        for other in self._waiting:
            if other.run == waiter.run:
                other.passed.clear()

    def committed(self, process: SimProcess, runs: Iterable[str], taken: Iterable[str]) -> None:
        """A process has made a commit with something of these runs in it. Those that were `taken` have had a turn, also
        where nothing came of it: many stale receipts may wait before an event of the same run."""
        decided, had_a_turn = set(runs), set(taken)
        for waiter in list(self._waiting):
            if waiter.process.dead or waiter.process.epoch_of(waiter.run) != waiter.epoch:
                self.answered(waiter)
            elif waiter.process is process and (
                # Who waits for code has had its turn, and is not held up by others.
                waiter.run in decided
                or waiter.run in had_a_turn
                or process.core.desk.mail.is_barred(waiter.run)
            ):
                waiter.passed.clear()
            elif waiter.process is process:
                waiter.passed.update(decided)
                for run, count in waiter.passed.items():
                    assert count <= PASSED_MAX, (
                        f"{waiter.run} waits for its turn, and {run} has had {count} meanwhile"
                    )
