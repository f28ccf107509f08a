"""What comes to the core by itself: due timers, other processes' messages, work left by a crash.

All three are found through indexes, a page at a time, so that neither a million sleeping runs nor
a long inbox costs memory or delays the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING, JournalCorrupt, StoreCorrupt, TreadleError
from treadle.kernel.model import ENGINE_KINDS, Receipt
from treadle.kernel.run import error_of
from treadle.store.protocol import RunRow

from . import effects, undecided
from .hot import open_and_owed
from .messages import message_from_bytes, unusable
from .ports import Item, Own, Work
from .staging import Staged

if TYPE_CHECKING:
    from .core import Core


class Intake:
    def __init__(self, core: Core) -> None:
        self._core = core
        # Timers and messages that are in a mailbox already; their rows go with the commit.
        self.firing: set[str] = set()
        self.reading: set[str] = set()
        self.inbox_dirty = True
        self._next_due_ns: int | None = 0
        # Recovery has come to this run (None: it is over), and had before the batch at hand.
        self._recovered_no: int | None = 0
        self._recovered_before: int | None = 0
        # Handed out in this life while recovery is under way: not to be handed out again.
        self._handed: set[str] = set()

    @property
    def busy(self) -> bool:
        return self._recovered_no is not None or self.inbox_dirty

    def due(self, now_ns: int) -> bool:
        """Whether `gather` would find anything."""
        return self.busy or (self._next_due_ns is not None and now_ns >= self._next_due_ns)

    def next_due_ns(self) -> int | None:
        return self._next_due_ns

    def arm(self, due_ns: int) -> None:
        if self._next_due_ns is None or due_ns < self._next_due_ns:
            self._next_due_ns = due_ns

    def handed_out(self, works: list[Work]) -> None:
        if self._recovered_no is not None:
            self._handed.update(work.intent.id for work in works)
        else:
            self._handed.clear()

    def undo(self, staged: Staged) -> None:
        """A commit failed: what it recovered is recovered again; messages whose operation it held
        are read again (events are back in their mailboxes by themselves)."""
        self._recovered_no = self._recovered_before
        operated = {operate.inbox for operate, _ in staged.handed}
        kept = {item.inbox for item in staged.taken} - operated
        again = operated | {key for key in staged.batch.inbox_done if key not in kept}
        self.reading.difference_update(key for key in again if key is not None)
        self.inbox_dirty = True

    def gather(self, now_ns: int) -> None:
        self._recovered_before = self._recovered_no
        self._recover()
        self._read_inbox()
        self._fire_timers(now_ns)

    def _fire_timers(self, now_ns: int) -> None:
        if self._next_due_ns is None or now_ns < self._next_due_ns:
            return
        rows = self._core.store.timers_due(now_ns, self._core.limits.timers_per_turn + len(self.firing))
        fresh = [row for row in rows if row.intent not in self.firing]
        for row in fresh:
            self.firing.add(row.intent)
            if row.fires:
                self._core.post(Item(row.run_id, Receipt(intent=row.intent)))
            else:
                effects.deadline(self._core, row)
        # While fired timers wait for their commit their rows are still there: ask again after it.
        self._next_due_ns = now_ns if fresh else self._core.store.timer_after(now_ns)

    def _read_inbox(self) -> None:
        if not self.inbox_dirty:
            return
        found = self._core.store.inbox(self._core.limits.inbox_per_turn + len(self.reading))
        rows = [row for row in found if row[0] not in self.reading]
        for key, body in rows:
            self.reading.add(key)
            try:
                command = message_from_bytes(body, key)
                if (unfit := unusable(command)) is not None:
                    raise unfit
            except TreadleError as error:
                self._core.diagnose("", "inbox.unreadable", {"key": key, "error": error_of(error)})
                self._core.dispose(key, None, error)
                continue
            self._core.take(command)
        self.inbox_dirty = bool(rows)

    def _recover(self) -> None:
        """Hands open work out again under the same ids ("ensure started")."""
        if self._recovered_no is None:
            return
        limit = self._core.limits.recover_per_turn
        rows = self._core.store.working(after_no=self._recovered_no, limit=limit)
        for row in rows:
            try:
                if undecided.is_undecided(row):
                    # Its work is not done again for nothing: only if it can be decided after all.
                    self._core.hot.get(row.id)
                owes = self._dispatch_again(row)
            except PASSING:
                raise
            except StoreCorrupt:
                raise
            except Exception as error:
                # One damaged run must not keep the others from being recovered.
                known: TreadleError = JournalCorrupt(f"{row.id}: {error}")
                if isinstance(error, TreadleError) and error.cls == known.cls:
                    known = error
                self._core.quarantine(Own(row.id, None), known)
                continue
            if owes:
                # It owes itself an event, or may: load it and see.
                self._core.put_back(Own(row.id, None))
        self._recovered_no = rows[-1].no if len(rows) == limit else None

    def _dispatch_again(self, row: RunRow) -> bool:
        """Whether the run may owe itself an event, besides what workers hold."""
        core = self._core
        open_, owes = open_and_owed(row, core.store)
        intents = [i for i in open_.values() if i.kind not in ENGINE_KINDS]
        if not intents:
            return True
        first = core.store.record(row.no, 1)
        options: dict[str, Any] = first.record()["event"].get("options", {}) if first is not None else {}
        checkpoints = core.store.checkpoints(row.no)
        try:
            loaded = core.registry.load(row.definition).definition
        except PASSING:
            raise
        except TreadleError:
            loaded = None
        for intent in intents:
            if intent.id in self._handed:
                continue
            saved = checkpoints.get(intent.id)
            core.staged.dispatched.append(
                Work(row.id, row.workflow, row.dialect, row.definition, options, intent, loaded, saved)
            )
        return owes
