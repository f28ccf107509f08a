"""A commit in two parts: its rows are written; while it is made durable, whoever writes it goes on.

Nothing else is done on that connection meanwhile: whoever reads waits for it, and sees its rows, or is told that
there is nothing to build on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

# Two threads take turns on one connection, which not every build of SQLite allows.
SERIALIZED: Final = sqlite3.threadsafety == 3


if TYPE_CHECKING:

    class Transaction(Protocol):
        """A transaction that is open. Its errors are the driver's."""

        @property
        def tx(self) -> Any:
            """What its statements are made with."""
            ...

        def send(self) -> None:
            """Begins to make it durable."""
            ...

        @property
        def is_done(self) -> Callable[[], bool]:
            """Whether `wait` would return at once, as far as can be seen. Asked between any two decisions."""
            ...

        def wait(self) -> None:
            """Returns once it is durable. Raises if it is not; then nothing is left of it."""
            ...

        def undo(self) -> None: ...


class UnderWay:
    """A commit that is being made durable."""

    def __init__(
        self, wait: Callable[[], None], is_done: Callable[[], bool], over: Callable[[], None]
    ) -> None:
        self._wait = wait
        self._is_done = is_done
        self._over = over
        self._settled = False
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._settled or self._is_done()

    def settle(self) -> bool:
        """Waits until it is known what becomes of it; whether it is durable."""
        if not self._settled:
            self._settled = True
            try:
                self._wait()
            except Exception as error:
                self._error = error
        return self._error is None

    def finish(self) -> None:
        """Returns once it is durable; raises what a commit raises. Until then nobody can read past it."""
        self.settle()
        self._over()
        if self._error is not None:
            raise self._error


class Committer(threading.Thread):
    """Waits for the disk in another's place. SQLite lets go of the interpreter's lock while it does."""

    def __init__(self) -> None:
        super().__init__(name="treadle-commits", daemon=True)
        self._asked: SimpleQueue[sqlite3.Connection | None] = SimpleQueue()
        self._begun: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[Exception | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while (connection := self._asked.get()) is not None:
            self._begun.put(None)
            try:
                connection.execute("COMMIT")
            except Exception as error:
                self._ended.put(error)
            else:
                self._ended.put(None)

    def begin(self, connection: sqlite3.Connection) -> None:
        """Returns when the other thread is on its way: else it would have to wait for the interpreter's lock."""
        self._asked.put(connection)
        self._begun.get()

    def is_done(self) -> bool:
        return not self._ended.empty()

    def wait(self) -> None:
        if (error := self._ended.get()) is not None:
            raise error

    def stop(self) -> None:
        self._asked.put(None)


class SqliteTransaction:
    """Begins with the write lock, so that a busy store is noticed before anything is done."""

    def __init__(self, connection: Any, committer: Committer) -> None:
        connection.execute("BEGIN IMMEDIATE")
        self.tx = connection
        self._committer = committer
        self.is_done = committer.is_done

    def send(self) -> None:
        self._committer.begin(self.tx)

    def wait(self) -> None:
        try:
            self._committer.wait()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        with contextlib.suppress(Exception):
            self.tx.execute("ROLLBACK")
