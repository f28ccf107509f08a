"""One query in a process of its own: `python -P -m treadle.performers.agent.skills.duckdb_child`, JSON in and out.

Its working directory is the folder it may read, so that relative names mean what they say there;
everything else of the file system and the net is closed to it, and settings cannot be changed back.
It reads and does not write: one query, no COPY, nothing spilled to disk, and memory and answer are
bounded. What `hidden` names, and links that lead out, are not there for it: a folder with one of them
is opened file by file. For patterns such as `*.csv`, which need a whole folder, it gets one of links.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from typing import Any, Final

import duckdb

from treadle.kernel.limits import INT_MAX, INT_MIN

from .hidden import OwnFiles, is_hidden

MEMORY: Final = "1GB"
# Folders with more files than this are not put together out of links; patterns do not work there.
LINKS_MAX: Final = 5_000
_QUERY: Final = duckdb.StatementType.SELECT
# PIVOT comes as several statements, EXPLAIN as one with another inside: neither may hold one of these.
_WRAPPED: Final = (duckdb.StatementType.MULTI, duckdb.StatementType.EXPLAIN)
_WRITES: Final = re.compile(r"\b(copy|create|export|insert|update|delete|attach|install|load|set)\b", re.I)


class QueryRefused(Exception):
    """What was asked is not a query."""


def answer(
    sql: str,
    database: str | None,
    rows_max: int,
    chars_max: int,
    *,
    own: OwnFiles | None = None,
    view: str | None = None,
) -> dict[str, Any]:
    connection = duckdb.connect(":memory:")
    if database is not None:
        connection.execute(f"ATTACH {_quoted(database)} AS db (READ_ONLY)")
    connection.execute(f"SET memory_limit = '{MEMORY}'")
    connection.execute("SET temp_directory = ''")
    folders, files = readable(os.getcwd(), own or OwnFiles())
    if view is not None and files and _linked(os.getcwd(), view, own or OwnFiles()):
        folders.append(view + "/")
        os.chdir(view)
    for setting, places in (("allowed_directories", folders), ("allowed_paths", files)):
        connection.execute(f"SET {setting} = [{', '.join(map(_quoted, places))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    _check(sql)
    cursor = connection.execute(sql)
    names = [column[0] for column in cursor.description or ()]
    rows: list[list[Any]] = []
    chars = 0
    while len(rows) < rows_max and (row := cursor.fetchone()) is not None:
        shown = [_plain(value) for value in row]
        chars += len(json.dumps(shown))
        if chars > chars_max:
            return {"columns": names, "rows": rows, "truncated": True}
        rows.append(shown)
    return {"columns": names, "rows": rows, "truncated": cursor.fetchone() is not None}


def readable(root: str, own: OwnFiles) -> tuple[list[str], list[str]]:
    """What may be read: folders that are open as a whole, and single files of all others."""
    mixed: set[str] = set()
    for place, folders, names in os.walk(root):
        closed = {name for name in (*folders, *names) if _is_closed(root, os.path.join(place, name), own)}
        folders[:] = [name for name in folders if name not in closed]
        while closed and place not in mixed:
            mixed.add(place)
            place = os.path.dirname(place) if place != root else place
    if not mixed:
        return [root + "/"], []
    whole, single = [], []
    for entry in (entry for place in sorted(mixed) for entry in os.scandir(place)):
        if _is_closed(root, entry.path, own) or entry.path in mixed:
            continue
        if entry.is_dir():
            whole.append(entry.path + "/")
        else:
            single.append(entry.path)
    return whole, single


def _linked(root: str, view: str, own: OwnFiles) -> bool:
    """Fills a folder with links to all that may be read; whether there were few enough."""
    count = 0
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_closed(root, os.path.join(place, name), own)]
        here = os.path.join(view, os.path.relpath(place, root))
        os.makedirs(here, exist_ok=True)
        for name in names:
            path = os.path.join(place, name)
            if not _is_closed(root, path, own):
                os.symlink(path, os.path.join(here, name))
                count += 1
        if count > LINKS_MAX:
            return False
    return True


def _is_closed(root: str, path: str, own: OwnFiles) -> bool:
    """What is not for models; nor what is no file and no folder (a pipe would hold the query up, a link to nowhere is an
    error), or has a name that is no text."""
    if is_hidden(path, root, own) or not _can_be_read(path):
        return True
    if not os.path.islink(path):
        return False
    real = os.path.realpath(path)
    return not real.startswith(root + "/") or is_hidden(real, root, own)


def _can_be_read(path: str) -> bool:
    return _is_text(path) and (os.path.isfile(path) or os.path.isdir(path))


def _is_text(given: str) -> bool:
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(sql: str) -> None:
    if not _is_text(sql):
        raise QueryRefused("the query holds half a character")
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise QueryRefused("give one query; a WITH clause can hold what it builds on")
    kind = statements[0].type
    if kind != _QUERY and not (kind in _WRAPPED and _WRITES.search(sql) is None):
        raise QueryRefused(
            "only queries are allowed here: SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE, PIVOT"
        )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    """Dates, decimals and the like as text, and numbers that no value holds; everything JSON has stays as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def main() -> None:
    asked = json.load(sys.stdin)
    kept = asked.pop("own")
    try:
        own = OwnFiles(kept["store"], tuple(kept["files"]))
        found: dict[str, Any] = {"ok": answer(**asked, own=own)}
    except duckdb.PermissionException as error:
        hint = "files that hold keys and files outside of the folder are not for models"
        found = {"error": f"{error}; {hint}"}
    except (duckdb.Error, QueryRefused) as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
