"""How a bus waits: whoever is told to end while it does, ends; and those who wait for the same thing wait together.

Before Python 3.12 `asyncio.wait_for` answers where a cancellation and its answer come at once, and the cancellation is
lost: a loop that ends by being cancelled then goes on for ever. So nothing here uses it, and calls into libraries that
do (nats-py) are made under `heeding_cancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


@contextlib.contextmanager
def heeding_cancel() -> Iterator[None]:
    """Whatever comes of the calls within, this task ends here if it was told to end meanwhile."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


async def at_most(limit_s: float, event: asyncio.Event) -> None:
    """Waits for an event, but not longer than this."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


class SharedCalls(Generic[Q, A]):
    """One call for all that is asked while the call before it is under way: under load a way to a server and back is
    shared, and alone nobody waits for company. `ask` answers in the order in which it is asked."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], *, at_once: int) -> None:
        self._ask = ask
        self._at_once = at_once
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        # The calls do not end with one of those who wait for them.
        self._calling: asyncio.Task[None] | None = None

    async def __call__(self, one: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((one, answer))
        if self._calling is None:
            self._calling = asyncio.ensure_future(self._call())
        return await answer

    async def _call(self) -> None:
        asked: list[tuple[Q, asyncio.Future[A]]] = []
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
                try:
                    answers = await self._ask([one for one, _ in asked])
                except Exception as error:
                    for _, answer in asked:
                        if not answer.done():
                            answer.set_exception(error)
                else:
                    for (_, answer), found in zip(asked, answers, strict=True):
                        if not answer.done():
                            answer.set_result(found)
        finally:
            self._calling = None
            for _, answer in (*asked, *self._waiting):
                answer.cancel()
            self._waiting = []

    async def end(self) -> None:
        """Who waits is cancelled."""
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.wait([self._calling])
