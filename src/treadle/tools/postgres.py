"""`postgres`: statements in one transaction, the last one's rows as the result and each one's beside it.

With `once: true` the call's idempotency key is stored in the table `treadle_once` in the same
transaction. A call that is repeated (a worker died after the commit and before its receipt) finds the
key, changes nothing and gives the first call's result: exactly once, as far as this database goes.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from treadle.kernel.values import decode_trusted, encode

from .base import BadConfig, ToolBase, credential, mapping, pick, seconds
from .postgres_errors import error_outcome
from .postgres_pool import PoolExhausted, PoolSettings, PostgresPool
from .protocol import Outcome, ToolCall
from .sql import Params, Statement, read_statements, sql_result, statement_result

# How people spell the parts of a connection, in tasks and in credentials.
_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "host": ("db_host", "host", "hostname"),
    "port": ("db_port", "port"),
    "user": ("db_user", "user", "username"),
    "password": ("db_password", "password"),
    "dbname": ("db_name", "dbname", "database"),
    "sslmode": ("sslmode", "db_sslmode"),
    "options": ("options",),
    "application_name": ("application_name",),
}
_WHOLE: Final = ("db_conn_string", "conn_string", "connection_string", "dsn", "uri", "url")
_ENDS_TRANSACTION: Final = re.compile(r"\s*(BEGIN|START|COMMIT|ROLLBACK|END|ABORT)\b(?!\s+TO\b)", re.I)
_ONCE_TABLE: Final = "CREATE TABLE IF NOT EXISTS treadle_once (key text PRIMARY KEY, result bytea, at timestamptz NOT NULL DEFAULT now())"


class PostgresTool(ToolBase):
    """Its fields are declared in `fields.POSTGRES`."""

    kind = "postgres"
    idempotent = False
    timeout_kind = "db_timeout"

    def __init__(self) -> None:
        self._pools: dict[tuple[str, PoolSettings], PostgresPool] = {}

    def idempotent_for(self, config: Mapping[str, Any]) -> bool:
        return bool(config.get("once"))

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        statements = read_statements(config, call)
        key = once_key(config, call)
        if key is not None and any(_ENDS_TRANSACTION.match(statement.text) for statement in statements):
            raise BadConfig("'once' needs one transaction; leave BEGIN, COMMIT and ROLLBACK to the tool")
        progress = _Progress()
        try:
            async with self.connection(config, call) as connection:
                if config.get("autocommit"):
                    await connection.set_autocommit(True)
                    return Outcome(result=await _execute(connection, statements, progress))
                if key is not None and (first := await claim_once(connection, key)) is not None:
                    return Outcome(result=first)
                result = await _execute(connection, statements, progress)
                if key is not None:
                    await keep_once(connection, key, result)
                await connection.commit()
                return Outcome(result=result)
        except PoolExhausted as error:
            return Outcome.failed("db_connection", str(error), code="POOL_EXHAUSTED", retryable=True)
        except psycopg.Error as error:
            return error_outcome(error, statement=progress.statement)

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()

    @asynccontextmanager
    async def connection(
        self, config: Mapping[str, Any], call: ToolCall
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection with a task's settings, in a transaction that is rolled back unless committed."""
        pool = await self._pool(config, call)
        if config.get("once"):
            await _ensure_once_table(pool)
        async with pool.connection() as connection:
            await connection.set_autocommit(False)
            yield connection

    async def _pool(self, config: Mapping[str, Any], call: ToolCall) -> PostgresPool:
        conninfo = await _conninfo(config, call)
        settings = _pool_settings(mapping(config, "pool"))
        if (pool := self._pools.get((conninfo, settings))) is None:
            pool = self._pools[conninfo, settings] = PostgresPool(conninfo, settings)
        return pool


class _Progress:
    """Which statement is running, counted from one, for the error message."""

    statement: int | None = None


async def _execute(
    connection: psycopg.AsyncConnection[Any], statements: list[Statement], progress: _Progress
) -> dict[str, Any]:
    done: list[dict[str, Any]] = []
    async with connection.cursor() as cursor:
        for number, statement in enumerate(statements, 1):
            progress.statement = number
            # Text from a task is data: there is no literal to check at compile time.
            await cursor.execute(statement.text.encode(), _adapt(statement.params))
            columns = [column.name for column in cursor.description or ()]
            rows = await cursor.fetchall() if columns else []
            done.append(statement_result(columns, rows, affected=cursor.rowcount))
    return sql_result(done)


