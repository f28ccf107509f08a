"""The DuckDB side of a transfer: a query read piece by piece, one transaction to write to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import duckdb

from .base import BadConfig, need
from .duckdb import DuckDbSession, error_outcome, open_duckdb
from .protocol import ToolCall
from .rows import Row, TransferFailed, insert_sql, key_columns, quoted


@asynccontextmanager
async def _opened(config: Row, call: ToolCall) -> AsyncIterator[DuckDbSession]:
    try:
        async with await open_duckdb(config, call) as session:
            yield session
    except duckdb.Error as error:
        raise TransferFailed(error_outcome(error)) from error


@asynccontextmanager
async def duckdb_source(config: Row, call: ToolCall) -> AsyncIterator[DuckDbRows]:
    query = str(need(config, "query", "command"))
    async with _opened(config, call) as session:
        yield DuckDbRows(session, query)


@asynccontextmanager
async def duckdb_sink(config: Row, mode: str, call: ToolCall) -> AsyncIterator[DuckDbSink]:
    if config.get("once"):
        raise BadConfig("'once' needs a postgres target")
    async with _opened(config, call) as session:
        yield DuckDbSink(session, config, mode)


class DuckDbRows:
    def __init__(self, session: DuckDbSession, query: str) -> None:
        self._session = session
        self._query = query

    async def chunks(self, size: int) -> AsyncGenerator[list[Row], None]:
        cursor = await self._session.call(lambda connection: connection.execute(self._query))
        names = [str(column[0]) for column in cursor.description]
        while rows := await self._session.call(lambda _: cursor.fetchmany(size)):
            yield [dict(zip(names, row, strict=True)) for row in rows]


class DuckDbSink:
    """Writes into `table`, or runs `query` with the columns as $name for each row."""

    def __init__(self, session: DuckDbSession, config: Row, mode: str) -> None:
        self._session = session
        self._config = config
        self._mode = mode
        self._sql = ""
        self._columns: list[str] = []

    async def done_before(self) -> Row | None:
        await self._session.call(lambda connection: connection.begin())
        return None

    async def begin(self, columns: list[str]) -> None:
        self._columns = columns
        if (table := self._config.get("table")) is None:
            self._sql = str(self._config["query"])
            return
        if self._mode == "replace":
            statement = f"DELETE FROM {quoted(str(table))}"
            await self._session.call(lambda connection: connection.execute(statement))
        if columns:
            marks = ["?"] * len(columns)
            self._sql = insert_sql(str(table), columns, self._mode, key_columns(self._config), marks)

    async def write(self, rows: list[list[Any]]) -> None:
        given: list[Any] = rows
        if self._config.get("table") is None:
            given = [dict(zip(self._columns, row, strict=True)) for row in rows]
        await self._session.call(lambda connection: connection.executemany(self._sql, given))

    async def commit(self, result: Row) -> Row:
        await self._session.call(lambda connection: connection.commit())
        return result
