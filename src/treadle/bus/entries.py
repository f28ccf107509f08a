"""What the local bus keeps: queues by pool and lane, and in them one entry for each piece of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from treadle.runtime.ports import Work

NEVER_NS: Final = 2**63 - 1
# The lane of work that is nothing for the resident.
OTHERS: Final = ""
RESIDENT: Final = "resident"


class Resident(Protocol):
    """The worker in the same process."""

    def lane_of(self, work: Work) -> str:
        """The lane on which it would do this; `OTHERS` if that is nothing for it."""
        ...

    def offered(self, lanes: dict[str, int]) -> None:
        """So much new work waits in its lanes."""
        ...

    def revoked(self, intents: Sequence[str]) -> None: ...


class WorkQueue(msgspec.Struct, eq=False):
    pool: str
    lane: str
    entries: deque[WorkEntry] = msgspec.field(default_factory=deque)
    # How many of the entries wait; the others are gone and will be skipped.
    waiting: int = 0
    # How many the resident has in hand.
    held: int = 0


class WorkEntry(msgspec.Struct, eq=False):
    work: Work
    queue: WorkQueue
    number: int
    waits: bool = True
    attempt: int = 0
    worker: str = ""
    lease: str = ""
    expires_ns: int = NEVER_NS
    # Who cannot do it, and why.
    declined: dict[str, str] = {}

    @property
    def ticket(self) -> tuple[str, str, str, int]:
        """Its run, intent, pool, and how often it was handed out."""
        return self.work.run, self.work.intent.id, self.queue.pool, self.attempt
