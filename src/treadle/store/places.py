"""Places in line, for workflows that are limited: who has one, who waits, in which order.

A row is written by the commit that starts a run, and removed by the one that ends it: both are the run's own. Only
`held` is another's decision. It is changed in place and never written anew, so that a row that has gone in the
meantime stays gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from treadle.kernel.values import decode_trusted, encode

from .connection import SqlConnection
from .place_rows import Crowd, Line, PlaceRow
from .rows import Batch

_COLUMNS: Final = "run, workflow, lane, held, priority, since_ns, quota"
# What `held` is of a run that has a place and does without it while it waits.
_RESTS: Final = 2
_ORDER: Final = "priority DESC, since_ns, run"
_INSERT: Final = f"INSERT INTO places ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"


def _row(row: Sequence[Any]) -> PlaceRow:
    run, workflow, lane, held, priority, since_ns, quota = row
    return PlaceRow(
        run=run,
        workflow=workflow,
        lane=lane,
        held=bool(held),
        rests=held == _RESTS,
        priority=priority,
        since_ns=since_ns,
        quota=decode_trusted(quota),
    )


class PlaceReads(SqlConnection):
    """The questions about places."""

    def place(self, run: str) -> PlaceRow | None:
        found = self._one(f"SELECT {_COLUMNS} FROM places WHERE run = ?", run)
        return None if found is None else _row(found)

    def places_waiting(self, line: Line, limit: int) -> list[PlaceRow]:
        query = f"SELECT {_COLUMNS} FROM places WHERE workflow = ? AND lane = ? AND held = 0 ORDER BY {_ORDER} LIMIT ?"
        return [_row(row) for row in self._all(query, *line, limit)]

    def places_ahead(self, place: PlaceRow) -> int:
        """How many come before one that waits."""
        query = """SELECT count(*) FROM places WHERE workflow = ? AND lane = ? AND held = 0 AND
                   (priority > ? OR (priority = ? AND (since_ns < ? OR (since_ns = ? AND run < ?))))"""
        since = (place.since_ns, place.since_ns, place.run)
        return int(self._one(query, *place.line, place.priority, place.priority, *since)[0])

    def crowd(self, line: Line) -> Crowd:
        query = "SELECT held, count(*) FROM places WHERE workflow = ? AND lane = ? GROUP BY held"
        found = {int(held): int(count) for held, count in self._all(query, *line)}
        return Crowd(found.get(1, 0), found.get(0, 0))

    def crowds(self) -> dict[Line, Crowd]:
        """Every line that somebody is in."""
        query = """SELECT workflow, lane, sum(CASE held WHEN 1 THEN 1 ELSE 0 END), sum(CASE held WHEN 0 THEN 1 ELSE 0 END)
                   FROM places GROUP BY workflow, lane ORDER BY workflow, lane"""
        return {
            Line(workflow, lane): Crowd(int(held), int(waiting))
            for workflow, lane, held, waiting in self._all(query)
        }

    def lines_waiting(self) -> list[Line]:
        """The lines in which somebody waits."""
        query = "SELECT DISTINCT workflow, lane FROM places WHERE held = 0 ORDER BY workflow, lane"
        return [Line(*row) for row in self._all(query)]

    def last_place_ns(self) -> int:
        return int(self._one("SELECT coalesce(max(since_ns), 0) FROM places")[0])


def write_places(tx: Any, batch: Batch) -> None:
    if batch.places_done:
        tx.executemany("DELETE FROM places WHERE run = ?", [(run,) for run in batch.places_done])
    if batch.places_new:
        rows = [
            (
                p.run,
                p.workflow,
                p.lane,
                _RESTS if p.rests else int(p.held),
                p.priority,
                p.since_ns,
                encode(p.quota),
            )
            for p in batch.places_new.values()
        ]
        tx.executemany(_INSERT, rows)
    if batch.places_held:
        tx.executemany("UPDATE places SET held = 1 WHERE run = ?", [(run,) for run in batch.places_held])
    if batch.places_resting:
        # One that was let in just now by whoever gives places away has it, whatever is said here.
        rows_resting = [(_RESTS if rests else 1, run) for run, rests in batch.places_resting.items()]
        tx.executemany("UPDATE places SET held = ? WHERE run = ? AND held > 0", rows_resting)
