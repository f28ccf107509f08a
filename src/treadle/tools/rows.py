"""Rows on their way: what a transfer reads, what it writes, and how SQL is spelt for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Protocol

from .base import BadConfig, pick
from .protocol import Outcome

Row = dict[str, Any]
MODES: Final = ("append", "replace", "upsert")


class TransferFailed(Exception):
    """One side of a transfer failed; `outcome` says how, in that side's own kinds."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


class RowSource(Protocol):
    """Gives rows in chunks."""

    def chunks(self, size: int) -> AsyncGenerator[list[Row], None]: ...


class Sink(Protocol):
    """Takes rows inside one transaction. `done_before` opens it, and gives the result of an earlier
    call with the same key, if there was one; without `commit` nothing stays."""

    async def done_before(self) -> Row | None: ...

    async def begin(self, columns: list[str]) -> None: ...

    async def write(self, rows: list[list[Any]]) -> None: ...

    async def commit(self, result: Row) -> Row: ...


def quoted(name: str) -> str:
    """`schema.table` as identifiers that may hold anything."""
    parts = name.split(".")
    if not all(parts):
        raise BadConfig(f"{name!r} is not the name of a table or column")
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def insert_sql(table: str, columns: list[str], mode: str, keys: list[str], marks: list[str]) -> str:
    """The statement that puts one row into a table. Both databases write it the same way."""
    names = ", ".join(quoted(column) for column in columns)
    text = f"INSERT INTO {quoted(table)} ({names}) VALUES ({', '.join(marks)})"
    if mode != "upsert":
        return text
    if not keys:
        raise BadConfig("mode 'upsert' needs 'key': the columns that say which rows are the same")
    if missing := [key for key in keys if key not in columns]:
        raise BadConfig(f"the key columns {', '.join(missing)} are not among the columns that are written")
    others = [column for column in columns if column not in keys]
    changes = ", ".join(f"{quoted(column)} = EXCLUDED.{quoted(column)}" for column in others)
    action = f"DO UPDATE SET {changes}" if others else "DO NOTHING"
    return f"{text} ON CONFLICT ({', '.join(quoted(key) for key in keys)}) {action}"


def key_columns(target: Row) -> list[str]:
    """The columns by which a target tells its rows apart."""
    keys = pick(target, "key", "keys", "primary_key", "conflict")
    return [] if keys is None else [str(key) for key in keys] if isinstance(keys, list) else [str(keys)]


def at_path(value: Any, path: str | None) -> Any:
    """`data.items`, `$.data[0].items` inside a value."""
    if not path:
        return value
    for part in path.removeprefix("$").replace("[", ".").replace("]", "").split("."):
        if not part:
            continue
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise BadConfig(f"data_path {path!r}: there is no {part!r}")
    return value


class Columns:
    """Which column gets what: `mapping` is column to field (a dotted path is allowed); without it each
    field goes to the column of its name."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._fields: dict[str, str] = {str(column): str(field) for column, field in mapping.items()}

    def settle(self, first: Row) -> list[str]:
        """The columns, decided by the first row if no mapping was given."""
        if not self._fields:
            self._fields = {name: name for name in first}
        return list(self._fields)

    def values(self, row: Row) -> list[Any]:
        return [_field(row, field) for field in self._fields.values()]


def _field(row: Row, field: str) -> Any:
    """A field that a row lacks is null: rows of an API often differ in what they hold."""
    if field in row:
        return row[field]
    value: Any = row
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
