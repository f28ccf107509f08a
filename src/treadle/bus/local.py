"""The bus inside one process: queues and leases in memory, because they die with the process anyway.

Three kinds of workers take from it. The *resident*, the worker inside the engine's process, is told of new work on
the spot, takes it from lanes of its own and holds it without a lease: it lives and dies with the bus. Others (those
behind HTTP) take by pool and show an unguessable lease for whatever they bring back. A worker that cannot do a piece
of work declines it: it goes to the others, and never to that one again.

A pool's queue is bounded. Work beyond the bound is forgotten but for its run: its intent is open in the store, and
is offered again (`again`) when there is room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Final, Literal

import msgspec

from treadle.kernel.limits import LEASE_DURATION_MS, POOL_QUEUE_MAX
from treadle.kernel.values import Value
from treadle.runtime.ports import Clock, Work

from .caps import PoolCaps
from .entries import NEVER_NS, OTHERS, RESIDENT, Resident, WorkLine
from .entries import WorkEntry as _Entry
from .entries import WorkQueue as _Queue
from .protocol import DEFAULT_POOL, Can, Handed
from .seal import Seal
from .view import BusView

# How far a worker looks past work that it cannot do.
LOOK_MAX: Final = 256
# Entries of a queue that are gone and not skipped yet.
GONE_MAX: Final = 1_000
# Work that was in others' hands and is done: whose it was, of the last so many.
OVER_MAX: Final = 10_000
Standing = Literal["held", "late", "lost", "unknown"]


class LocalBus(BusView):
    """Any thread may call; nothing blocks."""

    def __init__(
        self,
        clock: Clock,
        *,
        lease_ms: int = LEASE_DURATION_MS,
        queue_max: int = POOL_QUEUE_MAX,
        again: Callable[[list[str]], None] = lambda runs: None,
    ) -> None:
        self._clock = clock
        self._lease_ns = lease_ms * 1_000_000
        self._queue_max = queue_max
        # Asked to offer the open work of these runs again.
        self._again = again
        # Told, on whatever thread, that there is new work.
        self._listeners: list[Callable[[], None]] = []
        self._resident: Resident | None = None
        self._entries: dict[str, _Entry] = {}
        self._queues: dict[tuple[str, str], _Queue] = {}
        # The same by lane; the lists are replaced, never changed.
        self._lanes: dict[str, list[_Queue]] = {}
        self._leases: dict[str, _Entry] = {}
        self._seal = Seal()
        # What came to wait, for a relay to other machines; None where there is none.
        self._fresh: deque[_Entry] | None = None
        self._beyond: dict[str, dict[str, None]] = {}
        # Leases whose work is not wanted any more, for the workers that have not been told yet.
        self._revoked: dict[str, list[str]] = {}
        self._undoable: dict[str, str] = {}
        # The run of work that was in the hands of others, and is over.
        self._over: dict[str, str] = {}
        self.caps = PoolCaps()
        self._number = 0
        self._lock = Lock()

    def attach(self, resident: Resident | None) -> None:
        """Names the resident, or that there is none any more; what it held is forgotten, for the owner is about
        to offer everything again."""
        with self._lock:
            self._resident = resident
            self._entries.clear()
            self._queues.clear()
            self._lanes.clear()
            self._leases.clear()
            self._beyond.clear()
            self._revoked.clear()
            self.caps.recount(())

    def seal_with(self, key: bytes) -> None:
        """Leases are sealed with the store's key, so that whoever owns the store next knows them."""
        self._seal = Seal(key)

    def limit_pools(self, caps: Mapping[str, int]) -> None:
        """So much work of each of these pools is in hand at once, from now on; of others as much as comes."""
        with self._lock:
            if not self.caps.limit(caps):
                return
            self.caps.recount(entry.queue.pool for entry in self._entries.values() if not entry.waits)
        self._announce(dict.fromkeys(self._lanes, 1))

    def limit_pool(self, pool: str, cap: int) -> tuple[int, int]:
        """So much of one pool, from now on; how much of it is in hand, and how much waits."""
        with self._lock:
            found = self.counted(pool)
            grows = self.caps.move(pool, cap, found[0])
        if grows and found[1]:
            self._announce(dict.fromkeys(self._lanes, 1))
        return found

    # --- the owner's side ---

    def offer(self, works: Sequence[Work]) -> None:
        resident = self._resident
        sorted_ = [(work, OTHERS if resident is None else resident.lane_of(work)) for work in works]
        lanes: dict[str, int] = {}
        with self._lock:
            for work, lane in sorted_:
                if self._add(work, lane):
                    lanes[lane] = lanes.get(lane, 0) + 1
        self._announce(lanes)

    def _announce(self, lanes: dict[str, int]) -> None:
        if lanes:
            if self._resident is not None:
                self._resident.offered(lanes)
            if self._listeners:
                self.awaken()

    def awaken(self) -> None:
        """Has whoever waits look again."""
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a function called, on whatever thread, when there is new work; what ends that."""
        self._listeners = [*self._listeners, listener]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return end

    def _add(self, work: Work, lane: str) -> bool:
        id = work.intent.id
        if id in self._entries:
            return False
        pool = work.intent.pool or DEFAULT_POOL
        queue = self._queues.get((pool, lane)) or self._queue(pool, lane)
        if queue.waiting >= self._queue_max:
            self._beyond.setdefault(pool, {})[work.run] = None
            return False
        self._number += 1
        entry = self._entries[id] = _Entry(work, queue, self._number)
        queue.entries.append(entry)
        queue.waiting += 1
        if self._fresh is not None:
            self._fresh.append(entry)
        return True

    def _queue(self, pool: str, lane: str) -> _Queue:
        found = self._queues.get((pool, lane))
        if found is None:
            found = self._queues[pool, lane] = _Queue(pool, lane, WorkLine(fair=lane != OTHERS))
            self._lanes[lane] = [*self._lanes.get(lane, ()), found]
        return found

    def revoke(self, intents: Sequence[str]) -> None:
        for intent in intents:
            self.done(intent, revoked=True)
        if self._resident is not None:
            self._resident.revoked(intents)
        if self._revoked:
            self.awaken()

    def expire(self) -> int:
        now = self._clock.now_ns()
        with self._lock:
            if not self._leases:
                return 0
            silent = [entry for entry in self._leases.values() if entry.expires_ns <= now]
            for entry in sorted(silent, key=lambda entry: -entry.number):
                del self._leases[entry.lease]
                self._put_back(entry)
        self._tell(silent)
        return len(silent)

    def _put_back(self, entry: _Entry, *, last: bool = False) -> None:
        """At the front: it has waited longer than the others. What somebody declined goes to the back."""
        entry.waits, entry.worker, entry.lease, entry.expires_ns = True, "", "", NEVER_NS
        self.caps.back(entry.queue.pool)
        (entry.queue.entries.append if last else entry.queue.entries.appendleft)(entry)
        entry.queue.waiting += 1
        if self._fresh is not None:
            self._fresh.append(entry)

    def _tell(self, back: Sequence[_Entry]) -> None:
        """Work came back into the queues."""
        self._announce(Counter(entry.queue.lane for entry in back))

    # --- the resident's side ---

    def take_here(self, lane: str, limit: int) -> list[Work]:
        """For the resident: the next work of one of its lanes."""
        taken: list[Work] = []
        room: list[str] = []
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
                    room += self._room(queue)
        if room:
            self._again(room)
        return taken

    def move(self, intent: str, lane: str) -> None:
        """What the resident has in hand waits in another lane of its own."""
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
        return sum([queue.waiting for queue in self._lanes.get(lane, ())])

    def held_in(self, lane: str) -> int:
        return sum([queue.held for queue in self._lanes.get(lane, ())])

    def is_idle(self, lane: str) -> bool:
        """Whether nothing waits in a lane of the resident's, and it has nothing of it in hand."""
        return sum([queue.waiting + queue.held for queue in self._lanes.get(lane, ())]) == 0

    def held(self) -> list[Work]:
        """What the resident has in hand."""
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
        """What the resident left to the others, or has `declined`, may be something for it now."""
        resident = self._resident
        if resident is None:
            return
        with self._lock:
            found = [
                entry
                for entry in self._entries.values()
                if entry.waits
                and entry.queue.lane == OTHERS
                and (RESIDENT in entry.declined) == declined
                and chosen(entry.work)
            ]
            for entry in found:
                self._forget(entry)
        self.offer([entry.work for entry in found])

    # --- everybody's ---

    def saved(self, intent: str, checkpoint: Value) -> None:
        """Whoever gets this work next goes on from here."""
        with self._lock:
            if entry := self._entries.get(intent):
                entry.work = msgspec.structs.replace(entry.work, checkpoint=checkpoint)

    def done(self, intent: str, *, revoked: bool = False) -> None:
        """Settled by whoever has it, or `revoked`, which they do not know yet."""
        room: list[str] = []
        with self._lock:
            if entry := self._entries.get(intent):
                if revoked and entry.lease in self._leases:
                    self._revoked.setdefault(entry.worker, []).append(entry.lease)
                self._forget(entry)
                if self._beyond:
                    room = self._room(entry.queue)
        if room:
            self._again(room)
        if entry is not None and (pool := entry.queue.pool) in self.caps.pools:
            # Others of the pool waited for this one, and nobody else tells of them.
            queues = list(self._queues.values())
            self._announce({queue.lane: 1 for queue in queues if queue.pool == pool and queue.waiting})

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.work.intent.id]
        queue = entry.queue
        if entry.waits:
            queue.waiting -= 1
            entry.waits = False
            if len(queue.entries) > GONE_MAX + 2 * queue.waiting:
                queue.entries = queue.entries.waiting()
            return
        if queue.pool in self.caps.pools:
            self.caps.back(queue.pool)
        if entry.worker == RESIDENT:
            queue.held -= 1
        else:
            self._leases.pop(entry.lease, None)
            self._over[entry.work.intent.id] = entry.work.run
            if len(self._over) > OVER_MAX:
                del self._over[next(iter(self._over))]

    def decline(self, intent: str, worker: str, why: str) -> None:
        """This worker cannot do it: it waits for the others."""
        with self._lock:
            entry = self._entries.get(intent)
            if entry is None or entry.waits or entry.worker != worker:
                return
            self._decline(entry, worker, why)
        self._tell([entry])

    def _decline(self, entry: _Entry, worker: str, why: str) -> None:
        if entry.worker == RESIDENT:
            entry.queue.held -= 1
        else:
            self._leases.pop(entry.lease, None)
        entry.declined[worker] = why
        if worker == RESIDENT:
            entry.queue = self._queue(entry.queue.pool, OTHERS)
        self._put_back(entry, last=True)

    # --- other workers' side ---

    def take(
        self, worker: str, pools: Collection[str], limit: int, can: Can = lambda work: True
    ) -> list[Handed]:
        taken: list[Handed] = []
        room: list[str] = []
        with self._lock:
            for entry in self._next(worker, pools, limit, can):
                taken.append(self._hand(entry, worker))
                room += self._room(entry.queue)
        if room:
            self._again(room)
        return taken

    def _hand(self, entry: _Entry, worker: str) -> Handed:
        entry.waits, entry.worker = False, worker
        entry.attempt += 1
        self.caps.took(entry.queue.pool)
        entry.lease = self._seal.lease(entry.work.intent.id, worker)
        entry.expires_ns = self._clock.now_ns() + self._lease_ns
        entry.queue.waiting -= 1
        self._leases[entry.lease] = entry
        return Handed(entry.work, entry.attempt, entry.lease, self._lease_ns / 1e9)

    # --- a relay's side ---

    def gather_fresh(self) -> None:
        """From now on what comes to wait is remembered until `fresh` is asked; what waits already, too."""
        with self._lock:
            self._fresh = deque((e for e in self._entries.values() if e.waits), maxlen=self._queue_max)

    def fresh(self) -> list[tuple[str, str, str, int]]:
        """What came to wait since the last time, and still does: run, intent, pool, attempts."""
        with self._lock:
            gathered, self._fresh = self._fresh, deque(maxlen=self._queue_max)
            return [entry.ticket for entry in gathered or () if entry.waits]

    def still_waiting(self, pools: Collection[str], limit: int) -> list[tuple[str, str, str, int]]:
        """What waits in these pools, and somebody can do."""
        with self._lock:
            found = (e for e in self._entries.values() if e.waits and e.queue.pool in pools)
            return [e.ticket for e in islice(found, limit) if e.work.intent.id not in self._undoable]

    def claim(self, worker: str, intents: Sequence[str]) -> tuple[list[Handed], list[str]]:
        """Those of these that wait, the oldest first; and those that this worker cannot do."""
        room: list[str] = []
        with self._lock:
            found = [e for e in map(self._entries.get, intents) if e is not None and e.waits]
            mine = sorted((e for e in found if worker not in e.declined), key=lambda e: e.number)
            # What is beyond the limit of its pool waits on, and is told of again.
            taken = [self._hand(entry, worker) for entry in mine if self.caps.room(entry.queue.pool)]
            for entry in mine:
                room += self._room(entry.queue)
        if room:
            self._again(room)
        return taken, [e.work.intent.id for e in found if worker in e.declined]

    def _next(self, worker: str, pools: Collection[str], limit: int, can: Can) -> Iterator[_Entry]:
        """The oldest work that this worker can do, of all its queues; it leaves them."""
        queues = [queue for queue in self._queues.values() if queue.pool in pools]
        passed: list[_Entry] = []
        found = 0
        while found < limit and len(passed) < LOOK_MAX:
            for queue in queues:
                while queue.entries and not queue.entries.first.waits:
                    queue.entries.popleft()
            filled = [queue for queue in queues if queue.entries and self.caps.room(queue.pool)]
            if not filled:
                break
            entry = min(filled, key=lambda queue: queue.entries.first.number).entries.popleft()
            if worker in entry.declined or not can(entry.work):
                passed.append(entry)
                continue
            found += 1
            yield entry
        for entry in reversed(passed):
            entry.queue.entries.appendleft(entry)

    def revoked(self, worker: str) -> list[str]:
        """Leases of a worker's whose work is not wanted any more; told once."""
        with self._lock:
            return self._revoked.pop(worker, [])

    def _room(self, queue: _Queue) -> list[str]:
        """Runs whose work found no room in the pool, as many as have room now."""
        beyond = self._beyond.get(queue.pool)
        if not beyond or queue.waiting > self._queue_max // 2:
            return []
        runs = list(beyond)[: self._queue_max - queue.waiting]
        for run in runs:
            del beyond[run]
        if not beyond:
            del self._beyond[queue.pool]
        return runs

    def renew(self, worker: str, leases: Sequence[str]) -> list[str]:
        """The leases that are lost: that work is settled, revoked or in other hands."""
        expires = self._clock.now_ns() + self._lease_ns
        lost: list[str] = []
        with self._lock:
            for lease in leases:
                entry = self._leases.get(lease) or self._taken_up(worker, lease)
                if entry is None or entry.worker != worker:
                    lost.append(lease)
                else:
                    entry.expires_ns = expires
        return lost

    def _taken_up(self, worker: str, lease: str) -> _Entry | None:
        """Work that waits, for a worker that has it all the same: its lease ran out, or its owner died and is back."""
        intent = self._seal.intent(lease, worker)
        entry = None if intent is None else self._entries.get(intent)
        if entry is None or not entry.waits or worker in entry.declined:
            return None
        entry.waits, entry.worker, entry.lease = False, worker, lease
        self.caps.took(entry.queue.pool)
        entry.attempt = max(1, entry.attempt)
        entry.expires_ns = self._clock.now_ns() + self._lease_ns
        entry.queue.waiting -= 1
        self._leases[lease] = entry
        return entry

    def release(self, worker: str, leases: Sequence[str], reason: str = "") -> None:
        back: list[_Entry] = []
        with self._lock:
            for lease in leases:
                entry = self._leases.get(lease)
                if entry is None or entry.worker != worker:
                    continue
                back.append(entry)
                if reason:
                    self._decline(entry, worker, reason)
                else:
                    del self._leases[lease]
                    self._put_back(entry)
        self._tell(back)

    def standing(self, worker: str, intent: str, lease: str) -> tuple[Standing, Work | None]:
        """What a lease is worth. `late` is one that ran out, or that an earlier owner gave, while nobody else has
        the work: it is that worker's again, so that its receipt settles."""
        with self._lock:
            entry = self._leases.get(lease)
            if entry is not None:
                ours = entry.worker == worker and entry.work.intent.id == intent
                return ("held", entry.work) if ours else ("unknown", None)
            if self._seal.intent(lease, worker) != intent or intent not in self._entries:
                return "unknown", None
            entry = self._taken_up(worker, lease)
            return ("lost", None) if entry is None else ("late", entry.work)
