"""Live answers: server-sent events that can be resumed at any server, and waiting for a run.

A stream is fed from the store, woken by news: what was missed is read again, so nothing is lost by a lost wake-up.
A reader that falls behind is cut off and resumes where it was; a draining server closes without a last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from treadle.engine import Engine
from treadle.kernel.model import TERMINAL
from treadle.lang.json_text import to_json
from treadle.runs import Run
from treadle.store.marks import NOW
from treadle.store.run_rows import RunRow

from .problems import RequestRefused

MEDIA_TYPE: Final = "text/event-stream"
STREAMS_MAX: Final = 2000
_COMMENT_S: Final = 15
_CHANGES_S: Final = 0.25


def wants_stream(request: Request) -> bool:
    return MEDIA_TYPE in request.headers.get("accept", "")


def stream(request: Request, source: AsyncIterator[str]) -> Response:
    """Sends what a source gives, a comment now and then, until it ends or the server drains."""
    state = request.app.state
    if state.streams >= STREAMS_MAX:
        raise RequestRefused("DRAINING", "too many streams are open here; try another server")

    async def frames() -> AsyncIterator[str]:
        state.streams += 1
        following = asyncio.ensure_future(anext(source, None))
        drained = asyncio.ensure_future(state.draining.wait())
        try:
            while True:
                await asyncio.wait(
                    (following, drained), timeout=_COMMENT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if drained.done():
                    return
                if not following.done():
                    yield ": still here\n\n"
                    continue
                frame = following.result()
                if frame is None:
                    return
                yield frame
                following = asyncio.ensure_future(anext(source, None))
        finally:
            state.streams -= 1
            for waiting in (following, drained):
                waiting.cancel()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(frames(), media_type=MEDIA_TYPE, headers=headers)


def frame(event: str, data: object, id: object = None) -> str:
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {event}\ndata: {to_json(data)}\n\n"


async def run_events(run: Run, after: int) -> AsyncIterator[str]:
    """A run's events in order, then `end`."""
    async for event in run.events(after=after):
        yield frame(str(event["type"]), event, event.get("seq"))
    yield frame("end", {"id": run.id, "status": (await run.show())["status"]})


@dataclass(frozen=True, slots=True)
class ChangesWanted:
    """Whose changes somebody wants to hear of."""

    workflow: str | None = None
    prefix: str = ""
    statuses: tuple[str, ...] = ()

    def takes(self, row: RunRow) -> bool:
        return self.workflow in (None, row.workflow) and row.workflow.startswith(self.prefix)


async def run_changes(engine: Engine, wanted: ChangesWanted, last: str | None) -> AsyncIterator[str]:
    """What happened to runs, at most once a run and quarter of a second; the last change is always sent."""
    mark = _mark(last)
    if last is not None and mark is None:
        yield frame("reset", {})
    if mark is None:
        mark = (await engine.read(lambda reads: reads.moved(NOW)))[0]
        # Said at once, so that whoever reconnects before the first change misses nothing.
        yield f"id: {mark[0]}.{mark[1]}\n: from here\n\n"
    with engine.watch("") as watch:
        while True:
            since = mark
            mark, moved = await engine.read(lambda reads, since=since: reads.moved(since))  # type: ignore[misc]  # mypy cannot type a lambda with a default
            for run in moved:
                if wanted.statuses and run.status not in wanted.statuses:
                    continue
                row = await engine.read(lambda reads, id=run.id: reads.run(id))  # type: ignore[misc]  # mypy cannot type a lambda with a default
                if row is not None and wanted.takes(row):
                    change = {
                        "id": row.id,
                        "status": row.status,
                        "workflow": row.workflow,
                        "version_no": row.seq,
                    }
                    yield frame("run", change, f"{mark[0]}.{mark[1]}")
            await asyncio.sleep(_CHANGES_S)
            await watch.changed(poll_s=_CHANGES_S)


def _mark(text: str | None) -> tuple[int, int] | None:
    records, dot, frames = (text or "").partition(".")
    return (int(records), int(frames)) if dot and records.isdecimal() and frames.isdecimal() else None


async def settled(
    run: Run, timeout: float, until: str | None, draining: asyncio.Event
) -> tuple[bool, dict[str, Any]]:
    """The run document once there is nothing to wait for, and whether that is so: when the time is up or the server
    leaves, it is as it stands."""
    ended = _ended(run) if until == "terminal" else run.settled(until_wait=until == "timers")
    waiting = asyncio.ensure_future(ended)
    leaving = asyncio.ensure_future(draining.wait())
    try:
        await asyncio.wait((waiting, leaving), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        done = waiting.done()
        if done:
            waiting.result()
    finally:
        for task in (waiting, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
    return done, await run.show()


async def _ended(run: Run) -> dict[str, Any]:
    async for _ in run.events():
        continue
    document = await run.show()
    assert document["status"] in TERMINAL, "events end with the run"
    return document
