"""Who performs which intents: filled dialect by dialect, when the first work of one comes.

Filling imports whole packages, so it is never done on the core's thread: until a dialect is ready the
worker takes its work to the loop, and from there to a thread that fills the table. Reading what was found before needs
no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from .job import AtOnce, Performer, Threaded

ANY: Final = "*"


class Performs(msgspec.Struct, frozen=True):
    """One row: the kind of intent (`*` is every other kind), who performs it, which of them need no event
    loop, and whether the receipts are signed by the node."""

    kind: str
    performer: Performer
    threaded: Threaded | None = None
    signed: bool = False
    # Which others need none either, by what their run was started with.
    at_once: AtOnce | None = None
    # Which of them touch nothing outside, so that they may be done before they are durable.
    pure: Threaded | None = None
    # Whether the performer only reads what it is handed, and heeds no order of keys: it gets the run's own, not a copy.
    reads: bool = False
    # Lets go of what the performer holds, when its engine ends.
    close: Callable[[], Awaitable[None]] | None = None


def nobody(dialect: str) -> Iterable[Performs]:
    return ()


class PerformerTable(dict[tuple[str, str], "Performs | None"]):
    """Who performs a dialect's intents of a kind: `table[dialect, kind]`, None if nobody does, or its dialect is not
    ready. Each is found out once. `find` gives the rows of a dialect; it is asked once for each."""

    def __init__(self, find: Callable[[str], Iterable[Performs]] = nobody) -> None:
        super().__init__()
        self._find = find
        self._rows: dict[tuple[str, str], Performs] = {}
        # The dialects whose rows are filled in.
        self.ready: set[str] = set()
        self._filling = threading.Lock()
        # Held for a moment by whoever finds something out, or changes what is found.
        self._lock = threading.Lock()

    def register(self, row: Performs, *, dialect: str = ANY) -> None:
        """A row for one dialect, or for any that has none of its own for this kind."""
        with self._lock:
            self._rows[dialect, row.kind] = row
            self.clear()

    def prepare(self, dialect: str) -> None:
        """Fills in a dialect's rows. Takes its time; raises what importing them raises."""
        with self._filling:
            if dialect not in self.ready:
                rows = list(self._find(dialect))
                with self._lock:
                    for row in rows:
                        self._rows.setdefault((dialect, row.kind), row)
                    self.ready.add(dialect)
                    self.clear()

    async def close(self) -> None:
        for row in list(self._rows.values()):
            if row.close is not None:
                await row.close()

    def __missing__(self, asked: tuple[str, str]) -> Performs | None:
        dialect, kind = asked
        if dialect not in self.ready:
            return None
        with self._lock:
            rows = self._rows
            found = rows.get(asked) or rows.get((ANY, kind)) or rows.get((dialect, ANY))
            self[asked] = found
        return found
