"""A transaction on PostgreSQL as one pipeline."""

from __future__ import annotations

import contextlib

import psycopg

from .postgres_link import PostgresConnection


class Pipelined:
    """A transaction whose statements go out together; the first error undoes all of them."""

    def __init__(self, connection: PostgresConnection, timeout_ms: int) -> None:
        self.tx = connection
        self._open = contextlib.ExitStack()
        self._pipeline = self._open.enter_context(connection.raw.pipeline())
        try:
            connection.execute("BEGIN")
            connection.execute(f"SET LOCAL statement_timeout = {timeout_ms}")
        except BaseException:
            self.undo()
            raise

    @staticmethod
    def is_done() -> bool:
        """Answers come when they are asked for."""
        return False

    def send(self) -> None:
        self.tx.execute("COMMIT")
        self.tx.send()

    def wait(self) -> None:
        try:
            self._pipeline.sync()
        except BaseException:
            self.undo()
            raise
        self._open.close()

    def undo(self) -> None:
        with contextlib.suppress(psycopg.Error):  # what is still on its way meets an aborted transaction
            self.tx.send()
            self._pipeline.sync()
        with contextlib.suppress(psycopg.Error):
            self._open.close()
        with contextlib.suppress(psycopg.Error):
            self.tx.raw.rollback()
