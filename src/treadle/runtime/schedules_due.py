"""Which schedules are due, for the core that owns them; what becomes of a tick is `schedules.py`.

Most stores have no schedule, so that code is loaded beside the core when the first is there (`fetching.py`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import TERMINAL
from treadle.kernel.values import Value, decode_trusted

from .changes import Changes
from .commands import SCHEDULE
from .fetching import NotAtHand
from .meter import CoreMeter
from .own_changes import OwnChange
from .ports import Clock
from .shards import Held
from .staging import Staged

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk
    from .schedules import ScheduleRow

# How often the end of a run is looked for that another process drives; and a row that could not be advanced.
LOOK_AGAIN_NS: Final = 1_000_000_000

log = logging.getLogger("treadle.schedules")


class SchedulesDue:
    """Which schedules are due, for the core that owns them."""

    def __init__(self, reads: Reads, held: Held, changes: Changes, meter: CoreMeter, *, clock: Clock) -> None:
        self._reads = reads
        self._meter = meter
        self._clock = clock
        self._held = held
        self._changes = changes
        self._is_at_hand = self._loaded = False
        # Since when schedules are decided here: ticks from before were missed. None: they are not, or not yet.
        self._since_ns: int | None = None
        self._due: dict[str, int] = {}
        # Schedules whose change waits for its commit.
        self._asked: set[str] = set()
        # Runs whose end lets a tick start that waits for it, with their schedules.
        self.awaited: dict[str, str] = {}
        # None: nothing is due ever. 0: not known yet.
        self.next_due_ns: int | None = 0

    def gain(self) -> None:
        """They were another process's until now."""
        self._since_ns = None
        self.look()

    def look(self) -> None:
        """They are read again: a run that a tick waits for may be another process's by now."""
        self._loaded, self.next_due_ns = False, 0

    def fire(self, now_ns: int) -> None:
        """Once something is due, or may be."""
        if not self._held.holds(""):
            self._loaded, self.next_due_ns = False, now_ns + LOOK_AGAIN_NS
            return
        if self._since_ns is None:
            self._since_ns = now_ns
        if not self._loaded and not self._load(now_ns):
            return
        for name in sorted(name for name, due in self._due.items() if due <= now_ns):
            if name not in self._asked:
                self._asked.add(name)
                self._changes.add(OwnChange(partial(self._advance, name), partial(self._done, name)))
        self._rest()

    def _advance(self, name: str, desk: Desk) -> bool:
        # They may have become another process's while the change waited.
        from . import schedules

        return self._held.holds("") and schedules.advance(desk, name=name, since_ns=self._since_ns or 0)

    def _fetch(self) -> None:
        from . import schedules as schedules

        self._is_at_hand = True

    def _came(self, desk: Desk) -> None:
        """The code is there; or it cannot be loaded, and is tried again a little later."""
        self.next_due_ns = 0 if self._is_at_hand else self._clock.now_ns() + LOOK_AGAIN_NS

    def _load(self, now_ns: int) -> bool:
        """False if the code of schedules has to be loaded first: nobody else waits for that."""
        found = self._reads.documents(SCHEDULE)
        if found and not self._is_at_hand:
            self.next_due_ns = None
            # Not the name under which operations wait for theirs: each is told of its own.
            lacking = NotAtHand("the code of schedules that are due", self._fetch)
            self._changes.put_aside(lacking, OwnChange(self._came))
            return False
        self._due, self.awaited, self._loaded = {}, {}, True
        for name, value in found:
            row = _row_of(value)
            self._learn(name, row, now_ns)
            if row.waiting and not row.schedule.paused:
                # What it waits for may have ended while nobody looked.
                self._due[name] = now_ns
        return True

    def _learn(self, name: str, row: ScheduleRow | None, now_ns: int) -> None:
        self.awaited = {run: of for run, of in self.awaited.items() if of != name}
        self._due.pop(name, None)
        if row is None or row.schedule.paused:
            return
        due = row.due_ns
        if row.waiting:
            self.awaited |= dict.fromkeys(row.going, name)
            if not all(map(self._held.holds, row.going)):
                # Nobody tells us when it ends.
                due = min(due or now_ns + LOOK_AGAIN_NS, now_ns + LOOK_AGAIN_NS)
        if due is not None:
            self._due[name] = due

    def _rest(self) -> None:
        """Until when nothing happens here by itself; what waits for its commit is asked for already."""
        self.next_due_ns = min(
            (due for name, due in self._due.items() if name not in self._asked), default=None
        )

    def _done(self, name: str, advanced: object, error: TreadleError | None) -> None:
        """A change was committed, and its row learnt; or there was nothing to change, or it was not committed: then
        it is looked at again, a little later."""
        self._asked.discard(name)
        if error is not None:
            log.warning("the schedule %s was not advanced, and is tried again: %s", name, error.message)
        if not advanced and name in self._due:
            if error is None:
                self._learn(name, _find(self._reads, name), self._clock.now_ns())
            else:
                self._due[name] = self._clock.now_ns() + LOOK_AGAIN_NS
        self._rest()

    def committed(self, staged: Staged) -> None:
        if not self._loaded:
            return
        now_ns = self._clock.now_ns()
        changed = [(id, body) for kind, id, _, body in staged.batch.documents if kind == SCHEDULE]
        for id, body in changed:
            if id in self._asked and (due := self._due.get(id)):
                self._meter.schedule_lag.observe(max(0, now_ns - due) / 1e9)
            self._learn(id, None if body is None else _row_of(decode_trusted(body)), now_ns)
        ended = False
        if self.awaited:
            for row in staged.batch.runs_changed.values():
                if row.status in TERMINAL and (name := self.awaited.get(row.id)) is not None:
                    self._due[name], ended = 0, True
        if changed or ended:
            self._rest()


# Whoever has a row had the code loaded, or wrote the row with it.
def _row_of(value: Value) -> ScheduleRow:
    from .schedules import ScheduleRow

    return ScheduleRow.of(value)


def _find(reads: Reads, name: str) -> ScheduleRow | None:
    value = reads.document(SCHEDULE, name)
    return None if value is None else _row_of(value)
