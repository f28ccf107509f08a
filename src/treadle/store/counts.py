"""Questions about many runs at once, answered by counting where the rows are."""

from __future__ import annotations

from typing import Any

from .connection import SqlConnection
from .rows import bounded
from .run_rows import RunsBegun


class RunCounts(SqlConnection):
    def run_count(self) -> dict[str, int]:
        return dict(self._all("SELECT status, count(*) FROM runs GROUP BY status"))

    def run_history(
        self, since_ns: int, width_ns: int, *, workflow: str | None = None, prefix: str | None = None
    ) -> list[RunsBegun]:
        begin, width = int(bounded(since_ns)), max(1, int(width_ns))
        narrowed = ""
        values: list[Any] = []
        if workflow is not None:
            narrowed += " AND workflow = ?"
            values.append(workflow)
        if prefix is not None:
            narrowed += " AND substr(workflow, 1, ?) = ?"
            values += [len(prefix), prefix]
        # An average, not a sum: that of many long runs does not fit into a column.
        query = f"""SELECT (started_ns - {begin}) / {width} AS stretch, workflow, status, count(*),
                           avg(ended_ns - started_ns)
                    FROM runs WHERE started_ns >= {begin}{narrowed}
                    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
        return [
            RunsBegun(int(row[0]), row[1], row[2], int(row[3]), None if row[4] is None else float(row[4]))
            for row in self._all(query, *values)
        ]
