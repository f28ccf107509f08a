"""The journal of all runs in the order in which it became durable, for whoever follows it.

Where a follower is, a mark says. It names the record as well as its place: where the newest records of a file are
deleted their places are given to others, so a place alone may be one that the follower has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.kernel.history import Stored

from .connection import SqlConnection
from .marks import FollowedRecord, Mark
from .packing import unpack

# How many places one look covers at first; doubled while there is nothing.
_WINDOW: Final = 4_096


class FollowReads(SqlConnection):
    def last_mark(self) -> Mark:
        """Whatever becomes durable from now on is after it."""
        if not self._has_places:
            return _after(self._last_place())
        row = self._one(f"SELECT {self._column}, run, seq FROM journal ORDER BY {self._column} DESC LIMIT 1")
        return Mark(0) if row is None else Mark(*row)

    def follow(self, marks: Sequence[Mark], limit: int) -> list[FollowedRecord]:
        """What comes after the first of these marks that still holds, oldest first; the newest mark comes first."""
        column, last = self._column, self._last_place()
        after, window = self._standing(marks, last), _WINDOW
        low = after.place
        while low <= last:
            high = min(low + window, last)
            rows = self._all(
                f"""SELECT {column}, run, seq, body, digest, opens, closes FROM journal
                    WHERE {column} >= ? AND {column} <= ? AND ({column} > ? OR run > ? OR (run = ? AND seq > ?))
                    ORDER BY {column}, run, seq LIMIT ?""",
                *(low, high, after.place, after.run, after.run, after.seq, limit),
            )
            if rows:
                return [
                    FollowedRecord(Mark(place, run, seq), Stored(seq, unpack(body, opens, closes), digest))
                    for place, run, seq, body, digest, opens, closes in rows
                ]
            low, window = high + 1, window * 2
        return []

    @property
    def _column(self) -> str:
        return self._dialect.position.column

    @property
    def _has_places(self) -> bool:
        """Whether each record has a place of its own; else those of one transaction share its number."""
        return self._dialect.position.found == ">"

    def _last_place(self) -> int:
        """The last place at which nothing more will appear."""
        last = int(self._one(self._dialect.position.mark.format(table="journal"))[0])
        return last if self._has_places else last - 1

    def _standing(self, marks: Sequence[Mark], last: int) -> Mark:
        if not self._has_places:
            # Numbers of transactions are given once; only another database begins again.
            return marks[0] if marks[0].place <= last else _after(last)
        query = f"SELECT {self._column} FROM journal WHERE run = ? AND seq = ?"
        for mark in marks:
            found = self._one(query, mark.run, mark.seq) if mark.seq > 0 else None
            # A run that came back from an archive has its records behind all others.
            if found is not None and found[0] <= mark.place:
                return mark._replace(place=found[0])
        return _after(min(marks[-1].place, last))


def _after(place: int) -> Mark:
    return Mark(place, 2**62, 2**62)
