"""One command that goes wrong must not stop the others.

What is wrong with a command is refused where it is found, with its own error. This is for what was
not foreseen: a value that the database does not take, a bug. A batch that meets such a thing leaves no trace; its
commands are tried one by one, and the one that fails alone is turned away: its caller is told; what has happened
outside and cannot be refused leaves its run as it is, as a run that cannot be read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import REFUSABLE
from treadle.kernel.run import error_of
from treadle.store.rows import GUEST

from .commands import CheckpointSaved, Deliver, FrameSent, Operate, Progress
from .own_changes import Change, OwnChange
from .staging import Answers, Staging
from .undecided import Undecided

log = logging.getLogger("treadle.core")


def known(error: Exception) -> TreadleError:
    """An error of ours for whoever is told."""
    if isinstance(error, TreadleError):
        return error
    found = TreadleError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


class Isolation:
    def __init__(self, staging: Staging, answers: Answers, undecided: Undecided) -> None:
        self._staging = staging
        self._answers = answers
        self._undecided = undecided
        # How many of the next batches hold one command each, because one of several is to blame.
        self.apart = 0

    @property
    def closes(self) -> bool:
        """Whether the batch at hand takes no more on this account."""
        return self.apart > 0 and self._staging.staged.holds > 0

    def committed(self) -> None:
        self.apart = max(0, self.apart - 1)

    def suspect(self) -> bool:
        """Whether the batch at hand holds one command only, which is then to blame. Else each of those it
        holds gets a batch of its own."""
        self.apart = self._staging.staged.holds
        return self.apart <= 1

    def expel(
        self, culprit: Deliver | Change | Progress | None, error: TreadleError, read: Sequence[str]
    ) -> None:
        """Stages what is left of a command that failed alone: its refusal. `read` are the messages that it
        had come from."""
        log.error("a command was turned away: %s", error, exc_info=error.__cause__)
        if isinstance(culprit, Deliver):
            self._expel_event(culprit, error)
            return
        told = {"error": error_of(error)}
        diagnose = self._staging.diagnose
        for key in read:
            diagnose("", "inbox.unreadable", {**told, "key": key})
            self._answers.dispose(key, None, error)
        if isinstance(culprit, FrameSent | CheckpointSaved):
            diagnose(culprit.run, "refused", {**told, "intent": culprit.intent})
        if isinstance(culprit, Operate):
            diagnose(culprit.home, "refused", {**told, "operation": culprit.name})
        if isinstance(culprit, Operate | OwnChange):
            self._answers.settle(culprit, None, error)
        elif isinstance(culprit, CheckpointSaved) and culprit.ack is not None:
            self._answers.tell(culprit.ack, None, error)

    def dismiss(
        self, culprit: Deliver | Change | Progress | None, error: TreadleError, read: Sequence[str]
    ) -> None:
        """Stages the refusal of a command whose own names cannot be written: its caller is told, its message is
        done with, and nothing names it."""
        if isinstance(culprit, Deliver):
            if not self._is_refusable(culprit):
                raise error
            self._staging.staged.taken.append(culprit)
        inbox = None if isinstance(culprit, OwnChange | FrameSent | CheckpointSaved | None) else culprit.inbox
        for key in dict.fromkeys([*read, *([] if inbox is None else [inbox])]):
            self._answers.dispose(key, None, error)
        if culprit is not None and not isinstance(culprit, FrameSent) and culprit.ack is not None:
            self._answers.tell(culprit.ack, None, error)

    @staticmethod
    def _is_refusable(item: Deliver) -> bool:
        asked = item.ack is not None or item.create is not None or (item.inbox or "").startswith(GUEST)
        return asked or isinstance(item.event, REFUSABLE)

    def _expel_event(self, item: Deliver, error: TreadleError) -> None:
        self._staging.staged.taken.append(item)
        if self._is_refusable(item):
            self._answers.refuse(item, error)
        else:
            self._undecided.quarantine(item, error)
