"""Schedules, as an engine offers them: add, look, pause, change, trigger, fill in the past."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from treadle.kernel.errors import Unsupported, ValueRefused
from treadle.kernel.values import Value
from treadle.lang.handed import from_caller

from .reach import Reaches

# So many ticks are filled in by one call; a longer range is asked for in parts.
FILL_MAX: Final = 10_000


class ScheduleMethods(Reaches):
    """What an engine can do with schedules."""

    async def schedules(self) -> list[dict[str, Any]]:
        """Every schedule: what it says, its next five ticks, what became of the last."""
        from treadle.runtime import schedules

        return await self._host.reading.read(lambda reads: schedules.listed(reads, self.clock.now_ns()))

    async def schedule(self, name: str) -> dict[str, Any]:
        """One schedule."""
        from treadle.runtime import schedules

        return await self._host.reading.read(
            lambda reads: schedules.shown(reads, schedules.there(reads, name), self.clock.now_ns())
        )

    async def schedule_add(
        self, /, name: str, workflow: str, input: Value = None, **when: Any
    ) -> dict[str, Any]:
        """Starts `workflow` again and again: `cron=` (with `timezone=`), `every=` or `at=`; `jitter`, `catch_up`,
        `overlap`, `paused`. The same again changes nothing; something else under the name is refused."""
        from treadle.lang.schedules import Schedule

        schedule = Schedule.read({**when, "name": name, "workflow": workflow, "input": from_caller(input)})
        return await self._schedule("add", name, schedule=schedule.to_value())

    async def schedule_change(self, /, name: str, **fields: Any) -> dict[str, Any]:
        """Changes what a schedule says; ticks that were due are as they were."""
        return await self._schedule("change", name, fields=from_caller(fields))

    async def schedule_pause(self, name: str) -> dict[str, Any]:
        """No tick starts anything from now on."""
        return await self.schedule_change(name, paused=True)

    async def schedule_resume(self, name: str) -> dict[str, Any]:
        """Ticks start runs again; those of the pause were missed, and `catch_up` says what becomes of them."""
        return await self.schedule_change(name, paused=False)

    async def schedule_remove(self, name: str) -> dict[str, Any]:
        """Removes a schedule; its runs go on."""
        return await self._schedule("remove", name)

    async def schedule_trigger(self, name: str) -> str:
        """Starts a run now, also while paused, whatever goes on; its id."""
        return await self._begun(str((await self._schedule("trigger", name))["run"]))

    async def _begun(self, run: str) -> str:
        """The id of a run, once it is there; one that is decided elsewhere may still be on its way."""
        from treadle.runtime import schedules

        with self._host.watching.watch(run) as watch:
            while await self._host.reading.read(lambda reads: schedules.is_on_its_way(reads, run)):
                await watch.changed()
        return run

    async def schedule_preview(self, value: Mapping[str, Any], count: int = 5) -> list[str]:
        """The next ticks of a schedule that need not be there."""
        from treadle.lang.schedules import Schedule
        from treadle.runtime import schedules

        return schedules.preview(Schedule.read(value), self.clock.now_ns(), count)

    async def schedule_backfill(self, name: str, *, since_ns: int, until_ns: int | None = None) -> list[str]:
        """Starts the runs of past ticks, from one instant to before another (default now); their ids. A tick that has its run keeps
        it, so a call that was cut is simply made again."""
        from treadle.lang.recurrence import instants
        from treadle.runtime import schedules

        now = self.clock.now_ns()
        until_ns = now if until_ns is None else until_ns
        if since_ns >= until_ns or until_ns > now:
            raise ValueRefused("a range to fill in begins before it ends, and ends by now")
        row = await self._host.reading.read(lambda reads: schedules.there(reads, name))
        ticks = [*islice(instants(row.schedule.recurrence, since_ns - 1, until_ns - 1), FILL_MAX + 1)]
        if len(ticks) > FILL_MAX:
            raise Unsupported(f"more than {FILL_MAX} ticks are in this range; fill it in by parts")
        runs = [str((await self._schedule("fill", name, tick_ns=tick))["run"]) for tick in ticks]
        return [await self._begun(run) for run in runs]

    async def _schedule(self, do: str, name: str, **more: Any) -> dict[str, Any]:
        if not isinstance(name, str):
            raise ValueRefused("a schedule's name is text")
        return dict(await self._host.asks.operate("schedule", {"do": do, "name": name, **more}))
