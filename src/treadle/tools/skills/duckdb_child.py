"""One query in a process of its own: `python -P -m treadle.tools.skills.duckdb_child`, JSON in and out.

Its working directory is the folder it may read, so that relative names mean what they say there;
everything else of the file system and the net is closed to it, and settings cannot be changed back.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import duckdb


def answer(sql: str, database: str | None, rows_max: int) -> dict[str, Any]:
    connection = duckdb.connect(":memory:")
    if database is not None:
        connection.execute(f"ATTACH {_quoted(database)} AS db (READ_ONLY)")
    connection.execute(f"SET allowed_directories = [{_quoted(os.getcwd() + '/')}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    cursor = connection.execute(sql)
    names = [column[0] for column in cursor.description or ()]
    rows = cursor.fetchmany(rows_max + 1)
    shown = [[_plain(value) for value in row] for row in rows[:rows_max]]
    return {"columns": names, "rows": shown, "truncated": len(rows) > rows_max}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    """Dates, decimals and the like as text; everything JSON has stays as it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def main() -> None:
    asked = json.load(sys.stdin)
    try:
        found: dict[str, Any] = {"ok": answer(asked["sql"], asked["database"], asked["rows_max"])}
    except duckdb.Error as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
