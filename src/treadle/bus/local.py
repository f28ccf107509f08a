"""The bus inside one process: queues and leases in memory, because they die with the process anyway.

`queues.py` is what every piece of work goes through: the core's side of it, and that of the worker in the same process.
Here is the side of all other workers (those behind HTTP): they take by pool, and show an unguessable lease for whatever
they bring back. A worker that cannot do a piece of work declines it: it goes to the others, and never to that one again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

from treadle.kernel.limits import LEASE_DURATION_MS, POOL_QUEUE_MAX
from treadle.runtime.ports import Clock, Work

from .data import OTHERS, Can, Handed
from .queues import WorkEntry, WorkQueues
from .seal import Seal
from .view import BusView

# How far a worker looks past work that it cannot do; the next look goes on behind that.
LOOK_MAX: Final = 256
Standing = Literal["held", "late", "lost", "unknown"]


class LocalBus(WorkQueues, BusView):
    """Any thread may call; nothing blocks."""

    def __init__(
        self,
        clock: Clock,
        *,
        lease_ms: int = LEASE_DURATION_MS,
        queue_max: int = POOL_QUEUE_MAX,
        again: Callable[[Mapping[str, str]], None] = lambda intents: None,
    ) -> None:
        super().__init__(queue_max=queue_max, again=again)
        self._clock = clock
        self._lease_ns = lease_ms * 1_000_000
        self._seal = Seal()
        self._undoable: dict[str, str] = {}

    def seal_with(self, key: bytes) -> None:
        """Leases are sealed with the store's key, so that whoever owns the store next knows them."""
        self._seal = Seal(key)

    def limit_pools(self, caps: Mapping[str, int]) -> None:
        with self._lock:
            if not self.caps.limit(caps):
                return
            self.caps.recount(entry.queue.pool for entry in self._entries.values() if not entry.waits)
        self._look_again()

    def limit_pool(self, pool: str, cap: int) -> tuple[int, int]:
        """So much of one pool, from now on; how much of it is in hand, and how much waits."""
        with self._lock:
            found = self.counted(pool)
            grows = self.caps.move(pool, cap, found[0])
        if grows and found[1]:
            self._look_again()
        return found

    def _look_again(self) -> None:
        """What had to wait may have its turn now, whichever lane it is in."""
        if self._lanes:
            self._announce(dict.fromkeys(self._lanes, 1))

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a function called, on whatever thread, when there is new work; what ends that."""
        self._listeners = [*self._listeners, listener]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return end

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

    # --- other workers' side ---

    def take(
        self, worker: str, pools: Collection[str], limit: int, can: Can = lambda work: True
    ) -> list[Handed]:
        taken: list[Handed] = []
        room: dict[str, str] = {}
        with self._lock:
            for entry in self._next(worker, pools, limit, can):
                taken.append(self._hand(entry, worker))
                room |= self._room(entry.queue)
        if room:
            self._again(room)
        return taken

    def _hand(self, entry: WorkEntry, worker: str) -> Handed:
        self._leaves(entry)
        entry.worker = worker
        entry.attempt += 1
        self.caps.took(entry.queue.pool)
        entry.lease = self._seal.lease(entry.work.intent.id, worker)
        entry.expires_ns = self._clock.now_ns() + self._lease_ns
        self._leases[entry.lease] = entry
        return Handed(entry.work, entry.attempt, entry.lease, self._lease_ns / 1e9)

    # --- a relay's side ---

    def gather_fresh(self) -> None:
        """From now on what comes to wait is remembered until `fresh` is asked; what waits already, too."""
        with self._lock:
            self._fresh = deque((e for e in self._entries.values() if e.waits), maxlen=self.queue_max)

    def fresh(self) -> list[tuple[str, str, str, int]]:
        """What came to wait since the last time, and still does: run, intent, pool, attempts."""
        with self._lock:
            gathered, self._fresh = self._fresh, deque(maxlen=self.queue_max)
            return [entry.ticket for entry in gathered or () if entry.waits]

    def still_waiting(self, pools: Collection[str], limit: int) -> list[tuple[str, str, str, int]]:
        """What waits in these pools, and somebody can do."""
        with self._lock:
            waiting = (e for e in self._entries.values() if e.waits and e.queue.pool in pools)
            found = (e.ticket for e in waiting if e.work.intent.id not in self._undoable)
            return list(islice(found, limit))

    def claim(self, worker: str, intents: Sequence[str]) -> tuple[list[Handed], list[str]]:
        """Those of these that wait, the oldest first; and those that this worker cannot do."""
        room: dict[str, str] = {}
        with self._lock:
            found = [e for e in map(self._entries.get, intents) if e is not None and e.waits]
            mine = sorted((e for e in found if worker not in e.declined), key=lambda e: e.number)
            # What is beyond the limit of its pool waits on, and is told of again.
            taken = [self._hand(entry, worker) for entry in mine if self.caps.room(entry.queue.pool)]
            for entry in mine:
                room |= self._room(entry.queue)
        if room:
            self._again(room)
        return taken, [e.work.intent.id for e in found if worker in e.declined]

    def _next(self, worker: str, pools: Collection[str], limit: int, can: Can) -> Iterator[WorkEntry]:
        """The oldest work that this worker can do, of all its queues; it leaves them."""
        queues = [queue for queue in self._queues.values() if queue.pool in pools]
        passed: list[WorkEntry] = []
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
        goes_on = len(passed) == LOOK_MAX
        for entry in passed if goes_on else ():
            if entry.queue.lane == OTHERS:
                entry.queue.entries.append(entry)
        for entry in reversed(passed):
            # What waits for the resident keeps its order: it is done there.
            if not goes_on or entry.queue.lane != OTHERS:
                entry.queue.entries.appendleft(entry)

    def revoked(self, worker: str) -> list[str]:
        """Leases of a worker's whose work is not wanted any more; told once."""
        with self._lock:
            return self._revoked.pop(worker, [])

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

    def _taken_up(self, worker: str, lease: str) -> WorkEntry | None:
        """Work that waits, for a worker that has it all the same: its lease ran out, or its owner died and is back."""
        intent = self._seal.intent(lease, worker)
        entry = None if intent is None else self._entries.get(intent)
        if entry is None or not entry.waits or worker in entry.declined:
            return None
        self._leaves(entry)
        entry.worker, entry.lease = worker, lease
        self.caps.took(entry.queue.pool)
        entry.attempt = max(1, entry.attempt)
        entry.expires_ns = self._clock.now_ns() + self._lease_ns
        self._leases[lease] = entry
        return entry

    def release(self, worker: str, leases: Sequence[str], reason: str = "") -> None:
        back: list[WorkEntry] = []
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
