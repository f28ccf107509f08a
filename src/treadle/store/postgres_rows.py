"""Statements in PostgreSQL's spelling, and many rows as one of them: each column travels as one array.

Row by row the server parses and plans the same statement for each of them (a name for it would live in a session, which
a pooler may change), and the driver describes each anew. This is done for what every commit writes: records, and the
runs that they are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from .postgres_columns import Column
from .row_reading import RUN_COLUMNS
from .sql import INSERT_PLAIN_RUN, INSERT_RECORD, INSERT_RUN, PLAIN_COLUMNS, UPDATE_RUN

_RUN_TYPES_BUT_TEXT: Final = {
    **dict.fromkeys(("no", "started_ns", "updated_ns", "ended_ns", "retain_ns", "seq"), "bigint"),
    **dict.fromkeys(("cell_key", "error"), "bytea"),
    **dict.fromkeys(("working", "shard"), "integer"),
}
_RUN_TYPES: Final = {
    name: _RUN_TYPES_BUT_TEXT.get(name, "text") for name in [*RUN_COLUMNS.split(", "), "shard"]
}
_PLAIN_TYPES: Final = {name: _RUN_TYPES[name] for name in PLAIN_COLUMNS.split(", ")}
_RECORD_TYPES: Final = {
    **dict.fromkeys(("run", "seq", "event_no"), "bigint"),
    **dict.fromkeys(("opens", "closes", "digest", "body"), "bytea"),
}
_CHANGED: Final = (
    *("definition", "version", "reference", "status", "working", "updated_ns", "ended_ns", "retain_ns"),
    *("seq", "error"),
)


def _arrays(types: Iterable[str]) -> str:
    return ", ".join(f"%b::{type}[]" for type in types)


def _insert(table: str, types: dict[str, str]) -> str:
    return f"INSERT INTO {table} ({', '.join(types)}) SELECT * FROM unnest({_arrays(types.values())})"


def _update_runs() -> str:
    names = [*_CHANGED, "no"]
    given = f"unnest({_arrays(_RUN_TYPES[name] for name in names)}) AS given({', '.join(names)})"
    return f"UPDATE runs SET {', '.join(f'{n} = given.{n}' for n in _CHANGED)} FROM {given} WHERE runs.no = given.no"


# The statement for one row; the one for many, and the types of its columns.
_WHOLE: Final = {
    INSERT_RECORD: (_insert("journal", _RECORD_TYPES), [*_RECORD_TYPES.values()]),
    INSERT_RUN: (_insert("runs", _RUN_TYPES), [*_RUN_TYPES.values()]),
    INSERT_PLAIN_RUN: (_insert("runs", _PLAIN_TYPES), [*_PLAIN_TYPES.values()]),
    UPDATE_RUN: (_update_runs(), [_RUN_TYPES[name] for name in (*_CHANGED, "no")]),
}


@lru_cache(maxsize=1024)
def spelled(query: str) -> str:
    """A shared statement in this driver's spelling."""
    return query.replace("%", "%%").replace("?", "%s")


def in_one(query: str, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Column]] | None:
    """The statement that does it for all rows, with its parameters; None if there is none."""
    whole = _WHOLE.get(query) if len(rows) > 1 else None
    if whole is None:
        return None
    statement, types = whole
    return statement, [Column(type, of) for type, of in zip(types, zip(*rows, strict=True), strict=True)]
