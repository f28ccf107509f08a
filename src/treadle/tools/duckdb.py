"""`duckdb`: statements on a file or in memory, in a thread, interruptible.

Each call opens the database and closes it again, so that a file is free for others in between; a
`:memory:` database lives for one call. Statements run in one transaction unless `autocommit: true`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import duckdb

from .base import BadConfig, ToolBase, credential, local_path, need, pick
from .protocol import Outcome, ToolCall
from .sql import Params, Statement, read_statements, sql_result, statement_result

T = TypeVar("T")
INTERRUPT_AGAIN_S: Final = 0.05

_KINDS: Final[tuple[tuple[str, str, bool], ...]] = (
    ("ConstraintException", "db_constraint", False),
    ("ParserException", "parse", False),
    ("SyntaxException", "parse", False),
    ("CatalogException", "schema", False),
    ("BinderException", "schema", False),
    ("ConversionException", "transform", False),
    ("OutOfRangeException", "transform", False),
    ("TypeMismatchException", "transform", False),
    ("InvalidInputException", "schema", False),
    ("TransactionException", "db_deadlock", True),
    ("OutOfMemoryException", "storage_quota", False),
    ("PermissionException", "storage_access", False),
    ("ConnectionException", "db_connection", True),
    ("HTTPException", "connection", True),
    ("IOException", "storage_access", False),
)
# Statements whose only answer is how many rows they changed.
_CHANGES: Final = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE_INTO", "COPY", "CREATE", "ALTER", "DROP"])


class DuckDbTool(ToolBase):
    """Its fields are declared in `fields.DUCKDB`."""

    kind = "duckdb"
    idempotent = False
    timeout_kind = "db_timeout"

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        statements = _statements(config, call)
        autocommit = bool(config.get("autocommit"))
        try:
            async with await open_duckdb(config, call) as session:
                return Outcome(result=await session.call(_execute, statements, autocommit))
        except duckdb.Error as error:
            return error_outcome(error)

    async def close(self) -> None:
        """Every call closes what it opened."""


class DuckDbSession:
    """One open database in a thread of its own, because DuckDB blocks. A cancelled call interrupts
    what the thread is doing, and waits until it has let go of the database."""

    def __init__(self, path: str, *, read_only: bool, attachments: list[str]) -> None:
        self._path = path
        self._read_only = read_only
        self._attachments = attachments
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="treadle-duckdb")
        self._connection: duckdb.DuckDBPyConnection | None = None

    async def __aenter__(self) -> DuckDbSession:
        try:
            await self._in_thread(self._open)
            for attachment in self._attachments:
                await self.call(lambda connection, text: connection.execute(text), attachment)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.shield(self._in_thread(self._close))
        self._thread.shutdown(wait=False)

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """`work(connection, *arguments)` in the database's thread."""
        return await self._in_thread(lambda: work(self._connection, *arguments))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                # A query that is just about to begin does not notice: it is told again.
                if self._connection is not None:
                    self._connection.interrupt()
                await asyncio.wait([future], timeout=INTERRUPT_AGAIN_S)
            raise

    def _open(self) -> None:
        self._connection = duckdb.connect(self._path, read_only=self._read_only)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def open_duckdb(config: dict[str, Any], call: ToolCall) -> DuckDbSession:
    """The database that a task or one side of a transfer names; enter it with `async with`."""
    return DuckDbSession(
        _database(config, call),
        read_only=bool(config.get("read_only")),
        attachments=await _attachments(config, call),
    )


def _execute(
    connection: duckdb.DuckDBPyConnection, statements: list[Statement], autocommit: bool
) -> dict[str, Any]:
    if not autocommit:
        connection.begin()
    done: list[dict[str, Any]] = []
    for statement in statements:
        for part in connection.extract_statements(statement.text):
            cursor = connection.execute(part, _wanted(statement.params, part.named_parameters))
            columns = [str(column[0]) for column in cursor.description or ()]
            rows = cursor.fetchall() if columns else []
            if part.type.name in _CHANGES and columns == ["Count"]:
                done.append(statement_result([], [], affected=int(rows[0][0]) if rows else 0))
            else:
                done.append(statement_result(columns, rows, affected=0))
    if not autocommit:
        connection.commit()
    return sql_result(done)


def _wanted(params: Params, names: Any) -> Any:
    """The parameters a statement asks for; DuckDB refuses to be given more."""
    if not names:
        return None
    if isinstance(params, dict):
        return {name: value for name, value in params.items() if name in names}
    return params


def error_outcome(error: duckdb.Error) -> Outcome:
    text = str(error)
    if isinstance(error, duckdb.IOException) and "lock" in text:
        return Outcome.failed("db_connection", text, code="DUCKDB_LOCKED", retryable=True)
    names = {base.__name__ for base in type(error).__mro__}
    kind, retryable = next(((k, r) for name, k, r in _KINDS if name in names), ("unknown", False))
    return Outcome.failed(kind, text, code=f"DUCKDB_{type(error).__name__}", retryable=retryable)


def _database(config: dict[str, Any], call: ToolCall) -> str:
    database = str(pick(config, "database", "db", "db_path") or ":memory:")
    if database.startswith(":memory:"):
        return ":memory:"
    return str(local_path(database, call))


def _statements(config: dict[str, Any], call: ToolCall) -> list[Statement]:
    statements = read_statements(config, call)
    if any(isinstance(s.params, list | tuple) for s in statements) and len(statements) > 1:
        raise BadConfig("a list of params fits one statement only; name them, or use {sql, params} items")
    return statements


async def _attachments(config: dict[str, Any], call: ToolCall) -> list[str]:
    """`attachments: [{path | auth, alias, type, read_only}]` as ATTACH statements."""
    given = config.get("attachments") or []
    if isinstance(given, dict):
        given = [{"alias": alias, **entry} for alias, entry in given.items()]
    found = []
    for entry in given:
        alias = str(need(entry, "alias", "name", "as")).replace('"', '""')
        kind = str(entry.get("type") or "").upper()
        target = await _target(entry, kind, call)
        options = [f"TYPE {kind}"] if kind.isalnum() and kind != "DUCKDB" else []
        options += ["READ_ONLY"] if entry.get("read_only") else []
        suffix = f" ({', '.join(options)})" if options else ""
        quoted = target.replace("'", "''")
        found.append(f"ATTACH '{quoted}' AS \"{alias}\"{suffix}")
    return found


async def _target(entry: dict[str, Any], kind: str, call: ToolCall) -> str:
    if (auth := pick(entry, "auth", "credential")) is not None:
        fields = await credential(call, str(auth))
        if isinstance(fields, str):
            return fields
        names = {
            "db_host": "host",
            "db_port": "port",
            "db_user": "user",
            "db_password": "password",
            "db_name": "dbname",
        }
        return " ".join(f"{names.get(key, key)}={value}" for key, value in fields.items())
    location = str(need(entry, "path", "database", "uri"))
    return location if kind not in ("", "DUCKDB", "SQLITE") else str(local_path(location, call))
