"""What comes to the core by itself: work left by a crash, other processes' messages, due timers, schedules and
places in line.

All are found through indexes, a page at a time, so that neither a million sleeping runs nor
a long inbox costs memory or delays the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .commands import Operate
from .inbox import Inbox
from .lines import Lines
from .mail import Mail
from .ports import Item
from .recovery import Recovery
from .schedules import SchedulesDue
from .staging import Staged
from .timers import Timers


class Intake:
    def __init__(
        self,
        recovery: Recovery,
        inbox: Inbox,
        timers: Timers,
        schedules: SchedulesDue,
        lines: Lines,
        mail: Mail,
    ) -> None:
        self._recovery = recovery
        self._inbox = inbox
        self._timers = timers
        self._schedules = schedules
        self._lines = lines
        self._mail = mail

    @property
    def busy(self) -> bool:
        return self._inbox.dirty or bool(self._recovery.left)

    def due(self, now_ns: int) -> bool:
        """Whether `gather` would find anything."""
        if self._inbox.dirty or self._recovery.left:
            return True
        due = self.next_due_ns()
        return due is not None and now_ns >= due

    def wakes_ns(self) -> int | None:
        """When `gather` finds something by itself; 0 if at once, None if never."""
        return 0 if self._inbox.dirty or self._recovery.left else self.next_due_ns()

    def next_due_ns(self) -> int | None:
        timer, tick = self._timers.next_due_ns, self._schedules.next_due_ns
        for other in (self._lines.next_due_ns, self._mail.look_again_ns):
            if other is not None:
                timer = other if timer is None else min(timer, other)
        return tick if timer is None else timer if tick is None else min(timer, tick)

    def look(self) -> None:
        """Somebody may have left messages."""
        self._inbox.dirty = True

    def gain(self, shards: Iterable[int]) -> None:
        """Shards came, with all that waits there."""
        self._recovery.gain(shards)
        self._inbox.dirty = True
        self._timers.look()
        self._schedules.look()
        self._lines.look()

    def drop_foreign(self, shards: Iterable[int], asked: Iterable[Item | Operate]) -> None:
        """Shards went; `asked` waited for their runs."""
        self._recovery.drop_foreign(shards)
        self._inbox.forget(one.inbox for one in asked)
        self._timers.drop_foreign()

    def gather(self, now_ns: int) -> None:
        self._recovery.go_on()
        self._inbox.read()
        self._timers.fire(now_ns)
        self._schedules.fire(now_ns)
        self._lines.fire(now_ns)
        self._mail.unbar(now_ns)

    def committed(self, staged: Staged, posted: Collection[str]) -> None:
        batch = staged.batch
        if posted or batch.inbox_done:
            self._inbox.committed(posted, batch.inbox_done)
        if batch.timers_done:
            self._timers.committed(batch.timers_done)
        if batch.documents or (batch.runs_changed and self._schedules.awaited):
            self._schedules.committed(staged)
        if self._recovery.cares:
            self._recovery.committed(staged.dispatched)

    def undo(self, staged: Staged) -> None:
        self._recovery.undo()
        self._inbox.undo(staged)
        self._lines.look()
