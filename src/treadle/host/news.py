"""Those who watch runs: handles that wait for an end, followers of events, observers; and what they see in memory.

A watch is only a wake-up: whoever is woken reads the store, so nothing depends on a message being
delivered. Observers get the events themselves, in order, after the commit; what they raise is
logged and swallowed. Where another process owns the store no news come, and it is looked at instead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.model import ENGINE_KINDS, TERMINAL
from treadle.kernel.values import copied, to_value
from treadle.runtime.core import Core
from treadle.runtime.payloads import may_refer, refers
from treadle.runtime.ports import Audience, News
from treadle.store.marks import NOW, MovedRun
from treadle.work.job import is_revoked

if TYPE_CHECKING:
    from treadle.runtime.document import RunOutcome

log = logging.getLogger("treadle.observer")

Observer = Callable[[dict[str, Any]], Any]

# For guests of another process, whose commits send no news here.
POLL_S = 0.1
# How long whoever observes waits for the store, where others decide something.
FIRST_LOOK_S = 1.0
# How often those look who are told everything, and in how many parts.
REMIND_S = 5.0
REMIND_PARTS = 10
# How long the end of an engine waits for an observer.
DRAIN_S = 30
# Ended runs whose last event an observer remembers.
ENDED_KEPT = 10_000


if TYPE_CHECKING:

    class EventSource(Protocol):
        """Where events are read that news did not carry."""

        async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]: ...
        async def runs_beyond(self, event_no: int) -> list[str]: ...
        async def moved_since(self, since: tuple[int, int]) -> tuple[tuple[int, int], list[MovedRun]]: ...

        def moved_now(self, limit_s: float) -> tuple[int, int]:
            """From where to look for what moves after this. Waits for the store, no longer than that."""
            ...

    class Standpoint(Protocol):
        """From where runs are watched."""

        @property
        def core(self) -> Core | None:
            """Where runs are in memory, if any are decided here."""
            ...

        @property
        def is_told(self) -> bool: ...
        @property
        def shares(self) -> bool: ...


class _Mark(NamedTuple):
    """The last event an observer saw of a run, and a record that no later one comes before; whose it is."""

    seq: int
    record: int
    # The run's number: an id may be another run's by now. 0 where only its id is known.
    no: int


# What can be seen of a run in memory, from beside the core: enough to know that there is nothing to look up yet. The core
# goes on meanwhile. Whatever is seen here was so a moment ago.


def is_going_on(core: Core | None, run: str) -> bool:
    hot = core.hot.peek(run) if core is not None and isinstance(run, str) else None
    return hot is not None and hot.state.status not in TERMINAL


def is_ending(core: Core | None, run: str) -> bool:
    """Whether a run has ended in memory and that is being made durable: there will be news of it."""
    hot = core.hot.peek(run) if core is not None else None
    if hot is None or hot.rested or not hot.batch:
        return False
    return hot.state.status in TERMINAL and hot.machine.traits.final


def work_of(core: Core | None, run: str) -> list[str]:
    """The intents of a run that somebody has to work for."""
    hot = core.hot.peek(run) if core is not None else None
    if hot is None or hot.state.status in TERMINAL:
        return []
    intents = list(hot.state.open.values())  # in one go: it changes
    return [intent.id for intent in intents if intent.kind not in ENGINE_KINDS]


def outcome(core: Core | None, run: str) -> RunOutcome | None:
    """How a run ended, if it is in memory and that is durable. It may be retried while we look: then its record is another."""
    hot = core.hot.peek(run) if core is not None else None
    if hot is None or not (seq := hot.rested):
        return None
    state = hot.state
    status, (result, body), error = state.status, copied(state.result), state.error
    if not (hot.rested == seq == state.seq) or status not in TERMINAL or may_refer(body):
        return None
    return {"status": status, "result": result, "error": None if error is None else to_value(error)}


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

    @property
    def is_going_on(self) -> bool:
        """Whether the run is in memory here and has not ended, so that its end will wake this watch."""
        return is_going_on(self._watching.standpoint.core, self.run)

    @property
    def is_ending(self) -> bool:
        """Whether its end is decided here, and not durable yet."""
        return is_ending(self._watching.standpoint.core, self.run)

    @property
    def work(self) -> list[str]:
        """What somebody works on for the run, if it is in memory here: there will be news of it."""
        return work_of(self._watching.standpoint.core, self.run)

    @property
    def is_told(self) -> bool:
        """Whether nothing can happen to a run without a word of it here."""
        return self._watching.standpoint.is_told

    def outcome(self) -> RunOutcome | None:
        """How the run ended, if that is durable and it is still in memory."""
        return outcome(self._watching.standpoint.core, self.run)

    def wake(self, failure: BaseException | None = None) -> None:
        self._failure = failure or self._failure
        self._woken.set()

    async def changed(self, poll_s: float | None = POLL_S) -> None:
        """Returns when something has changed, or may have: after `poll_s`, or with None when all are reminded to look."""
        if poll_s is None:
            self._watching.remind()
            await self._woken.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await self._woken.wait()
        self._woken.clear()
        if self._failure is not None:
            raise self._failure


class Watching:
    def __init__(
        self,
        source: EventSource,
        standpoint: Standpoint,
        check_loop: Callable[[], object],
        *,
        remind_s: float = REMIND_S,
    ) -> None:
        """`check_loop` refuses whoever watches on another event loop than the one it has begun on."""
        self._source = source
        self.standpoint = standpoint
        self._check_loop = check_loop
        self._remind_s = remind_s
        self._begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[str, list[Watch]] = {}
        # Runs of which somebody wants to know more than that they end.
        self._followed: set[str] = set()
        self._observers: list[_Observing] = []
        # Kept true where watches and observers come and go.
        self.audience = Audience(anybody=False)
        # Where others decide something: how far the store was looked at (`NOW`: not yet), and who looks on.
        self._looked = NOW
        self._following: asyncio.Task[None] | None = None
        # When some of those who wait are reminded to look, and who was it last.
        self._reminder: asyncio.TimerHandle | None = None
        self._reminded = 0

    def hears(self, run: str, ended: bool) -> bool:
        """Asked on the core thread, before a commit: whether somebody wants the events of a run, or to be woken by them. An
        end is told in any case, and who only waits for it looks at no events."""
        if self._observers:
            return True
        return not ended and (run in self._followed or "" in self._followed)

    def wants(self, run: str, ended: bool) -> bool:
        """Asked on the core thread, after it: whether anybody would hear news of this run."""
        if self._observers:
            return True
        told = self._watches if ended else self._followed
        return run in told or "" in told

    def watch(self, run: str, *, end: bool = False) -> Watch:
        return Watch(self, run, end=end)

    def add(self, watch: Watch) -> None:
        if self._begun:
            self._check_loop()
        self.audience.anybody = True
        # Lists are replaced, never changed: the core thread looks at them too.
        self._watches[watch.run] = [*self._watches.get(watch.run, ()), watch]
        if not watch.end:
            self._followed.add(watch.run)

    def remove(self, watch: Watch) -> None:
        left = [other for other in self._watches[watch.run] if other is not watch]
        if all(other.end for other in left):
            self._followed.discard(watch.run)
        if left:
            self._watches[watch.run] = left
        else:
            del self._watches[watch.run]
            self.audience.anybody = bool(self._watches or self._observers)
            if self._observers:  # one may have come from another thread just now
                self.audience.anybody = True

    def observe(self, observer: Observer, *, after: int | Mapping[str, int]) -> None:
        observing = _Observing(observer, after, self._source)
        self._observers.append(observing)
        self.audience.anybody = True
        if self._begun:
            assert self._loop is not None, "what has begun has a loop"
            if self._has_to_look and self._looked == NOW:
                # Now, and not when the loop comes to it: what is started after this is told, whoever decides it.
                with suppress(TreadleError, TimeoutError):
                    self._looked = self._source.moved_now(FIRST_LOOK_S)
            self._loop.call_soon_threadsafe(self._join, observing)

    def _join(self, observing: _Observing) -> None:
        observing.catch_up()
        if self._begun and self._following is None and self._has_to_look:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def begin(self) -> None:
        """The store is open: observers that come back are told what they have missed."""
        self._begun, self._loop = True, asyncio.get_running_loop()
        for observing in self._observers:
            observing.catch_up()
        if self._observers and self._has_to_look:
            await self._look()
            self._following = self._loop.create_task(self._follow())

    @property
    def _has_to_look(self) -> bool:
        """Whether others decide something on this store, or may at any time."""
        return self.standpoint.shares or not self.standpoint.is_told

    async def end(self) -> None:
        """Looks a last time, if looking is needed."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            self._following = None
            if not self.standpoint.is_told:
                await self._look()

    async def _follow(self) -> None:
        """While others decide something on this store; and once more after that, for what they did last."""
        was_told = False
        while True:
            is_told = self.standpoint.is_told
            if not (is_told and was_told):
                await self._look()
            was_told = is_told
            await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        try:
            self._looked, found = await self._source.moved_since(self._looked)
        except TreadleError:
            return  # the store does not answer now; it is asked again
        for run in found:
            for observing in self._observers:
                observing.look(run)

    def tell(self, news: list[News]) -> None:
        for observing in self._observers:
            observing.tell(news)
        for watch in self._watches.get("", ()):
            watch.wake()
        for item in news:
            for watch in self._watches.get(item.run, ()):
                if item.ended or not watch.end:
                    watch.wake()

    def awaken(self, _: None = None) -> None:
        """Has everybody look again who waits for something."""
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    def remind(self) -> None:
        """Somebody waits for as long as it takes. Who is told everything looks from time to time all the same: not each by a
        timer of its own, and not all at once, for there may be ten thousand."""
        if self._reminder is None:
            self._reminder = asyncio.get_running_loop().call_later(
                self._remind_s / REMIND_PARTS, self._remind
            )

    def _remind(self) -> None:
        self._reminder, self._reminded = None, (self._reminded + 1) % REMIND_PARTS
        for watches in list(self._watches.values())[self._reminded :: REMIND_PARTS]:
            for watch in watches:
                watch.wake()
        if self._watches:
            self.remind()

    async def drain(self) -> None:
        """Waits until every observer has been told everything so far."""
        for observing in self._observers:
            await observing.drain()

    def close(self, failure: BaseException | None) -> None:
        self._begun, self._looked = False, NOW
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None
        for watches in self._watches.values():
            for watch in watches:
                watch.wake(failure)


