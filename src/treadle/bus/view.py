"""What people see of a bus: how much waits, who has how much in hand, what nobody can do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Lock

from .data import OTHERS, RESIDENT
from .queues import WorkEntry, WorkQueue
from .seal import Seal


class BusView:
    """Looks at the queues of a bus; changes nothing."""

    _entries: dict[str, WorkEntry]
    _queues: dict[tuple[str, str], WorkQueue]
    _undoable: dict[str, str]
    _over: dict[str, str]
    _seal: Seal
    _lock: Lock

    def waiting(self) -> dict[str, int]:
        """How much waits, by pool."""
        found: dict[str, int] = {}
        with self._lock:
            for queue in self._queues.values():
                found[queue.pool] = found.get(queue.pool, 0) + queue.waiting
        return found

    def in_pool(self, pool: str) -> tuple[int, int]:
        """How much of a pool is in hand, and how much waits."""
        with self._lock:
            return self.counted(pool)

    def counted(self, pool: str) -> tuple[int, int]:
        """The same, for who has the lock."""
        waits = [entry.waits for entry in self._entries.values() if entry.queue.pool == pool]
        return waits.count(False), waits.count(True)

    def is_elsewhere(self, pool: str) -> bool:
        """Whether workers elsewhere have something of a pool in hand."""
        with self._lock:
            return any(
                entry.queue.pool == pool and not entry.waits and entry.worker != RESIDENT
                for entry in self._entries.values()
            )

    def over(self, worker: str, intent: str, lease: str) -> tuple[bool, str]:
        """Whether work that was in these hands is wanted by nobody any more; and its run, while that is known."""
        with self._lock:
            genuine = self._seal.intent(lease, worker) == intent and intent not in self._entries
            return genuine, self._over.get(intent, "") if genuine else ""

    def held_by(self) -> dict[str, int]:
        """How much each worker has in hand."""
        found: dict[str, int] = {}
        with self._lock:
            for entry in self._entries.values():
                if not entry.waits:
                    found[entry.worker] = found.get(entry.worker, 0) + 1
        return found

    def tell_undone(self, found: dict[str, str]) -> None:
        """Whoever knows all workers says what none of them can do."""
        self._undoable = found

    def undoable(self) -> dict[str, str]:
        return self._undoable

    def undone(self, workers: Sequence[tuple[str, Collection[str]]]) -> dict[str, str]:
        """Work that waits and that none of these workers (their names and pools) can do: intents and reasons."""
        found: dict[str, str] = {}
        with self._lock:
            for id, entry in self._entries.items():
                if not entry.waits or entry.queue.lane != OTHERS:
                    continue
                serving = [name for name, pools in workers if entry.queue.pool in pools]
                if not serving and not entry.declined:
                    found[id] = f"no worker serves the pool {entry.queue.pool}"
                elif all(name in entry.declined for name in serving):
                    found[id] = next(
                        iter(entry.declined.values()), f"no worker serves the pool {entry.queue.pool}"
                    )
        return found
