"""Those who watch runs: handles that wait for an end, followers of events, observers.

A watch is only a wake-up: whoever is woken reads the store, so nothing depends on a message being
delivered. Observers get the events themselves, in order, after the commit; what they raise is
logged and swallowed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from treadle.runtime.payloads import refers
from treadle.runtime.ports import News

log = logging.getLogger("treadle.observer")

Observer = Callable[[dict[str, Any]], Any]
EventsAfter = Callable[[str, int], Awaitable[list[dict[str, Any]]]]

# For guests of another process, whose commits send no news here.
POLL_S = 0.1
# Ended runs whose last event an observer remembers.
ENDED_KEPT = 10_000


class Watch:
    """Wakes when a run changes, or only when it ends. A watch on "" wakes when any run changes."""

    def __init__(self, watching: Watching, run: str, *, end: bool) -> None:
        self._watching = watching
        self.run = run
        self.end = end
        self._woken = asyncio.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Watch:
        self._watching.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._watching.remove(self)

    def wake(self, failure: BaseException | None = None) -> None:
        self._failure = failure or self._failure
        self._woken.set()

    async def changed(self, poll_s: float = POLL_S) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_s):
                await self._woken.wait()
        self._woken.clear()
        if self._failure is not None:
            raise self._failure


class Watching:
    def __init__(self, events_after: EventsAfter) -> None:
        self.events_after = events_after
        self._watches: dict[str, list[Watch]] = {}
        self._observers: list[_Observing] = []

    def wants(self, run: str, ended: bool) -> bool:
        """Asked on the core thread: whether anybody would hear news of this run."""
        if self._observers or "" in self._watches:
            return True
        return any(ended or not watch.end for watch in self._watches.get(run, ()))

    def watch(self, run: str, *, end: bool = False) -> Watch:
        return Watch(self, run, end=end)

    def add(self, watch: Watch) -> None:
        # Lists are replaced, never changed: the core thread looks at them too.
        self._watches[watch.run] = [*self._watches.get(watch.run, ()), watch]

    def remove(self, watch: Watch) -> None:
        left = [other for other in self._watches[watch.run] if other is not watch]
        if left:
            self._watches[watch.run] = left
        else:
            del self._watches[watch.run]

    def observe(self, observer: Observer, *, after: int) -> None:
        self._observers.append(_Observing(observer, after, self.events_after))

    def tell(self, news: list[News]) -> None:
        for observing in self._observers:
            observing.tell(news)
        for watch in self._watches.get("", ()):
            watch.wake()
        for item in news:
            for watch in self._watches.get(item.run, ()):
                if item.ended or not watch.end:
                    watch.wake()

    async def drain(self) -> None:
        """Waits until every observer has been told everything so far."""
        for observing in self._observers:
            await observing.drain()

    def close(self, failure: BaseException | None) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake(failure)


class _Observing:
    """One observer: its events in order, even if it is slow or asynchronous. What is missing between
    the last event it saw and the news is read from the store, so that an observer that comes back
    with `after`, or comes late, misses nothing."""

    def __init__(self, observer: Observer, after: int, events_after: EventsAfter) -> None:
        self._observer = observer
        self._after = after
        self._events_after = events_after
        self._seen: dict[str, int] = {}
        # Something may still come for a run that has ended; then it is not told all over again.
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._queue: asyncio.Queue[News] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def tell(self, news: list[News]) -> None:
        for item in news:
            self._queue.put_nowait(item)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def drain(self) -> None:
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        while not self._queue.empty():
            news = self._queue.get_nowait()
            events = news.events
            seen = self._seen.setdefault(news.run, self._ended.pop(news.run, self._after))
            if events and (events[0]["seq"] > seen + 1 or refers(events)):
                events = await self._stored(news.run, min(seen, events[0]["seq"] - 1), events[-1]["seq"])
            for event in events:
                if event["seq"] > self._seen[news.run]:
                    self._seen[news.run] = event["seq"]
                    await self._call({"run": news.run, **event})
            if news.ended:
                self._ended[news.run] = self._seen.pop(news.run)
                if len(self._ended) > ENDED_KEPT:
                    self._ended.popitem(last=False)

    async def _stored(self, run: str, after: int, last: int) -> list[dict[str, Any]]:
        return [event for event in await self._events_after(run, after) if event["seq"] <= last]

    async def _call(self, event: dict[str, Any]) -> None:
        try:
            answer = self._observer(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("an observer failed on %s", event.get("type"))