class _Observing:
    """One observer: its events in order, even if it is slow or asynchronous. What is missing between
    the last event it saw and the news is read from the store, so that an observer that comes back
    with `after`, or comes late, misses nothing."""

    def __init__(self, observer: Observer, after: int | Mapping[str, int], source: EventSource) -> None:
        self._observer = observer
        self._after = after
        self._source = source
        self._seen: dict[str, _Mark] = {}
        # Something may still come for a run that has ended; then it is not told all over again.
        self._ended: OrderedDict[str, _Mark] = OrderedDict()
        # None: look for what was missed.
        self._queue: asyncio.Queue[News | MovedRun | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def catch_up(self) -> None:
        if self._after != 0:
            self._put(None)

    def tell(self, news: list[News]) -> None:
        self._put(*news)

    def look(self, moved: MovedRun) -> None:
        self._put(moved)

    def _put(self, *items: News | MovedRun | None) -> None:
        for item in items:
            self._queue.put_nowait(item)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def drain(self) -> None:
        if self._task is None:
            return
        _, late = await asyncio.wait([self._task], timeout=DRAIN_S)
        if late:
            log.error("an observer did not return within %d s; it misses what is left", DRAIN_S)
            self._task.cancel()

    async def _work(self) -> None:
        while not self._queue.empty():
            news = self._queue.get_nowait()
            while True:
                try:
                    await self._hear(news)
                    break
                except PASSING:  # the store does not answer now; what was told already is not told again
                    await asyncio.sleep(POLL_S)

    async def _hear(self, news: News | MovedRun | None) -> None:
        if news is None:
            await self._catch_up()
        elif isinstance(news, MovedRun):
            # It happened elsewhere.
            await self._look_up(news.id, news.no, new=news.new)
            if news.status in TERMINAL:
                self._end(news.id)
        else:
            if news.events:
                await self._pass_on(news.run, news.no, news.events)
            elif news.ended:
                # It ended when nobody wanted its events, and this observer has come since.
                await self._look_up(news.run, news.no)
            if news.ended:
                self._end(news.run)

    def _end(self, run: str) -> None:
        if run in self._seen:
            self._ended[run] = self._seen.pop(run)
            if len(self._ended) > ENDED_KEPT:
                self._ended.popitem(last=False)

    async def _catch_up(self) -> None:
        """Told after a crash: what was committed, but not delivered, before it. A mapping speaks of
        all runs: of one that it does not name nothing was delivered."""
        after = 0 if isinstance(self._after, Mapping) else self._after
        for run in await self._source.runs_beyond(after):
            await self._look_up(run, 0)

    def _mark(self, run: str, no: int, *, new: bool) -> _Mark:
        """Where this observer is in a run; `after` does not speak of runs that are new."""
        mark = self._seen.get(run) or self._ended.pop(run, None)
        if mark is not None and mark.no != no and 0 not in (mark.no, no):
            mark, new = None, True
        if mark is None:
            after = self._after if isinstance(self._after, int) else self._after.get(run, 0)
            mark = _Mark(0 if new else after, 1, no)
        self._seen[run] = mark._replace(no=no or mark.no)
        return self._seen[run]

    async def _look_up(self, run: str, no: int, *, new: bool = False) -> None:
        """Passes on what the store has of a run and this observer has not seen."""
        mark = self._mark(run, no, new=new)
        await self._pass_on(run, no, await self._source.events_after(run, mark.seq, mark.record))

    async def _pass_on(self, run: str, no: int, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        mark = self._mark(run, no, new=events[0]["seq"] == 1)
        if events[0]["seq"] > mark.seq + 1 or refers(events):
            last = events[-1]["seq"]
            found = await self._source.events_after(run, mark.seq, mark.record)
            events = [event for event in found if event["seq"] <= last]
        for event in events:
            if event["seq"] > mark.seq:
                mark = self._seen[run] = _Mark(event["seq"], event["record"] or mark.record, mark.no)
                # A copy: what an observer changes is its own.
                await self._call({"run": run, **to_value(event)})

    async def _call(self, event: dict[str, Any]) -> None:
        try:
            answer = self._observer(event)
            if inspect.isawaitable(answer):
                await answer
        except BaseException as error:
            if is_revoked(error):
                raise
            log.exception("an observer failed on %s", event.get("type"))
