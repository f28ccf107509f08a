"""Whether who did what is told with what was done: each change that somebody asked for by name and its line are one commit.

Whoever asks here does so by name, each time under a number of its own. A record that is about what they asked for is in a
commit with a line that has one of their numbers; a line that says that something was done is about a record that is
there; and who is told that it was done finds its line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.model import Event, Started, event_value
from treadle.runtime.commands import OK, AuditEntry

from .checks import Journals, RunLife, is_about, is_start_of

if TYPE_CHECKING:
    from .disk import Disk

PUBLISHED: Final = "event.publish"
About = Callable[[dict[str, Any]], bool]


class Trail:
    def __init__(self, disk: Disk, journals: Journals) -> None:
        self._disk = disk
        self._journals = journals
        # What was asked for under each number, and which numbers were about something in a run.
        self._about: dict[str, tuple[str, About]] = {}
        self._of_run: dict[str, list[str]] = {}
        # Of each number that has a line: how it says that it ended.
        self._lines: dict[str, str] = {}
        # Who published an event to whom: one that is for several cells has a line for each.
        self._published: set[tuple[str, str]] = set()
        self._last = 0

    def entry(self, who: str, run: str, about: About) -> AuditEntry:
        """With what somebody asks for something in a run."""
        number = str(len(self._about) + 1)
        self._about[number] = (run, about)
        self._of_run.setdefault(run, []).append(number)
        return AuditEntry(who, "ask", run, request=number)

    def entry_of(self, who: str, run: str, event: Event) -> AuditEntry:
        if isinstance(event, Started):
            # Whoever asked for the same run has it, too.
            return self.entry(
                who, run, lambda record: record["kind"] == "started" and is_start_of(record["event"], event)
            )
        value, kind = event_value(event), event.kind
        return self.entry(who, run, lambda record: is_about(record, kind, value))

    def assert_told(self, entry: AuditEntry | None) -> None:
        """Somebody was told that what they asked for is done."""
        assert entry is not None
        assert self._lines.get(entry.request) == OK, (
            f"{entry.target}: told to {entry.user}, and not in the audit"
        )

    def committed(self) -> None:
        """A commit was made, and its records were read."""
        if self._journals.closed:
            return
        query = "SELECT no, request, status, action, target FROM audit WHERE no > ? ORDER BY no"
        rows = self._disk.live.execute(query, (self._last,)).fetchall()
        done: set[str] = set()
        for no, number, status, action, target in rows:
            self._last = no
            if action == PUBLISHED:
                assert (number, target) not in self._published, f"{target}: {number} is in the audit twice"
                self._published.add((number, target))
            if number not in self._about:
                continue
            run, about = self._about[number]
            assert number not in self._lines, f"{run}: {number} is in the audit twice"
            self._lines[number] = status
            if status == OK:
                done.add(number)
                there = any(map(about, self._records(run)))
                assert there, f"{run}: the audit says that {number} was done, and it was not"
        for life, record in self._journals.fresh:
            self._find_line(life, record, done)

    def _find_line(self, life: RunLife, record: dict[str, Any], done: set[str]) -> None:
        asked = [number for number in self._of_run.get(life.id, ()) if self._about[number][1](record)]
        if asked:
            found = next((number for number in asked if number in done), None)
            assert found is not None, f"{life.id}#{record['seq']} was asked for, and is not in the audit"
            done.remove(found)

    def _records(self, run: str) -> list[dict[str, Any]]:
        return [r for life in self._journals.all_lives() if life.id == run for r in life.records]
