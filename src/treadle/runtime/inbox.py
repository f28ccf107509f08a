"""Messages that others left for this core in the store, read a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.run import error_of
from treadle.store.protocol import Message, Reads

from .commands import Deliver, Operate
from .mail import unusable
from .messages import message_from_bytes
from .shards import Held
from .staging import Answers, Staged, Staging


class Inbox:
    def __init__(
        self,
        reads: Reads,
        staging: Staging,
        answers: Answers,
        take: Callable[[Deliver | Operate], None],
        held: Held,
        limits: Limits,
    ) -> None:
        self._held = held
        self._reads = reads
        self._staging = staging
        self._answers = answers
        self._take = take
        self._limits = limits
        # In a mailbox already; their rows go with the commit that decides them.
        self._reading: set[str] = set()
        # Whether there may be messages that nobody has read.
        self.dirty = True

    def read(self) -> None:
        """While it is dirty."""
        found = self._reads.inbox(self._limits.inbox_per_turn + len(self._reading), self._held.chosen)
        rows = [row for row in found if row[0] not in self._reading]
        for key, body in rows:
            self._reading.add(key)
            try:
                command = message_from_bytes(body, key)
                if (unfit := unusable(command)) is not None:
                    raise unfit
            except TreadleError as error:
                about = {"key": key, "error": error_of(error)}
                self._staging.diagnose("", "inbox.unreadable", about)
                self._answers.dispose(key, None, error)
                continue
            home = command.home if isinstance(command, Operate) else command.run
            if not self._held.several or self._held.holds(home):
                self._take(command)
            else:
                self._pass_on(key, body, home)
        self.dirty = bool(rows)

    def _pass_on(self, key: str, body: bytes, home: str) -> None:
        """It was written for another number of shards, or by who did not say for whom: it goes where it belongs."""
        self._staging.batch.inbox_done.append(key)
        self._staging.batch.inbox.append(Message(key, body, home))

    def forget(self, keys: Iterable[str | None]) -> None:
        """They are in no mailbox any more."""
        self._reading.difference_update(key for key in keys if key is not None)

    def committed(self, posted: Iterable[str], done: Iterable[str]) -> None:
        """`posted` are ours, in mailboxes as well; `done` are gone."""
        self._reading.update(posted)
        self._reading.difference_update(done)

    def undo(self, staged: Staged) -> None:
        """Messages whose operation a failed commit held are read again; events are back in their
        mailboxes by themselves."""
        operated = {operate.inbox for operate, _ in staged.handed}
        operated |= {change.inbox for change in staged.writes if isinstance(change, Operate)}
        kept = {item.inbox for item in staged.taken} - operated
        again = operated | {key for key in staged.batch.inbox_done if key not in kept}
        self._reading.difference_update(key for key in again if key is not None)
        self.dirty = True
