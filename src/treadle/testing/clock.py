"""Time that a test moves by hand, for whole engines.

    clock = VirtualClock()
    async with clock.engine("memory:") as engine:
        run = await engine.start("reminder")
        await clock.advance(3600)

`advance` promises the order of real life: it goes from one due timer to the next, and lets every
engine of this clock come to rest in between, so a timer that is opened by an earlier one fires when
it is due and not when the test looked. Work in the hands of a tool takes real time and is waited
for; work that nothing here can perform is not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .driver import START_NS

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.runtime.commands import View

# How long to wait, at most, before looking again at an engine that sends no news.
_LOOK_AGAIN_S = 0.02
_RUNS_PER_LOOK = 1_000


class VirtualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start_ns: int = START_NS) -> None:
        self._now_ns = start_ns
        self._engines: list[Engine] = []

    def now_ns(self) -> int:
        return self._now_ns

    def engine(self, store: str = "memory:", **options: Any) -> Engine:
        """An engine that goes by this clock."""
        from treadle.engine import Engine

        engine = Engine(store, clock=self, **options)
        self._engines.append(engine)
        return engine

    async def settle(self) -> None:
        """Waits until nothing moves any more without people, signals or time."""
        for engine in self._owners():
            with engine.watch("") as watch:
                while not await engine.look(partial(_at_rest, frozenset(engine.unavailable()))):
                    await watch.changed(_LOOK_AGAIN_S)

    async def advance(self, seconds: float) -> None:
        """Moves on, stopping at each timer and deadline on the way."""
        until_ns = self._now_ns + round(seconds * 1_000_000_000)
        assert until_ns >= self._now_ns, "time goes forward only"
        await self.settle()
        while (due_ns := await self._next_due()) is not None and due_ns <= until_ns:
            self._now_ns = max(self._now_ns, due_ns)
            await self.settle()
        self._now_ns = until_ns
        await self.settle()

    def _owners(self) -> list[Engine]:
        return [engine for engine in self._engines if engine.owns]

    async def _next_due(self) -> int | None:
        found = [await engine.look(lambda view: view.next_due_ns()) for engine in self._owners()]
        return min((due for due in found if due is not None), default=None)


def _at_rest(unavailable: frozenset[str], view: View) -> bool:
    from treadle.runtime import document

    if view.busy():
        return False
    after = 0
    while rows := view.store.working(after_no=after, limit=_RUNS_PER_LOOK):
        after = rows[-1].no
        if any(document.moves(view.store, row, timers=False, unavailable=unavailable) for row in rows):
            return False
    return True
