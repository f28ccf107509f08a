"""The PostgreSQL side of a transfer: a cursor on the server to read from, one transaction to write to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from .base import need
from .portable import portable
from .postgres import PostgresTool, claim_once, keep_once, once_key
from .postgres_errors import error_outcome
from .postgres_pool import PoolExhausted
from .protocol import Outcome, ToolCall
from .rows import Row, TransferFailed, insert_sql, key_columns, quoted

_JSON_TYPES: Final = (114, 3802)  # the object ids of json and jsonb


@asynccontextmanager
async def _connected(
    tool: PostgresTool, config: Row, call: ToolCall
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    try:
        async with tool.connection(config, call) as connection:
            yield connection
    except psycopg.Error as error:
        raise TransferFailed(error_outcome(error)) from error
    except PoolExhausted as error:
        outcome = Outcome.failed("db_connection", str(error), code="POOL_EXHAUSTED", retryable=True)
        raise TransferFailed(outcome) from error


@asynccontextmanager
async def postgres_source(tool: PostgresTool, config: Row, call: ToolCall) -> AsyncIterator[PostgresRows]:
    query = str(need(config, "query", "command"))
    # A name of its own gives it a pool of its own: source and target never wait for each other.
    async with _connected(tool, {"application_name": "treadle transfer", **config}, call) as connection:
        yield PostgresRows(connection, query)


@asynccontextmanager
async def postgres_sink(
    tool: PostgresTool, config: Row, mode: str, call: ToolCall
) -> AsyncIterator[PostgresSink]:
    async with _connected(tool, config, call) as connection:
        yield PostgresSink(connection, config, mode, once_key(config, call))


class PostgresRows:
    def __init__(self, connection: psycopg.AsyncConnection[Any], query: str) -> None:
        self._connection = connection
        self._query = query.strip().rstrip(";")

    async def chunks(self, size: int) -> AsyncGenerator[list[Row], None]:
        async with self._connection.cursor(name="treadle_transfer", row_factory=dict_row) as cursor:
            await cursor.execute(self._query.encode())
            while rows := await cursor.fetchmany(size):
                yield rows


class PostgresSink:
    """Writes into `table`, or runs `query` with the columns as %(name)s for each row."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], config: Row, mode: str, key: str | None
    ) -> None:
        self._connection = connection
        self._config = config
        self._mode = mode
        self._key = key
        self._sql = b""
        self._columns: list[str] = []
        self._json: set[int] = set()

    async def done_before(self) -> Row | None:
        return None if self._key is None else await claim_once(self._connection, self._key)

    async def begin(self, columns: list[str]) -> None:
        self._columns = columns
        if (table := self._config.get("table")) is None:
            self._sql = str(self._config["query"]).encode()
            return
        if self._mode == "replace":
            await self._connection.execute(f"DELETE FROM {quoted(str(table))}".encode())
        if columns:
            marks = ["%s"] * len(columns)
            keys = key_columns(self._config)
            self._sql = insert_sql(str(table), columns, self._mode, keys, marks).encode()
            names = ", ".join(quoted(column) for column in columns)
            shape = await self._connection.execute(
                f"SELECT {names} FROM {quoted(str(table))} LIMIT 0".encode()
            )
            types = [column.type_code for column in shape.description or ()]
            self._json = {index for index, code in enumerate(types) if code in _JSON_TYPES}

    async def write(self, rows: list[list[Any]]) -> None:
        adapted = [self._adapt(row) for row in rows]
        async with self._connection.cursor() as cursor:
            if self._config.get("table") is not None:
                await cursor.executemany(self._sql, adapted)
            else:
                await cursor.executemany(
                    self._sql, [dict(zip(self._columns, row, strict=True)) for row in adapted]
                )

    async def commit(self, result: Row) -> Row:
        if self._key is not None:
            await keep_once(self._connection, self._key, result)
        await self._connection.commit()
        return result

    def _adapt(self, row: list[Any]) -> list[Any]:
        """Mappings are JSON; other values are too where the column says so. Lists are else arrays."""
        return [
            Jsonb(portable(value))
            if isinstance(value, dict) or (index in self._json and value is not None)
            else value
            for index, value in enumerate(row)
        ]
