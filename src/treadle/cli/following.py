"""Following a run while it is driven: its events and those of the runs it has called, as they happen.

What a run called is what it is doing: whoever watches a run sees its children at work, each under the
name of its workflow. `--stream` gives the run's own events and no others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.model import TERMINAL
from treadle.runs import GATHER_S
from treadle.runtime.document import row_of
from treadle.runtime.opened import open_work

from .spending import Spending

if TYPE_CHECKING:
    from treadle.client.protocol import RunHandle, TreadleClient
    from treadle.engine import Engine
    from treadle.kernel.model import OpenIntent
    from treadle.store.protocol import Reads
    from treadle.store.run_rows import RunRow

    from .output import Output
    from .progress import Progress

LOOK_S: Final = 0.3
# A run that calls hundreds of others is not followed into each of them.
MEMBERS_MAX: Final = 32


@dataclass(slots=True)
class Followed:
    """One of the runs that are followed, and how far."""

    id: str
    # What its events are headed with: nothing for the run itself.
    label: str = ""
    after: int = 0
    record: int = 1
    ended: bool = False
    spending: Spending = field(default_factory=Spending)


class RunFamily:
    """A run and, for people, those that it called, directly or through others, and what they cost."""

    def __init__(self, engine: Engine, run: str, *, for_people: bool, after: int = 0) -> None:
        self._engine = engine
        self._for_people = for_people
        self.members = {run: Followed(run, after=after)}

    @property
    def active(self) -> list[Followed]:
        return [member for member in self.members.values() if not member.ended]

    async def news(self) -> list[tuple[Followed, dict[str, Any]]]:
        """What happened since the last time, in order; what has no `seq` is no event of the run."""
        found = [pair for member in self.active async for pair in self._news_of(member)]
        return sorted(found, key=_order) if self._for_people else found

    async def _news_of(self, member: Followed) -> AsyncIterator[tuple[Followed, dict[str, Any]]]:
        """A parent's before its children's: what it knows of their end, they have said."""
        row = await self._engine.read(lambda reads: row_of(reads, member.id))
        for event in await self._engine.events_after(member.id, member.after, member.record):
            member.after, member.record = event["seq"], event["record"] or member.record
            yield member, event
        member.ended = row.status in TERMINAL
        if not self._for_people:
            return
        if self._engine.dialects[row.dialect].asks_models:
            no = row.no
            for spent in await self._engine.read(lambda reads: member.spending.news(reads, no)):
                yield member, spent

        def born(reads: Reads) -> list[RunRow]:
            return reads.runs(parent=member.id, limit=MEMBERS_MAX)

        for row in reversed(await self._engine.read(born)):
            if row.id not in self.members and len(self.members) < MEMBERS_MAX:
                child = self.members[row.id] = Followed(row.id, f"{member.label}{row.workflow} › ")
                async for pair in self._news_of(child):
                    yield pair


# Around the events of one record: what its answer cost before the node may end, the next turn after it may begin.
_AROUND: Final = {"node:usage": 0, "node:turn": 2}


def _order(news: tuple[Followed, dict[str, Any]]) -> tuple[str, int]:
    return news[1]["at"], 1 if "seq" in news[1] else _AROUND[news[1]["type"]]


async def follow(
    client: TreadleClient,
    run: RunHandle,
    progress: Progress,
    *,
    stream: bool,
    out: Output,
    until: asyncio.Future[Any],
    after: int = 0,
) -> None:
    """Feeds events to the progress (and to `--stream`) until `until` is done and the last one has been shown."""
    from treadle.engine import Engine

    if isinstance(client, Engine):
        await watch(client, run, progress, stream=stream, out=out, until=until, after=after)
    else:
        await listen(run, progress, stream=stream, out=out, until=until, after=after)


async def listen(
    run: RunHandle,
    progress: Progress,
    *,
    stream: bool,
    out: Output,
    until: asyncio.Future[Any],
    after: int,
) -> None:
    """Of a run at a server: its own events as they come. What else is going on there is not looked into."""
    seen = after

    def tell(event: dict[str, Any]) -> None:
        nonlocal seen
        seen = event["seq"]
        if stream:
            out.line(event)
        progress.feed(event, "")

    async def hear() -> None:
        async for event in run.events(after=after, follow=True):
            tell(event)

    hearing = asyncio.ensure_future(hear())
    try:
        await asyncio.wait([hearing, until], return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            hearing.result()  # raises what went wrong
        await until
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing
    async for event in run.events(after=seen, follow=False):
        tell(event)


async def watch(
    engine: Engine,
    run: RunHandle,
    progress: Progress,
    *,
    stream: bool,
    out: Output,
    until: asyncio.Future[Any],
    after: int = 0,
) -> None:
    """Of a run on a store: its events and those of the runs that it called, and what is in workers' hands."""
    family = RunFamily(engine, run.id, for_people=progress.shows, after=after)

    async def tell() -> None:
        for member, event in await family.news():
            if stream and member.id == run.id and "seq" in event:
                out.line(event)
            progress.feed(event, member.label)

    looked = time.monotonic()
    with engine.watch("" if progress.shows else run.id) as changes:
        while not until.done():
            begin = time.monotonic()
            if progress.shows and begin - looked >= LOOK_S:
                looked = begin
                await _look(engine, family, progress, tell)
            else:
                await tell()
            # Looking may take a fifth of the time, not more, however many there are.
            pause = max(GATHER_S, 4 * (time.monotonic() - begin))
            await _either(asyncio.ensure_future(changes.changed()), until)
            await _either(asyncio.ensure_future(asyncio.sleep(pause)), until)
    await tell()


async def _either(step: asyncio.Future[None], until: asyncio.Future[Any]) -> None:
    """Waits for a step of one's own, or for the end, whichever comes first."""
    try:
        await asyncio.wait([step, until], return_when=asyncio.FIRST_COMPLETED)
        if step.done():
            step.result()  # raises what went wrong
    finally:
        step.cancel()


async def _look(
    engine: Engine, family: RunFamily, progress: Progress, tell: Callable[[], Awaitable[None]]
) -> None:
    """What is in a worker's hands writes its events when it is done; until then its intent shows. What was open before
    all was told that had happened, and is open still, is what comes next."""
    before = await _at_work(engine, family)
    await tell()
    still = await _at_work(engine, family)
    for member in family.active:
        known = before.get(member.id, {})
        found = {id: intent for id, intent in still[member.id].items() if id in known}
        progress.in_hand(found, member.label)


async def _at_work(engine: Engine, family: RunFamily) -> dict[str, dict[str, OpenIntent]]:
    """The open intents of each run that is followed."""
    ids = [member.id for member in family.active]
    return await engine.read(lambda reads: {id: open_work(row_of(reads, id), reads) for id in ids})
