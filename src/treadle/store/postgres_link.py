"""One connection to PostgreSQL, on which nothing is waited for without end."""

from __future__ import annotations

import selectors
import time
from collections.abc import Generator, Sequence
from typing import Any, Final, Self, TypeVar

import psycopg

from .postgres_columns import Column, ColumnDumper
from .postgres_rows import in_one, spelled

T = TypeVar("T")

# The server ends a statement after 30 s; what takes longer than this is not on its way.
ANSWER_S: Final = 35.0
# The other end is given up when it acknowledges nothing for a while.
KEPT_ALIVE: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class Bounded(psycopg.Connection[Any]):
    """A connection on which nothing is waited for without end."""

    _answer_s = ANSWER_S

    @classmethod
    def within(cls, answer_s: float, **options: Any) -> Self:
        """Connected; from then on an answer is waited for so long. The driver makes the object, with arguments of its own."""
        made = cls.connect(**KEPT_ALIVE, **options)
        made._answer_s = answer_s
        return made

    def wait(self, gen: Generator[Any, Any, T], *more: Any, **options: Any) -> T:
        return super().wait(self._in_time(gen), *more, **options)

    def _in_time(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        until = time.monotonic() + self._answer_s
        try:
            wanted = next(gen)
            while True:
                # The driver comes back now and then with nothing.
                wanted = gen.send((yield wanted))
                if time.monotonic() > until:
                    gen.close()
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self._answer_s:g} s")
        except StopIteration as done:
            found: T = done.value
            return found


class PostgresConnection:
    """A connection with the few calls that the shared store makes of one."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        raw.adapters.register_dumper(Column, ColumnDumper)

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return self.raw.execute(spelled(query), parameters or None)

    def executemany(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        if (whole := in_one(query, rows)) is not None:
            self.raw.execute(*whole)
            return
        if len(rows) == 1:
            self.raw.execute(spelled(query), rows[0])
            return
        with self.raw.cursor() as cursor:
            cursor.executemany(spelled(query), rows)

    def send(self) -> None:
        """Sends whatever is written down for the server. To end a pipeline the driver itself tries that once, and
        then only listens: what the socket did not take at once would never leave, and no answer ever come."""
        link = self.raw.pgconn
        if not link.flush():
            return
        until = time.monotonic() + ANSWER_S
        with selectors.DefaultSelector() as selector:
            selector.register(link.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while link.flush():
                if time.monotonic() > until:
                    link.finish()
                    raise psycopg.OperationalError(f"not taken within {ANSWER_S:g} s")
                for _, ready in selector.select(1.0):
                    if ready & selectors.EVENT_READ:
                        link.consume_input()

    def close(self) -> None:
        self.raw.close()
