"""What time brings: timers that are due, and deadlines of other work. Found through an index, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import Receipt
from treadle.store.rows import TimerRow

from .commands import Deliver, Own
from .mail import Mail
from .shards import Held

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


# How the rows of runs begin that are late if they have not ended by then; they are nobody's intent.
LATE: Final = "late:"


class Timers:
    def __init__(
        self, reads: Reads, mail: Mail, held: Held, limits: Limits, late: Callable[[TimerRow], None]
    ) -> None:
        self._late = late
        self._held = held
        self._reads = reads
        self._mail = mail
        self._limits = limits
        # In a mailbox already, with their runs; their rows go with the commit.
        self._firing: dict[str, str] = {}
        # None: nothing is armed. 0: not known yet.
        self.next_due_ns: int | None = 0

    def arm(self, due_ns: int) -> None:
        if self.next_due_ns is None or due_ns < self.next_due_ns:
            self.next_due_ns = due_ns

    def committed(self, done: Iterable[str]) -> None:
        for intent in done:
            self._firing.pop(intent, None)

    def look(self) -> None:
        """Shards were gained: what is due there is not known yet."""
        self.next_due_ns = 0

    def drop_foreign(self) -> None:
        """Shards were lost: their timers fire elsewhere."""
        self._firing = {intent: run for intent, run in self._firing.items() if self._held.holds(run)}

    def fire(self, now_ns: int) -> None:
        """Once something is due, or may be."""
        shards = self._held.chosen
        rows = self._reads.timers_due(now_ns, self._limits.timers_per_turn + len(self._firing), shards)
        fresh = [row for row in rows if row.intent not in self._firing]
        for row in fresh:
            self._firing[row.intent] = row.run_id
            if row.intent.startswith(LATE):
                self._late(row)
            else:
                self._mail.post(Own(row.run_id, Receipt(intent=row.intent)) if row.fires else deadline(row))
        # While fired timers wait for their commit their rows are still there: ask again after it.
        self.next_due_ns = now_ns if fresh else self._reads.timer_after(now_ns, shards)


def deadline(row: TimerRow) -> Deliver:
    """What an intent is told whose time is up."""
    error = TreadleError("its time is up", cls="timeout", code="TIMEOUT").to_value()
    return Own(row.run_id, Receipt(intent=row.intent, status="timeout", error=error))
