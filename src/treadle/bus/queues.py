"""Work in queues, inside one process: what the core offers, and the worker beside it takes.

The *resident*, the worker inside the engine's process, is told of new work on the spot, takes it from lanes of its own
and holds it without a lease: it lives and dies with the bus. What it declines waits for the others, who have leases
(`local.py`).

A pool's queue is bounded. Work beyond the bound is forgotten but for its name: its intent is open in the store, and
is offered again (`again`) when there is room; it alone, for other work of its run may be done by now, and its receipt on
its way.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.values import Value
from treadle.runtime.ports import Work

from .caps import PoolCaps
from .data import DEFAULT_POOL, OTHERS, RESIDENT

if TYPE_CHECKING:
    from .protocol import Resident


NEVER_NS: Final = 2**63 - 1
# Entries of a queue that are gone and not skipped yet.
GONE_MAX: Final = 1_000
# Work that was in others' hands and is done: whose it was, of the last so many.
OVER_MAX: Final = 10_000
_NOBODY: Final[Mapping[str, str]] = MappingProxyType({})


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
            if not entry.waits:
                # What is gone takes no turn.
                self._runs.move_to_end(run, last=False)
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
    # Who cannot do it, and why. Replaced, never changed: nearly all share one that is empty.
    declined: Mapping[str, str] = _NOBODY

    @property
    def ticket(self) -> tuple[str, str, str, int]:
        """Its run, intent, pool, and how often it was handed out."""
        return self.work.run, self.work.intent.id, self.queue.pool, self.attempt


class WorkQueues:
    """Any thread may call; nothing blocks."""

    def __init__(self, *, queue_max: int, again: Callable[[Mapping[str, str]], None]) -> None:
        self.queue_max = queue_max
        # Asked to offer these intents again, each with its run, if they are open.
        self._again = again
        # Told, on whatever thread, that there is new work.
        self._listeners: list[Callable[[], None]] = []
        self._resident: Resident | None = None
        self._entries: dict[str, WorkEntry] = {}
        self._queues: dict[tuple[str, str], WorkQueue] = {}
        # The same by lane; the lists are replaced, never changed.
        self._lanes: dict[str, list[WorkQueue]] = {}
        # What others have in hand.
        self._leases: dict[str, WorkEntry] = {}
        # What came to wait, for a relay to other machines; None where there is none.
        self._fresh: deque[WorkEntry] | None = None
        # What found no room, by pool: intents, each with its run.
        self._beyond: dict[str, dict[str, str]] = {}
        # Leases whose work is not wanted any more, for the workers that have not been told yet.
        self._revoked: dict[str, list[str]] = {}
        # The run of work that was in the hands of others, and is over.
        self._over: dict[str, str] = {}
        self.caps = PoolCaps()
        self._number = 0
        self._lock = Lock()

    def attach(self, resident: Resident | None) -> None:
        with self._lock:
            self._resident = resident
            self._entries.clear()
            self._queues.clear()
            self._lanes.clear()
            self._leases.clear()
            self._beyond.clear()
            self._revoked.clear()
            self.caps.recount(())

    # --- the owner's side ---

    def offer(self, works: Sequence[Work]) -> None:
        resident = self._resident
        # Asked without the lock: it is somebody else's code.
        chosen = [OTHERS] * len(works) if resident is None else list(map(resident.lane_of, works))
        lanes: dict[str, int] = {}
        with self._lock:
            for work, lane in zip(works, chosen, strict=True):
                id = work.intent.id
                if id in self._entries:
                    continue
                pool = work.intent.pool or DEFAULT_POOL
                queue = self._queues.get((pool, lane)) or self._queue(pool, lane)
                if queue.waiting >= self.queue_max:
                    self._beyond.setdefault(pool, {})[id] = work.run
                    continue
                if self._beyond:
                    self._found(id)
                self._number += 1
                entry = self._entries[id] = WorkEntry(work, queue, self._number)
                queue.entries.append(entry)
                queue.waiting += 1
                if self._fresh is not None:
                    self._fresh.append(entry)
                lanes[lane] = lanes.get(lane, 0) + 1
        if lanes:
            self._announce(lanes)

    def _announce(self, lanes: dict[str, int]) -> None:
        """There is so much new work in these lanes."""
        if self._resident is not None:
            self._resident.offered(lanes)
        if self._listeners:
            self.awaken()

    def awaken(self) -> None:
        """Has whoever waits look again."""
        for listener in self._listeners:
            listener()

    def _queue(self, pool: str, lane: str) -> WorkQueue:
        found = self._queues.get((pool, lane))
        if found is None:
            found = self._queues[pool, lane] = WorkQueue(pool, lane, WorkLine(fair=lane != OTHERS))
            self._lanes[lane] = [*self._lanes.get(lane, ()), found]
        return found

    def take_back(self, intents: Sequence[str]) -> list[str]:
        """Of these it forgets those that wait; what is in hand stays there. Which those were."""
        taken: list[str] = []
        room: dict[str, str] = {}
        with self._lock:
            for intent in intents:
                entry = self._entries.get(intent)
                if entry is not None and entry.waits:
                    del self._entries[intent]
                    self._leaves(entry)
                    taken.append(intent)
                    if self._beyond:
                        room |= self._room(entry.queue)
        if room:
            self._again(room)
        return taken

    def revoke(self, intents: Sequence[str]) -> None:
        for intent in intents:
            self.done(intent, revoked=True)
        if self._resident is not None:
            self._resident.revoked(intents)
        if self._revoked:
            self.awaken()

    # --- the resident's side ---

    def take_here(self, lane: str, limit: int) -> list[Work]:
        taken: list[Work] = []
        room: dict[str, str] = {}
        with self._lock:
            for queue in self._lanes.get(lane, ()):
                capped = queue.pool in self.caps.pools
                while queue.waiting and len(taken) < limit and (not capped or self.caps.room(queue.pool)):
                    entry = queue.entries.popleft()
                    if not entry.waits:
                        continue
                    if capped:
                        self.caps.took(queue.pool)
                    entry.waits, entry.worker = False, RESIDENT
                    entry.attempt += 1
                    queue.waiting -= 1
                    queue.held += 1
                    taken.append(entry.work)
                if self._beyond:
                    room |= self._room(queue)
        if room:
            self._again(room)
        return taken

    def move(self, intent: str, lane: str) -> None:
        with self._lock:
            entry = self._entries.get(intent)
            if entry is None or entry.worker != RESIDENT:
                return
            entry.queue.held -= 1
            entry.attempt -= 1
            entry.queue = self._queue(entry.queue.pool, lane)
            self._put_back(entry, last=True)
        self._tell([entry])

    def waiting_in(self, lane: str) -> int:
        waiting = 0
        for queue in self._lanes.get(lane, ()):
            waiting += queue.waiting
        return waiting

    def unsettled_in(self, lane: str) -> int:
        unsettled = 0
        for queue in self._lanes.get(lane, ()):
            unsettled += queue.waiting + queue.held
        return unsettled

    def held(self) -> list[Work]:
        return [entry.work for entry in list(self._entries.values()) if entry.worker == RESIDENT]

    def works(self) -> list[tuple[Work, bool]]:
        """All that was offered and is not done; whether somebody has it in hand."""
        return [(entry.work, not entry.waits) for entry in list(self._entries.values())]

    def find(self, intent: str) -> Work | None:
        with self._lock:
            entry = self._entries.get(intent)
            return None if entry is None else entry.work

    def is_held(self, intent: str) -> bool:
        with self._lock:
            entry = self._entries.get(intent)
            return entry is not None and not entry.waits

    def reconsider(self, chosen: Callable[[Work], bool], *, declined: bool = False) -> None:
        resident = self._resident
        if resident is None:
            return
        with self._lock:
            found = [
                entry
                for entry in self._entries.values()
                if entry.waits and entry.queue.lane == OTHERS and (RESIDENT in entry.declined) == declined
            ]
        # Asked without the lock: it is somebody else's code. Meanwhile it is there as before, for whoever takes or settles it.
        lanes = [(entry, resident.lane_of(entry.work)) for entry in found if chosen(entry.work)]
        moved: list[WorkEntry] = []
        with self._lock:
            for entry, lane in lanes:
                if not entry.waits or self._entries.get(entry.work.intent.id) is not entry:
                    continue
                entry.declined = {who: why for who, why in entry.declined.items() if who != RESIDENT}
                if lane != OTHERS:
                    self._leaves(entry)
                    entry.queue = self._queue(entry.queue.pool, lane)
                    self._line_up(entry, last=True)
                    moved.append(entry)
        self._tell(moved)

    # --- everybody's ---

    def saved(self, intent: str, checkpoint: Value) -> None:
        with self._lock:
            if entry := self._entries.get(intent):
                entry.work = msgspec.structs.replace(entry.work, checkpoint=checkpoint)

    def let_go(self, run: str, intent: str, checkpoint: Value) -> None:
        with self._lock:
            entry = self._entries.get(intent)
            theirs = entry is not None and entry.work.checkpoint is checkpoint
        if theirs:
            self.done(intent)
            self._again({intent: run})

    def done(self, intent: str, *, revoked: bool = False) -> None:
        """Settled by whoever has it, or `revoked`, which they do not know yet."""
        room: dict[str, str] = {}
        with self._lock:
            if entry := self._entries.get(intent):
                if revoked and entry.lease in self._leases:
                    self._revoked.setdefault(entry.worker, []).append(entry.lease)
                del self._entries[intent]
                queue = entry.queue
                if entry.waits:
                    self._leaves(entry)
                else:
                    if queue.pool in self.caps.pools:
                        self.caps.back(queue.pool)
                    if entry.worker == RESIDENT:
                        queue.held -= 1
                    else:
                        self._leases.pop(entry.lease, None)
                        self._over[intent] = entry.work.run
                        if len(self._over) > OVER_MAX:
                            del self._over[next(iter(self._over))]
                if self._beyond:
                    room = self._room(queue)
            elif self._beyond:
                self._found(intent)
        if room:
            self._again(room)
        if entry is not None and (pool := entry.queue.pool) in self.caps.pools:
            # Others of the pool waited for this one, and nobody else tells of them.
            queues = list(self._queues.values())
            if lanes := {queue.lane: 1 for queue in queues if queue.pool == pool and queue.waiting}:
                self._announce(lanes)

    @staticmethod
    def _leaves(entry: WorkEntry) -> None:
        """What waits waits no more; its place in line is passed over."""
        queue = entry.queue
        queue.waiting -= 1
        entry.waits = False
        if len(queue.entries) > GONE_MAX + 2 * queue.waiting:
            queue.entries = queue.entries.waiting()

    def decline(self, intent: str, worker: str, why: str) -> None:
        with self._lock:
            entry = self._entries.get(intent)
            if entry is None or entry.waits or entry.worker != worker:
                return
            self._decline(entry, worker, why)
        self._tell([entry])

    def _decline(self, entry: WorkEntry, worker: str, why: str) -> None:
        if entry.worker == RESIDENT:
            entry.queue.held -= 1
        else:
            self._leases.pop(entry.lease, None)
        entry.declined = {**entry.declined, worker: why}
        if worker == RESIDENT:
            entry.queue = self._queue(entry.queue.pool, OTHERS)
        self._put_back(entry, last=True)

    def _put_back(self, entry: WorkEntry, *, last: bool = False) -> None:
        """At the front: it has waited longer than the others. What somebody declined goes to the back."""
        self.caps.back(entry.queue.pool)
        self._line_up(entry, last=last)

    def _line_up(self, entry: WorkEntry, *, last: bool) -> None:
        """As an entry of its own: the one before may stand in a line still, and is passed over there."""
        entry = msgspec.structs.replace(entry, waits=True, worker="", lease="", expires_ns=NEVER_NS)
        self._entries[entry.work.intent.id] = entry
        (entry.queue.entries.append if last else entry.queue.entries.appendleft)(entry)
        entry.queue.waiting += 1
        if self._fresh is not None:
            self._fresh.append(entry)

    def _tell(self, back: Sequence[WorkEntry]) -> None:
        """Work came back into the queues."""
        if back:
            self._announce(Counter(entry.queue.lane for entry in back))

    def _room(self, queue: WorkQueue) -> dict[str, str]:
        """Work that found no room in the pool, as much as has room now."""
        beyond = self._beyond.get(queue.pool)
        if not beyond or queue.waiting > self.queue_max // 2:
            return {}
        found = dict(islice(beyond.items(), self.queue_max - queue.waiting))
        for intent in found:
            self._found(intent)
        return found

    def _found(self, intent: str) -> None:
        """It is beyond the bound no more, if it was."""
        for pool, beyond in list(self._beyond.items()):
            if beyond.pop(intent, None) is not None and not beyond:
                del self._beyond[pool]
