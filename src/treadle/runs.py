"""A handle on one run: look at it, follow it, wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from treadle.kernel.errors import RunFailed, TreadleError
from treadle.kernel.model import TERMINAL
from treadle.kernel.values import Value
from treadle.runtime.ports import Clock
from treadle.work.worker import Worker

from .arguments import whole
from .definitions.library import Library
from .host.news import Watch
from .store.run_rows import RunRow

# How long a waiter trusts that it will be told; guests of another process are never told. Where every commit is ours and says so
# thousands may wait, and must not ask for what they will be told: they are reminded together (`Watching.remind`).
END_POLL_S = 0.5
# A busy run changes thousands of times a second; whoever follows it looks less often than that.
GATHER_S = 0.01


T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


if TYPE_CHECKING:
    from treadle.runtime.document import RunOutcome

    from .store.protocol import Reads

    class RunHome(Protocol):
        """What a handle needs of the engine that its run lives in."""

        library: Library
        worker: Worker
        clock: Clock

        async def read(self, question: Callable[[Reads], T], *, long: bool = False) -> T: ...
        async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]: ...
        async def replay(self, id: str, *, against: Any = None) -> dict[str, Any]: ...
        def watch(self, run: str, *, end: bool = False) -> Watch: ...
        def unavailable(self) -> dict[str, str]: ...


class Run:
    """One run of an engine. `id` is its name; everything else is asked for."""

    def __init__(
        self,
        engine: RunHome,
        id: str,
        *,
        existing: bool = False,
        typed: Callable[[Value], Any] | None = None,
        poll_s: float = END_POLL_S,
    ) -> None:
        self._engine = engine
        self._poll_s = poll_s
        self.id = id
        # Whether `start` found this run instead of making it.
        self.existing = existing
        # What its author's annotations make of the result, if they say something.
        self._typed = typed

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def show(self, *, engine: bool = False, at: int | None = None) -> dict[str, Any]:
        """The run document, as `treadle show --json` prints it."""
        at = whole("at", at)
        from treadle.runtime import document  # for people; no run needs it

        library = self._engine.library
        shown = await self._engine.read(
            lambda reads: document.show(reads, library.registry(reads), self.id, engine=engine, at=at)
        )
        if reasons := self._engine.unavailable():
            for wait in shown["waiting_for"]:
                if wait.get("id") in reasons:
                    wait["reason"] = reasons[wait["id"]]
        return shown

    async def state(self, at: int | None = None) -> Value:
        """The dialect's view of the state, now or at a record."""
        shown = await self.show(at=at)
        if "undecided" in shown:
            raise TreadleError.from_value(shown["undecided"])
        return shown["state"]

    async def journal(self, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """The records of the run, in order: its truth."""
        from treadle.runtime import document  # for people; no run needs it

        after, limit = whole("after", after) or 0, whole("limit", limit)
        found: list[dict[str, Any]] = []

        def page(reads: Reads) -> list[dict[str, Any]]:
            records = document.journal(reads, document.row_of(reads, self.id), after=after + len(found))
            wanted = document.PAGE if limit is None else min(document.PAGE, limit - len(found))
            return [*islice(records, wanted)]

        while more := await self._engine.read(page):
            found += more
        return found

    async def trace(self) -> dict[str, Any]:
        """The way the run took: its steps, and for an agent its edges, sources and usage."""
        from treadle.views.trace import trace_of  # for people; no run needs it

        return trace_of(await self.show(), await self.journal())

    async def diff(self, other: Run) -> dict[str, Any]:
        """In what two runs differ: definition, input, way, results, sources."""
        from treadle.views.comparing import compared  # for people; no run needs it

        return compared(
            (await self.show(), await self.journal()), (await other.show(), await other.journal())
        )

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[dict[str, Any]]:
        """The run's events in order; with `follow`, until it ends."""
        record = 1
        with self._engine.watch(self.id) as watch:
            while True:
                ended = await self._ended() if follow else True
                for event in await self._engine.events_after(self.id, after, record):
                    after, record = event["seq"], event["record"] or record
                    yield event
                if ended:
                    return
                await watch.changed()
                await asyncio.sleep(GATHER_S)

    async def _ended(self) -> bool:
        from treadle.runtime import document

        row = await self._engine.read(lambda reads: document.row_of(reads, self.id))
        return row.status in TERMINAL

    async def _outcome(self) -> RunOutcome | None:
        """How it ended, as the store tells it; those who were told need not ask."""
        from treadle.runtime import document

        return await self._engine.read(lambda reads: document.outcome(reads, self.id))

    async def result(self, timeout: float | None = None) -> Value:
        """Waits for the end and returns the result; raises RunFailed if it did not complete, and TimeoutError
        with what it waits for if that takes too long."""
        try:
            shown: Mapping[str, Any] = await self._end(timeout)
        except TimeoutError as error:
            # Who does not wait looks once, and so does who waited until the very end.
            ended = await self._outcome()
            shown = await self.show() if ended is None else ended
            if shown["status"] not in TERMINAL:
                raise TimeoutError(unfinished(shown, timeout)) from error
        result = result_of({"id": self.id, **shown})
        return result if self._typed is None else self._typed(result)

    async def _end(self, timeout: float | None) -> RunOutcome:
        async with asyncio.timeout(timeout):
            with self._engine.watch(self.id, end=True) as watch:
                while True:
                    while watch.is_going_on:  # then there is nothing to look up yet
                        await watch.changed(None if watch.is_told else self._poll_s)
                    if watch.is_ending:  # the store does not tell of it yet
                        await watch.changed(self._poll_s)
                    shown = watch.outcome() or await self._outcome()
                    if shown is not None:
                        return shown
                    await watch.changed(None if watch.is_told else self._poll_s)

    async def settled(self, *, until_wait: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Waits until the run (with its parents and children) has ended or only people and outside
        signals can move it on; with `until_wait`, also when only timers are left. Gives its document."""
        await self.at_rest(until_wait=until_wait, timeout=timeout)
        return await self.show()

    async def at_rest(self, *, until_wait: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """As `settled`, but gives only what a list of runs shows, which costs less."""
        from treadle.runtime import document

        async with asyncio.timeout(timeout):
            with self._engine.watch("") as watch, self._engine.watch(self.id) as own:
                while True:
                    while (work := own.work) and self._engine.unavailable().keys().isdisjoint(work):
                        await own.changed(poll_s=self._poll_s)  # it moves, whatever else does
                    begin = time.monotonic()
                    row = await self._engine.read(lambda reads: self._unmoved(reads, timers=not until_wait))
                    if row is not None:
                        return document.list_row(row)
                    # Looking may take a fifth of the time, not more, however large the run is.
                    took = time.monotonic() - begin
                    await watch.changed(poll_s=0.05)
                    await asyncio.sleep(min(max(GATHER_S, 4 * took), self._poll_s))

    def _unmoved(self, reads: Reads, *, timers: bool) -> RunRow | None:
        """The run, unless something moves it."""
        from treadle.runtime import document

        row = document.row_of(reads, self.id)
        root = document.root_of(reads, row)
        unavailable = frozenset(self._engine.unavailable())
        now_ns = self._engine.clock.now_ns()
        moving = any(
            document.moves(reads, candidate, timers=timers, unavailable=unavailable, now_ns=now_ns)
            for candidate in ((row,) if root.no == row.no else (row, root))
        )
        return None if moving else row


class TypedRun(Run, Generic[R_co]):
    """A run of a workflow whose author said what it gives."""

    async def result(self, timeout: float | None = None) -> R_co:
        """As of any run, in the type that the workflow's author wrote."""
        given: R_co = await super().result(timeout)
        return given


def result_of(shown: Mapping[str, Any]) -> Value:
    """The result of a run that has ended; raises RunFailed if it did not complete."""
    if shown["status"] in ("completed", "partial"):
        return shown["result"]
    failed = shown["error"] or {}
    raise RunFailed(
        f"{shown['id']} {shown['status']}: {failed.get('message', '')}",
        error=shown["error"],
        result=shown["result"],
        where=failed.get("where"),
        cls=failed.get("class"),
    )


def unfinished(shown: Mapping[str, Any], timeout: float | None) -> str:
    """How a run stands that was not awaited any longer: whom or what it waits for."""
    waits = [
        f"{wait.get('kind')} {wait.get('name')}" + (f" ({', '.join(roles)})" if roles else "")
        for wait in shown.get("waiting_for") or ()
        for roles in [wait.get("roles") or ()]
    ]
    what = f": it waits for {', '.join(waits)}" if waits else ""
    return f"{shown['id']} is {shown['status']} after {timeout:g} s{what}"
