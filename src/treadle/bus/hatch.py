"""Where workers outside the process come for work: the local bus as they see it, and what they bring back judged.

A receipt is taken only from whoever the intent was handed to, as the lease shows, and is answered after the commit.
One that comes from the right hands and cannot be used (of an unknown shape, too large) becomes a dead letter, and its
intent fails with the reason: done again it would come back the same. In a batch each entry stands for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.kernel.errors import PASSING, InputInvalid, TreadleError
from treadle.kernel.values import Value
from treadle.runtime.commands import LATE
from treadle.runtime.ports import Work

from .data import NOT_HANDED_OUT, Can, Handed, Noted, Refusal, Settled, Settling, Taken, Told
from .local import LocalBus, Standing
from .messages import settling_from_value, settling_value, told_from_value, told_value

if TYPE_CHECKING:
    from .protocol import Owner


# How long an open `take` waits before it looks whose leases have run out.
LOOK_S = 0.5


async def _never() -> bool:
    return False


class Hatch:
    """Called on one event loop."""

    def __init__(
        self,
        bus: LocalBus,
        owner: Owner,
        *,
        on_forged: Callable[[str, str], None] = lambda worker, intent: None,
        on_late: Callable[[str, str, str], None] = lambda worker, intent, run: None,
        traced: Callable[[Work], str | None] = lambda work: None,
    ) -> None:
        self.bus = bus
        self._owner = owner
        self._on_forged = on_forged
        # Told of an end that came after its work was settled; with its run, or "".
        self._on_late = on_late
        # What work continues, for those who trace it.
        self._traced = traced
        self._closed = asyncio.Event()
        # Workers that are about to leave, and take nothing more.
        self._leaving: set[str] = set()

    def close(self) -> None:
        """Answers whoever waits; there will be nothing more here."""
        self._closed.set()

    def dismiss(self, worker: str) -> None:
        """This worker takes nothing more; its open `take` is answered."""
        if worker not in self._leaving:
            self._leaving.add(worker)
            self.bus.awaken()

    def welcome(self, worker: str) -> None:
        self._leaving.discard(worker)

    async def take(
        self,
        worker: str,
        pools: Collection[str],
        limit: int,
        *,
        wait_s: float = 0,
        can: Can = lambda work: True,
        gone: Callable[[], Awaitable[bool]] = _never,
    ) -> Taken:
        """`gone` says whether whoever asked is still there: what is handed to nobody waits for its lease."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
                loop.call_soon_threadsafe(woken.set)

        end = self.bus.listen(wake)
        try:
            while True:
                woken.clear()
                self.bus.expire()
                # Asked first: it takes a while, in which the worker may be told to leave.
                leaving = await gone() or self._closed.is_set() or worker in self._leaving
                items = self.bus.take(worker, pools, 0 if leaving else limit, can)
                found = Taken([self._handed(item) for item in items], self.bus.revoked(worker))
                left = until - loop.time()
                if items or found.revoked or left <= 0 or leaving:
                    return found
                await _first(min(left, LOOK_S), woken, self._closed)
        finally:
            end()

    def claim(self, worker: str, intents: Sequence[str]) -> tuple[list[Handed], list[str]]:
        """Named work, for a worker that has a ticket for it; and what of it this worker has declined."""
        self.bus.expire()
        items, declined = ([], []) if self._closed.is_set() else self.bus.claim(worker, intents)
        return [self._handed(item) for item in items], declined

    def _handed(self, item: Handed) -> Handed:
        if (trace := self._traced(item.work)) is None:
            return item
        return msgspec.structs.replace(item, work=msgspec.structs.replace(item.work, traceparent=trace))

    def renew(self, worker: str, leases: Sequence[str]) -> list[str]:
        self.bus.expire()
        return self.bus.renew(worker, leases)

    def release(self, worker: str, leases: Sequence[str], reason: str = "") -> None:
        self.bus.release(worker, leases, reason)

    async def settle(self, worker: str, sent: Sequence[Value]) -> Settled:
        answer = Settled(settled=[], stale=[], refused=[])
        for value in sent:
            intent, lease = _named(value)
            standing, work = self.bus.standing(worker, intent, lease)
            if work is None:
                self._turn_away(worker, intent, lease, standing, answer)
                continue
            try:
                receipt = settling_from_value(value).receipt
                settled = await self._owner.settle(work, receipt)
            except PASSING:
                raise  # nothing is decided: the same again is safe
            except TreadleError as error:
                await self._owner.dead_letter(work, worker, error, value)
                answer.refused.append(Refusal(intent, error.code))
            else:
                (answer.settled if settled else answer.stale).append(intent)
            self.bus.done(intent)
        return answer

    def _turn_away(self, worker: str, intent: str, lease: str, standing: Standing, answer: Settled) -> None:
        if standing == "lost":
            answer.stale.append(intent)
            return
        answer.refused.append(Refusal(intent, NOT_HANDED_OUT))
        if not self._note_late(worker, intent, lease):
            self._on_forged(worker, intent)

    def _note_late(self, worker: str, intent: str, lease: str) -> bool:
        """An end that comes after its work was settled is no forgery: it was in these hands, and is counted."""
        over, run = self.bus.over(worker, intent, lease)
        if over:
            self._on_late(worker, intent, run)
        return over

    async def progress(self, worker: str, sent: Sequence[Value]) -> Noted:
        answer = Noted(durable=[], lost=[])
        told: dict[str, tuple[Work, list[Told]]] = {}
        for value in sent:
            intent, lease = _named(value)
            try:
                found = told_from_value(value)
            except InputInvalid:
                answer.lost.append(intent)
                continue
            if found.type == LATE:
                # Nobody works on it there any more: that lease is not to be taken up again.
                self._note_late(worker, intent, lease)
                answer.lost.append(intent)
                continue
            _, work = self.bus.standing(worker, intent, lease)
            if work is None:
                answer.lost.append(intent)
            else:
                told.setdefault(intent, (work, []))[1].append(found)
        for intent, (work, all_) in told.items():
            if not await self._owner.progress(work, all_):
                answer.lost.append(intent)
                continue
            for one in all_:
                if one.kind == "checkpoint":
                    self.bus.saved(intent, one.value)
            # Whoever got the work while this became durable goes on from what was saved before.
            _, still = self.bus.standing(worker, intent, all_[-1].lease)
            (answer.lost if still is None else answer.durable).append(intent)
        return answer

    def of(self, worker: str) -> AtHatch:
        return AtHatch(self, worker)


class AtHatch:
    """One worker's side of the bus, in the same process."""

    def __init__(self, hatch: Hatch, worker: str) -> None:
        self._hatch = hatch
        self._worker = worker

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        return await self._hatch.take(self._worker, pools, limit, wait_s=wait_s)

    async def renew(self, leases: Sequence[str]) -> list[str]:
        return self._hatch.renew(self._worker, leases)

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        return await self._hatch.settle(self._worker, [settling_value(receipt) for receipt in receipts])

    async def progress(self, told: Sequence[Told]) -> Noted:
        return await self._hatch.progress(self._worker, [told_value(one) for one in told])

    async def release(self, leases: Sequence[str], *, reason: str = "") -> None:
        self._hatch.release(self._worker, leases, reason)


def _named(value: Any) -> tuple[str, str]:
    """The intent and the lease that an entry names; whatever else it is."""
    if not isinstance(value, dict):
        return "", ""
    intent, lease = value.get("intent"), value.get("lease")
    return (intent, lease) if isinstance(intent, str) and isinstance(lease, str) else ("", "")


async def _first(limit_s: float, *events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