async def claim_once(connection: psycopg.AsyncConnection[Any], key: str) -> dict[str, Any] | None:
    """None if the work is ours to do now; else the result of who did it. A transaction with the same
    key that is still open is waited for."""
    taken = await connection.execute(
        "INSERT INTO treadle_once (key) VALUES (%s) ON CONFLICT DO NOTHING RETURNING key", [key]
    )
    if await taken.fetchone() is not None:
        return None
    first = await connection.execute("SELECT result FROM treadle_once WHERE key = %s", [key])
    row = await first.fetchone()
    stored: dict[str, Any] = decode_trusted(bytes(row[0])) if row and row[0] else {}
    return stored


async def keep_once(connection: psycopg.AsyncConnection[Any], key: str, result: dict[str, Any]) -> None:
    """Stores the result beside the key, in the transaction of the work itself."""
    await connection.execute("UPDATE treadle_once SET result = %s WHERE key = %s", [encode(result), key])


async def _ensure_once_table(pool: PostgresPool) -> None:
    """Makes the table at the first use. It may be there already, made by someone with more rights."""
    if "once" in pool.prepared:
        return
    async with pool.connection() as connection:
        await connection.set_autocommit(True)
        found = await connection.execute("SELECT to_regclass('treadle_once')")
        row = await found.fetchone()
        if row is None or row[0] is None:
            try:
                await connection.execute(_ONCE_TABLE)
            except (
                psycopg.errors.UniqueViolation,
                psycopg.errors.DuplicateTable,
                psycopg.errors.DuplicateObject,
            ):
                # Two makers at the same moment: PostgreSQL lets one win and tells the other so.
                await connection.execute(_ONCE_TABLE)
    pool.prepared.add("once")


def once_key(config: Mapping[str, Any], call: ToolCall) -> str | None:
    """The key under which this work is done once, or None if it may be repeated."""
    once = config.get("once")
    if not once:
        return None
    if config.get("autocommit"):
        raise BadConfig("'once' needs one transaction; leave out 'autocommit'")
    key = once if isinstance(once, str) else call.idempotency_key
    if not key:
        raise BadConfig("'once' needs an idempotency key; give it as text: once: my-key")
    return key


def _adapt(params: Params) -> Params:
    """Mappings among the parameters are JSON; lists stay arrays."""
    if isinstance(params, Mapping):
        return {name: Jsonb(value) if isinstance(value, dict) else value for name, value in params.items()}
    if params is None:
        return None
    return [Jsonb(value) if isinstance(value, dict) else value for value in params]


async def _conninfo(config: Mapping[str, Any], call: ToolCall) -> str:
    """The connection: the credential's fields, and over them the task's own."""
    auth = pick(config, "auth", "credential")
    layers: list[Mapping[str, Any]] = [mapping(config, "connection"), config]
    if isinstance(auth, Mapping):
        layers.insert(0, auth)
        auth = pick(auth, "credential", "name")
    if auth is not None:
        found = await credential(call, str(auth))
        layers.insert(0, {"db_conn_string": found} if isinstance(found, str) else found)
    parts: dict[str, str] = {}
    try:
        for layer in layers:
            if (whole := pick(layer, *_WHOLE)) is not None:
                parts = {key: str(value) for key, value in conninfo_to_dict(str(whole)).items()}
            own = {part: pick(layer, *names) for part, names in _PARTS.items()}
            parts.update({part: str(value) for part, value in own.items() if value is not None})
        if not parts and not any(name in os.environ for name in ("PGHOST", "PGSERVICE")):
            raise BadConfig("no connection: give 'auth: NAME', 'db_conn_string', or 'db_host' and its like")
        return make_conninfo("", **{"application_name": "treadle", "connect_timeout": "10", **parts})
    except psycopg.ProgrammingError as error:
        raise BadConfig("the connection is not one that PostgreSQL understands") from error


def _pool_settings(given: dict[str, Any]) -> PoolSettings:
    defaults = PoolSettings()
    try:
        settings = PoolSettings(
            min_size=int(given.get("min_size", defaults.min_size)),
            max_size=int(given.get("max_size", defaults.max_size)),
            timeout=seconds(given.get("timeout", defaults.timeout), "pool.timeout"),
            max_waiting=int(given.get("max_waiting", defaults.max_waiting)),
        )
    except (TypeError, ValueError) as error:
        raise BadConfig(f"the field 'pool' holds something that is not a number: {error}") from error
    if settings.max_size < 1:
        raise BadConfig("pool.max_size must be at least 1")
    return settings
