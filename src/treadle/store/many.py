"""What is asked about many runs at once (`run_rows.ManyRuns`), for all SQL engines.

Numbers of runs and records are ours, so they stand in the statements themselves; ids of runs never do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from treadle.kernel.history import Stored

from .connection import SqlConnection
from .row_reading import RUN_COLUMNS, STORED_COLUMNS, is_whole, run_of, stored_of
from .run_rows import ColdRun, RunRow

# A snapshot or a record that is larger is not read together with others.
TOGETHER_BYTES_MAX: Final = 256 * 1024
# One statement is about so many.
_PAGE: Final = 1_000
# One that says for each run from where on.
_TAILS_PAGE: Final = 250

K = TypeVar("K")


def _pages(keys: Iterable[K], size: int = _PAGE) -> Iterator[list[K]]:
    listed = list(keys)
    for first in range(0, len(listed), size):
        yield listed[first : first + size]


class ManyReads(SqlConnection):
    def runs_named(self, ids: Sequence[str]) -> dict[str, RunRow]:
        found: dict[str, RunRow] = {}
        for page in _pages(ids):
            marks = ", ".join("?" * len(page))
            rows = self._all(f"SELECT {RUN_COLUMNS} FROM runs WHERE id IN ({marks})", *page)
            found.update((run.id, run) for run in map(run_of, rows))
        return found

    def load_many(self, ids: Sequence[str]) -> dict[str, ColdRun | None]:
        rows = self.runs_named(ids)
        found: dict[str, ColdRun | None] = {id: None for id in ids if id not in rows}
        if not rows:
            return found
        cuts = self.snapshots_of([row.no for row in rows.values()])
        # From the record at which the snapshot was taken, not after it: it tells the number of the last event.
        tails = self._tails({run: 0 if cut is None else cut[0] for run, cut in cuts.items()})
        frames = self._last_frames(cuts)
        saved = self._checkpoint_ids(cuts)
        for id, row in rows.items():
            if row.no in cuts:
                cut, tail = cuts[row.no], tails.get(row.no, [])
                event_no = max(tail[-1][1] if tail else 0, frames.get(row.no, 0))
                after = 0 if cut is None else cut[0]
                records = [stored for stored, _ in tail if stored.seq > after]
                found[id] = ColdRun(row, cut, records, event_no, frozenset(saved.get(row.no, ())))
        return found

    def snapshots_of(self, runs: Collection[int]) -> dict[int, tuple[int, bytes] | None]:
        found: dict[int, tuple[int, bytes] | None] = dict.fromkeys(runs)
        for page in _pages(runs):
            rows = self._all(
                f"""SELECT s.run, s.seq, s.digest, CASE WHEN length(s.body) <= {TOGETHER_BYTES_MAX} THEN s.body END
                    FROM snapshots s WHERE s.run IN ({_numbers(page)})
                    AND s.seq = (SELECT max(seq) FROM snapshots WHERE run = s.run)"""
            )
            for run, seq, digest, body in rows:
                if body is not None and is_whole(body, digest):
                    found[run] = (seq, body)
                else:
                    del found[run]
        return found

    def open_ids_of(self, after: Mapping[int, int]) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
        return chain.from_iterable(self._journal("seq, opens, closes", after, ">"))

    def records(self, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        columns = _of_journal(STORED_COLUMNS)
        found: dict[tuple[int, int], Stored] = {}
        for page in _pages(wanted):
            places = ", ".join(f"({int(run)}, {int(seq)})" for run, seq in page)
            # A cross join: SQLite then begins with the few places, never with the journal.
            rows = self._all(
                f"""WITH wanted (run, seq) AS (VALUES {places})
                    SELECT {columns} FROM wanted CROSS JOIN journal j WHERE j.run = wanted.run
                    AND j.seq = wanted.seq AND length(j.body) <= {TOGETHER_BYTES_MAX}"""
            )
            found.update(((row[0], row[1]), stored_of(row[1:])) for row in rows)
        return found

    def checkpoints_of(self, runs: Collection[int]) -> dict[int, dict[str, bytes]]:
        found: dict[int, dict[str, bytes]] = {}
        for page in _pages(runs):
            query = f"SELECT run, intent, body FROM checkpoints WHERE run IN ({_numbers(page)})"
            for run, intent, body in self._all(query):
                found.setdefault(run, {})[intent] = body
        return found

    def _tails(self, since: Mapping[int, int]) -> dict[int, list[tuple[Stored, int]]]:
        """The records of each run from one of them on, with the number of the run's last event after each."""
        found: dict[int, list[tuple[Stored, int]]] = {}
        for row in chain.from_iterable(self._journal(f"{STORED_COLUMNS}, event_no", since, ">=")):
            found.setdefault(row[0], []).append((stored_of(row[1:]), row[-1]))
        return found

    def _last_frames(self, runs: Collection[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for page in _pages(runs):
            query = f"SELECT run, max(event_no) FROM frames WHERE run IN ({_numbers(page)}) GROUP BY run"
            found.update(self._all(query))
        return found

    def _checkpoint_ids(self, runs: Collection[int]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for page in _pages(runs):
            query = f"SELECT run, intent FROM checkpoints WHERE run IN ({_numbers(page)})"
            for run, intent in self._all(query):
                found.setdefault(run, []).append(intent)
        return found

    def _journal(self, columns: str, since: Mapping[int, int], compared: str) -> Iterator[list[Any]]:
        """Columns of the records of runs from one of them on, after the number of the run, some at a time: one run after the
        other, in the order of the indexes, so that nothing is sorted. A cross join: SQLite then begins with the runs."""
        for page in _pages(since, _TAILS_PAGE):
            places = " ".join(f"WHEN {int(run)} THEN {int(since[run])}" for run in page)
            yield from self._in_parts(
                f"""SELECT {_of_journal(columns)} FROM runs CROSS JOIN journal j
                    WHERE runs.no IN ({_numbers(page)}) AND j.run = runs.no
                    AND j.seq {compared} CASE runs.no {places} END ORDER BY runs.no, j.seq"""
            )


def _of_journal(columns: str) -> str:
    """Columns of records, after the number of their run."""
    return ", ".join(f"j.{column}" for column in ("run", *columns.split(", ")))


def _numbers(runs: Iterable[int]) -> str:
    return ", ".join(str(int(run)) for run in runs)
