"""Schedules while all goes on: each tick is one run, whoever dies when.

Somebody adds schedules and pauses them again, through the owner or as a guest. After every commit: a schedule moves on by
one tick, not before its time, and the run of that tick is there, or on its way to who decides it, or waits in its schedule's
line, or finds no room there. When all is quiet, each tick has one run, and there are no others.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.model import TERMINAL
from treadle.lang.duration import instant_text
from treadle.lang.schedules import run_id
from treadle.runtime.commands import Operate
from treadle.runtime.schedules import KIND, QUEUE_MAX, ScheduleRow, is_on_its_way
from treadle.store.rows import GUEST

from .clients import PATIENCE_NS, Guest, Once, is_passing
from .weather import MS
from .workload import Scheduling

if TYPE_CHECKING:
    from .world import SimWorld


class Ticks:
    def __init__(self, world: SimWorld) -> None:
        self._world = world
        workload = world.workload
        self._planned = workload.schedules() if isinstance(workload, Scheduling) else []
        self._guest = Guest(world)
        self._number = 0
        # How much was asked for and not answered yet.
        self.left = 2 * len(self._planned)
        # Schedules as the last commit left them, and the ticks that something became of.
        self._rows: dict[str, ScheduleRow] = {}
        self._past: dict[str, list[int]] = {}

    def begin(self) -> None:
        for planned in self._planned:
            add = {"do": "add", "name": planned.name, "schedule": planned.to_value()}
            pause = {"do": "change", "name": planned.name, "fields": {"paused": True}}
            self._world.after(planned.at_ms * MS, partial(self._ask, add, pause, planned.for_ms, Once()))

    def _ask(self, body: dict[str, Any], then: dict[str, Any] | None, pause_ms: int, once: Once) -> None:
        """Until it is answered."""
        if once.done:
            return
        world = self._world
        world.after(PATIENCE_NS, lambda: self._ask(body, then, pause_ms, once))

        def told(value: Any, error: TreadleError | None) -> None:
            if is_passing(error) or once.done:
                return
            assert error is None, f"{body} is refused: {error}"
            once.done = True
            self.left -= 1
            if then is not None:
                world.after(pause_ms * MS, partial(self._ask, then, None, 0, Once()))

        if world.chance(world.faults.guest):
            self._number += 1
            with suppress(*PASSING):
                self._guest.ask(f"{GUEST}tick:{self._number}", Operate("", "schedule", body), told)
        elif (owner := world.reach()) is not None:
            owner.core.submit(Operate("", "schedule", body, told))

    # --- after every commit ---

    def committed(self) -> None:
        if not self._planned or self._world.journals.closed:
            return
        for name, value in self._world.store.documents(KIND):
            row = ScheduleRow.of(value)
            if (before := self._rows.get(name)) != row:
                self._rows[name] = row
                self._past.setdefault(name, [])
                if before is not None:
                    self._moved(before, row)

    def _moved(self, before: ScheduleRow, row: ScheduleRow) -> None:
        tick, name = before.next_ns, row.name
        if row.next_ns != tick:
            assert tick is not None
            assert row.next_ns == row.schedule.recurrence.after(tick), (
                f"{name}: ticks are left out, or come again"
            )
            assert row.schedule.starts_ns(tick) <= self._world.journals.clock_max_ns, f"{name} ticks early"
        came = {tick} if tick is not None and row.next_ns != tick and not _is_left(row, tick) else set()
        self._past[name] += came
        for due in {*before.waiting} | came:
            run = run_id(name, due)
            assert due in row.waiting or self._is_there(run), f"{name} has moved on, and {run} is not there"
        going = [run for run in self._lives(name) if run[1] not in TERMINAL]
        assert row.schedule.overlap == "allow" or len(going) <= 1, f"{going} are under way at once"

    def _is_there(self, run: str) -> bool:
        lives = self._world.journals.all_lives()
        return any(life.id == run for life in lives) or is_on_its_way(self._world.store, run)

    def _lives(self, name: str) -> list[tuple[str, str]]:
        lives = self._world.journals.all_lives()
        return [(life.id, life.status) for life in lives if life.id.startswith(f"{name}@")]

    # --- at the end ---

    def check(self) -> None:
        for name, row in self._rows.items():
            wanted = Counter(run_id(name, tick) for tick in self._past[name] if tick not in row.waiting)
            assert Counter(id for id, _ in self._lives(name)) == wanted, f"{name}: not one run for each tick"
            ended = {status for _, status in self._lives(name)}
            assert ended <= {"completed"}, f"{name}: runs are {ended}"


def _is_left(row: ScheduleRow, tick: int) -> bool:
    """Whether no run came of a tick because too many wait already: the schedule says so."""
    told = row.last or {}
    full = row.schedule.overlap == "queue" and len(row.waiting) == QUEUE_MAX
    return full and (told["tick"], told["outcome"]) == (instant_text(tick), "skipped")
