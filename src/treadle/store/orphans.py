"""Rows whose run is gone. Each is written and removed with its run, so there should be none; a store that was mended by
hand, or written by a version with a fault, may have some. They cost room, and a place in line would hold others up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from treadle.kernel.values import encode

from .loose import Orphans

SHOWN_MAX: Final = 10_000
# Tables whose rows belong to a run by its number; 0 is nobody, whose payloads are kept for ever.
BY_NUMBER: Final = ("journal", "snapshots", "timers", "tasks", "checkpoints", "frames", "blob_refs")
# By its id: the table, and what its row calls the run.
BY_ID: Final = {"places": "run", "submissions": "substr(scope, 5)"}
_ONLY: Final = {"submissions": "scope LIKE 'run:%' AND "}
# An event that was refused is answered for good, also where there never was a run to take it.
_REFUSAL: Final = encode({"error": None})[:-1]


if TYPE_CHECKING:

    class _Asked(Protocol):
        def __call__(self, query: str, *parameters: Any) -> list[Any]: ...


def orphans(ask: _Asked) -> Orphans:
    """The runs that are gone and still have rows, by table."""
    found: Orphans = {}
    for table in BY_NUMBER:
        # From one run to the next by the index: a journal may have millions of records of few runs.
        query = f"""WITH RECURSIVE owners(run) AS (
                      SELECT min(run) FROM {table} WHERE run > 0
                      UNION ALL SELECT (SELECT min(run) FROM {table} WHERE run > owners.run) FROM owners WHERE run IS NOT NULL)
                    SELECT run FROM owners WHERE run IS NOT NULL AND NOT EXISTS (SELECT 1 FROM runs WHERE no = owners.run)
                    LIMIT ?"""
        found[table] = [row[0] for row in ask(query, SHOWN_MAX)]
    for table, run in BY_ID.items():
        refusals = (_REFUSAL,) if table == "submissions" else ()
        query = f"""SELECT DISTINCT {run} FROM {table} WHERE {_ONLY.get(table, "")}
                    {f"substr(body, 1, {len(_REFUSAL)}) <> ? AND " if refusals else ""}
                    NOT EXISTS (SELECT 1 FROM runs WHERE id = {run}) LIMIT ?"""
        found[table] = [row[0] for row in ask(query, *refusals, SHOWN_MAX)]
    query = "SELECT task FROM task_roles WHERE task NOT IN (SELECT no FROM tasks) LIMIT ?"
    found["task_roles"] = [row[0] for row in ask(query, SHOWN_MAX)]
    return {table: runs for table, runs in found.items() if runs}


def remove_orphans(tx: Any, found: Mapping[str, Sequence[int | str]]) -> None:
    """Where the run is still gone: an id may be another run's by now."""
    for table, runs in found.items():
        owner, (of, key) = BY_ID.get(table, "run"), ("runs", "id" if table in BY_ID else "no")
        if table == "task_roles":
            owner, of, key = "task", "tasks", "no"
        query = f"""DELETE FROM {table} WHERE {_ONLY.get(table, "")}{owner} = ?
                    AND NOT EXISTS (SELECT 1 FROM {of} WHERE {key} = ?)"""
        tx.executemany(query, [(run, run) for run in runs])
