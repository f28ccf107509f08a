"""A small pool of PostgreSQL connections that tells the truth at once.

A pool that reconnects in the background answers a refused connection with "timeout" half a minute
later. A task wants the reason now, because its policy decides what happens next. So: a stack of idle
connections and a bound; a connection is opened by who needs it, and its error goes to who needed it.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

_CHECK_AFTER_S: Final = 30.0
_IDLE_S_MAX: Final = 300.0


class PoolExhausted(Exception):
    """No connection became free in time, or too many callers wait already."""


@dataclass(slots=True, frozen=True, kw_only=True)
class PoolSettings:
    min_size: int = 1
    max_size: int = 10
    timeout: float = 30.0
    max_waiting: int = 0


class PostgresPool:
    """Connections with the same settings."""

    def __init__(self, conninfo: str, settings: PoolSettings) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_size)
        self._waiting = 0
        self._idle: list[tuple[psycopg.AsyncConnection[Any], float]] = []
        # What this pool has made sure of once, such as a table that must exist.
        self.prepared: set[str] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection outside any transaction. Whatever is not committed on leaving is rolled back."""
        await self._enter()
        try:
            connection = await self._take()
            try:
                yield connection
            finally:
                await self._give_back(connection)
        finally:
            self._slots.release()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.close()

    async def _enter(self) -> None:
        limit = self._settings.max_waiting
        if limit and self._slots.locked() and self._waiting >= limit:
            raise PoolExhausted(f"{self._waiting} tasks wait for a connection already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._slots.acquire()
        except TimeoutError as error:
            raise PoolExhausted(f"no connection became free in {self._settings.timeout:g} s") from error
        finally:
            self._waiting -= 1

    async def _take(self) -> psycopg.AsyncConnection[Any]:
        while self._idle:
            connection, since = self._idle.pop()
            if await _is_alive(connection, time.monotonic() - since):
                return connection
            await connection.close()
        return await psycopg.AsyncConnection.connect(self._conninfo)

    async def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        with suppress(psycopg.Error):
            if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                await connection.rollback()
            if connection.info.transaction_status == TransactionStatus.IDLE:
                now = time.monotonic()
                self._idle.append((connection, now))
                while len(self._idle) > self._settings.min_size and now - self._idle[0][1] > _IDLE_S_MAX:
                    await self._idle.pop(0)[0].close()
                return
        await connection.close()


async def _is_alive(connection: psycopg.AsyncConnection[Any], idle_s: float) -> bool:
    """A server that went away has closed the socket, which makes it readable."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLERR | select.POLLHUP)
    if poll.poll(0):
        return False
    if idle_s > _CHECK_AFTER_S:
        try:
            await connection.set_autocommit(True)
            await connection.execute("SELECT 1")
        except psycopg.Error:
            return False
    return True
