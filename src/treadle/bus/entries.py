"""What the local bus keeps: queues by pool and lane, and in them one entry for each piece of work."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
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


class WorkLine:
    """Work in line. Where it is `fair`, one piece of each run in turn, a run's own in its order; else as it came."""

    __slots__ = ("_runs", "_size", "fair")

    def __init__(self, entries: Iterable[WorkEntry] = (), *, fair: bool) -> None:
        self.fair = fair
        # In the order of their turns; all under one name where there are none.
        self._runs: OrderedDict[str, deque[WorkEntry]] = OrderedDict()
        self._size = 0
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[WorkEntry]:
        return chain.from_iterable(self._runs.values())

    def waiting(self) -> WorkLine:
        """Without what is gone."""
        return WorkLine((entry for entry in self if entry.waits), fair=self.fair)

    @property
    def first(self) -> WorkEntry:
        return next(iter(self._runs.values()))[0]

    def append(self, entry: WorkEntry) -> None:
        self._size += 1
        whose = entry.work.run if self.fair else ""
        if (line := self._runs.get(whose)) is None:
            self._runs[whose] = deque((entry,))
        else:
            line.append(entry)

    def appendleft(self, entry: WorkEntry) -> None:
        """Next of all."""
        self._size += 1
        whose = entry.work.run if self.fair else ""
        self._runs.setdefault(whose, deque()).appendleft(entry)
        self._runs.move_to_end(whose, last=False)

    def popleft(self) -> WorkEntry:
        self._size -= 1
        run, line = self._runs.popitem(last=False)
        entry = line.popleft()
        if line:
            self._runs[run] = line
        return entry


class WorkQueue(msgspec.Struct, eq=False):
    pool: str
    lane: str
    entries: WorkLine
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
