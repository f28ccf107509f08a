"""Those who watch, as an engine serves them: observers of all events, wake-ups for one run, events after a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .reach import Reaches


class WatchMethods(Reaches):
    """What an engine offers to those who watch."""

    def observe(
        self, observer: Callable[[dict[str, Any]], Any], *, after: int | Mapping[str, int] = 0
    ) -> None:
        """Calls `observer(event)` for every event of every run, after its commit, in order. What it
        raises is logged and swallowed. An observer that comes back says how far it had got, for the
        runs that are there (`after=17`) or for each it knows (`after={"run-id": 17}`), and misses nothing. Where other
        processes decide something too the store is asked from where on to tell of that, for a second at most."""
        self._host.watching.observe(observer, after=after)

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        """A run's events with a higher number than `after`, none of which is in a record before `record`."""
        return await self._host.reading.events_after(run, after, record)
