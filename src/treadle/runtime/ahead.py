"""Work that touches nothing outside may be begun before the commit that opens it is durable.

Whoever declares a piece of work `pure` says that nobody can tell whether it was done: so it may be done for a
decision that never becomes durable. It is handed out as soon as the decision is made, and the commit waits a moment
for its receipt, which is then decided in the same one: a chain of such steps costs one commit. The journal is the
same as ever, record by record.

A commit waits only while nothing in it has happened outside, nobody waits for its answer or for the end of a run in
it, and no other work follows from it; and never longer than `Limits.ahead_ns`. If it fails, what was begun for it is
revoked, and its events are decided again. Work that is opened by a commit with payloads in it follows that commit: it
may have to read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from treadle.kernel.limits import Limits

from .ports import Work
from .staging import Staging

if TYPE_CHECKING:

    class Eager(Protocol):
        """Who begins work before its commit. Called on the core thread."""

        def is_pure(self, work: Work, definition: object) -> bool:
            """Whether this work touches nothing outside, and can be begun at once."""
            ...

        def begin(self, works: list[Work]) -> None: ...

        def revoke(self, intents: list[str]) -> None: ...


class Nobody:
    """Where all work follows its commit."""

    def is_pure(self, work: Work, definition: object) -> bool:
        return False

    def begin(self, works: list[Work]) -> None:
        raise AssertionError("nothing is pure here")

    def revoke(self, intents: list[str]) -> None:
        """Nothing was begun."""


class Ahead:
    def __init__(self, eager: Eager, staging: Staging, limits: Limits) -> None:
        self._eager = eager
        self._staging = staging
        self._limits = limits
        self.is_pure = eager.is_pure
        # Intents of any commit that were begun ahead of it, and are open.
        self.begun: set[str] = set()
        # Until when the commit that is held open may be.
        self._until_ns = 0

    # --- as steps are staged ---

    def settled(self, intent: str) -> None:
        """A receipt is in this commit. What it tells of may have happened outside: then it must not wait."""
        staged = self._staging.staged
        if intent in self.begun:
            self.begun.discard(intent)
            staged.ahead.discard(intent)
        else:
            staged.firm = True

    def cancelled(self, intent: str) -> None:
        self.begun.discard(intent)
        self._staging.staged.ahead.discard(intent)

    # --- before the commit ---

    def begin(self) -> None:
        """Hands out what was opened since the last time and is open still."""
        staged = self._staging.staged
        eager, staged.eager = staged.eager, []
        works = [work for work in eager if work.intent.id in staged.ahead]
        for work in works:
            self.begun.add(work.intent.id)
        if works:
            self._eager.begin(works)

    def opened(self, work: Work) -> None:
        staged = self._staging.staged
        staged.eager.append(work)
        staged.ahead.add(work.intent.id)

    def holds(self, now: int) -> bool:
        """Whether the commit at hand waits for what was begun ahead of it."""
        staged = self._staging.staged
        if not staged.ahead or staged.is_awaited or staged.full(self._limits):
            return False
        if not staged.held:
            staged.held, self._until_ns = True, now + self._limits.ahead_ns
        return self.left_ns(now) > 0

    def left_ns(self, now: int) -> int:
        """How long the commit that is held open may wait; a clock that was set back does not make it longer."""
        left = self._until_ns - now
        return left if 0 < left <= self._limits.ahead_ns else 0

    # --- after it ---

    def withdrawn(self, ahead: set[str]) -> None:
        """The commit failed: what was begun for it is not wanted."""
        gone = sorted(ahead & self.begun)
        self.begun.difference_update(ahead)
        if gone:
            self._eager.revoke(gone)
