"""`duckdb`: SQL over files below one folder (CSV, Parquet, JSON) and over a database, if one is set.

What the model writes runs in memory with access to that folder only, without extensions from the
net; a database is attached read-only.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.work.agent_skill import Skill, ToolContext

from .files import ROOT, root_of

ROWS_MAX: Final = 1_000
SECONDS_MAX: Final = 60.0


def duckdb_skill() -> Skill:
    skill = Skill(
        "duckdb",
        name="DuckDB",
        description="SQL over local files",
        category="data",
        config={
            **ROOT,
            "DUCKDB_DATABASE": {"description": "A database file to read", "env": "TREADLE_DUCKDB_DATABASE"},
        },
    )

    @skill.tool(
        "query",
        description="Run one SQL query, for example SELECT * FROM 'sales.csv'. The database, if any, is `db`.",
        input_schema={
            "type": "object",
            "properties": {"sql": {"type": "string", "minLength": 1}},
            "required": ["sql"],
        },
        idempotent=True,
    )
    async def query(input: dict[str, Any], ctx: ToolContext) -> Any:
        return await _query(input["sql"], str(root_of(ctx)), ctx.config.get("DUCKDB_DATABASE"))

    return skill


async def _query(sql: str, root: str, database: str | None) -> Any:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ToolError("install treadle[duckdb] to use this skill") from error

    connection = duckdb.connect(":memory:")

    def run() -> Any:
        if database is not None:
            connection.execute(f"ATTACH '{database.replace(chr(39), chr(39) * 2)}' AS db (READ_ONLY)")
        quoted = root.replace("'", "''")
        connection.execute(f"SET file_search_path = '{quoted}'")
        connection.execute(f"SET allowed_directories = ['{quoted}/']")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        rows = cursor.fetchmany(ROWS_MAX + 1)
        shown = [[_plain(value) for value in row] for row in rows[:ROWS_MAX]]
        return {"columns": names, "rows": shown, "truncated": len(rows) > ROWS_MAX}

    try:
        async with asyncio.timeout(SECONDS_MAX):
            return await asyncio.to_thread(run)
    except TimeoutError as error:
        connection.interrupt()
        raise ToolError(f"the query took longer than {SECONDS_MAX:g} s") from error
    except duckdb.Error as error:
        raise ToolError(str(error)) from error
    finally:
        connection.close()


def _plain(value: Any) -> Any:
    """Dates, decimals and the like as text; everything JSON has stays as it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
