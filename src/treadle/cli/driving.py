"""Driving a run: what every command does that sets one going, from the first progress to the last document."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from .command import Session
from .progress import Progress

if TYPE_CHECKING:
    from treadle.client.protocol import RunHandle, TreadleClient


async def drive(
    cli: Session,
    engine: TreadleClient,
    run: RunHandle,
    *,
    until_wait: bool = False,
    stream: bool = False,
    quiet: bool = False,
    after: int = 0,
    wanted: bool = False,
    brief: bool = False,
) -> dict[str, Any]:
    """Follows a run until it has ended or waits for others; gives its document. Progress shows what happens
    after the event `after`. `wanted`: whoever decides it knows already that its work is to be done. `brief`: of
    one that went well, what a list shows is enough."""
    import asyncio

    from .following import follow

    if not wanted:
        await engine.want(run.id)
        cli.on_interrupt = f"The run is safe{cli.goes_on(run.id)}"
    if brief:
        row = await run.at_rest(until_wait=until_wait)
        return row if row["status"] == "completed" else await run.show()
    settled = asyncio.ensure_future(run.settled(until_wait=until_wait))
    try:
        with Progress(cli.out, silent=stream or quiet) as progress:
            if stream or progress.shows:
                await follow(engine, run, progress, stream=stream, out=cli.out, until=settled, after=after)
            return await settled
    finally:
        settled.cancel()


async def moved_since(engine: TreadleClient, id: str, began: datetime) -> bool:
    """Whether a run has come on since a moment of this command."""
    told = [event["at"] async for event in (await engine.run(id)).events(follow=False)]
    return bool(told) and datetime.fromisoformat(told[-1]) >= began


async def last_event(engine: TreadleClient, id: str) -> int:
    """The number of a run's last event so far: what comes after it is new."""
    events = [event["seq"] async for event in (await engine.run(id)).events(follow=False)]
    return events[-1] if events else 0
