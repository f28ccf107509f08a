"""Carries work to workers, by lease.

A worker takes work, renews while it works, and gives it back as a receipt. A worker that dies or
stalls stops renewing; its work is handed out again with the last durable checkpoint. The receipt
that comes first settles the intent, any other is stale: so leases are for progress, not for safety.

This is the bus inside one process; PostgreSQL and NATS can stand in its place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol

from treadle.kernel.limits import LEASE_DURATION_MS
from treadle.kernel.values import Value
from treadle.runtime.ports import Clock, Work


@dataclass(slots=True)
class Lease:
    work: Work
    worker: str
    expires_ns: int


class Bus(Protocol):
    """Any thread may call; nothing blocks."""

    def put(self, works: list[Work]) -> None: ...
    def take(self, worker: str, limit: int) -> list[Work]: ...
    def renew(self, worker: str) -> None: ...
    def saved(self, intent: str, checkpoint: Value) -> None: ...
    def done(self, intent: str) -> None: ...
    def expire(self) -> int: ...


class LocalBus:
    """First in, first out; leases in memory, because they die with the process anyway."""

    def __init__(self, clock: Clock, *, lease_ms: int = LEASE_DURATION_MS) -> None:
        self._clock = clock
        self._lease_ns = lease_ms * 1_000_000
        self._queue: deque[Work] = deque()
        self._leases: OrderedDict[str, Lease] = OrderedDict()
        self._withdrawn: set[str] = set()
        self._lock = Lock()

    def put(self, works: list[Work]) -> None:
        with self._lock:
            self._queue.extend(works)

    def take(self, worker: str, limit: int) -> list[Work]:
        expires = self._clock.now_ns() + self._lease_ns
        taken: list[Work] = []
        with self._lock:
            while self._queue and len(taken) < limit:
                work = self._queue.popleft()
                if work.intent.id in self._withdrawn:
                    self._withdrawn.discard(work.intent.id)
                    continue
                self._leases[work.intent.id] = Lease(work, worker, expires)
                taken.append(work)
            if not self._queue:
                self._withdrawn.clear()
        return taken

    def renew(self, worker: str) -> None:
        expires = self._clock.now_ns() + self._lease_ns
        with self._lock:
            for lease in self._leases.values():
                if lease.worker == worker:
                    lease.expires_ns = expires

    def saved(self, intent: str, checkpoint: Value) -> None:
        """Whoever gets this work next goes on from here."""
        with self._lock:
            if lease := self._leases.get(intent):
                lease.work = replace(lease.work, checkpoint=checkpoint)

    def done(self, intent: str) -> None:
        """The intent is settled or was revoked: nobody needs to work on it any more."""
        with self._lock:
            if self._leases.pop(intent, None) is None and self._queue:
                self._withdrawn.add(intent)

    def expire(self) -> int:
        """Puts the work of silent workers back at the front of the queue; how much."""
        now = self._clock.now_ns()
        with self._lock:
            late = [lease for lease in self._leases.values() if lease.expires_ns <= now]
            for lease in reversed(late):
                del self._leases[lease.work.intent.id]
                self._queue.appendleft(lease.work)
        return len(late)

    def held(self) -> list[Work]:
        """What workers have in their hands."""
        with self._lock:
            return [lease.work for lease in self._leases.values()]

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def leased(self) -> int:
        return len(self._leases)
