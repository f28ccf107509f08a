"""`duckdb`: statements on a file or in memory, in a thread, interruptible.

Each call opens the database and closes it again, so that a file is free for others in between; a
`:memory:` database lives for one call. Statements run in one transaction unless `autocommit: true`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import duckdb

from treadle.work.tool import Outcome, ToolCall

from .base import BadConfig, ToolBase, credential, local_path, need, pick
from .sql import Params, Statement, read_statements, sql_result

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
    """Fields: database, command | commands | query | queries (also *_b64) | script, params,
    attachments, read_only, autocommit, timeout."""

    kind = "duckdb"
    idempotent = False
    timeout_kind = "db_timeout"

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        session = DuckDbSession(
            database_path(config, call),
            read_only=bool(config.get("read_only")),
            attachments=await _attachments(config, call),
        )
        texts = _statements(config, call)
        return await session.run(
            lambda connection: _execute(connection, texts, bool(config.get("autocommit")))
        )

    async def close(self) -> None:
        """Every call closes what it opened."""


class DuckDbSession:
    """One opened database, used by one function in a thread. A cancelled `run` interrupts it."""

    def __init__(self, path: str, *, read_only: bool = False, attachments: list[str] | None = None) -> None:
        self._path = path
        self._read_only = read_only
        self._attachments = attachments or []
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._unwanted = False

    async def run(self, work: Any) -> Outcome:
        """`work(connection)` in a thread; its Outcome, or the error's."""
        task = asyncio.create_task(asyncio.to_thread(self._work, work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._interrupt()
            # The thread must be out of the database before anyone else may use it.
            await asyncio.wait([task])
            raise

    def _work(self, work: Any) -> Outcome:
        try:
            connection = duckdb.connect(self._path, read_only=self._read_only)
            with self._lock:
                self._connection = connection
            try:
                if self._unwanted:
                    return Outcome.failed("cancelled", "the task was cancelled")
                for attachment in self._attachments:
                    connection.execute(attachment)
                outcome: Outcome = work(connection)
                return outcome
            finally:
                with self._lock:
                    self._connection = None
                connection.close()
        except duckdb.Error as error:
            return error_outcome(error)

    def _interrupt(self) -> None:
        with self._lock:
            self._unwanted = True
            if self._connection is not None:
                self._connection.interrupt()


def _execute(connection: duckdb.DuckDBPyConnection, statements: list[Statement], autocommit: bool) -> Outcome:
    if not autocommit:
        connection.begin()
    result: dict[str, Any] = {}
    count = 0
    for statement in statements:
        for part in connection.extract_statements(statement.text):
            cursor = connection.execute(part, _wanted(statement.params, part.named_parameters))
            count += 1
            columns = [str(column[0]) for column in cursor.description or ()]
            rows = cursor.fetchall() if columns else []
            if part.type.name in _CHANGES and columns == ["Count"]:
                result = sql_result([], [], affected=int(rows[0][0]) if rows else 0, statements=count)
            else:
                result = sql_result(columns, rows, affected=0, statements=count)
    if not autocommit:
        connection.commit()
    return Outcome(result=result)


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


def database_path(config: dict[str, Any], call: ToolCall) -> str:
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
