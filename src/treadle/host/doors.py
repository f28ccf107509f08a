"""The two sides of one engine that others are handed. The outside, as its core sees it (`runtime.ports.Port`): answers and
news go to the event loop, each of a commit in one hop; work goes to the bus. And the core, as the worker here sees it
(`work.worker.CoreDoor`)."""

from __future__ import annotations

from collections.abc import Callable

from treadle.bus.local import LocalBus
from treadle.kernel.model import Receipt
from treadle.runtime.commands import Deliver
from treadle.runtime.ports import Answer, News, Work

from .asks import Asks, LoopAck
from .home import HomeLoop
from .news import Watching
from .reading import StoreReading
from .seat import Seat
from .signing import Vouching


class CorePort:
    """What the core calls, on its thread, after a commit."""

    def __init__(
        self,
        home: HomeLoop,
        bus: LocalBus,
        watching: Watching,
        withhold: Callable[[list[Work]], list[Work]] | None,
    ) -> None:
        """`withhold`: as one of several members, what of new work may go out."""
        self._home = home
        self._bus = bus
        self._watching = watching
        self._withhold = withhold
        self.audience, self.wants_news = watching.audience, watching.hears

    def answer(self, answers: list[Answer]) -> None:
        awaited: list[Answer] = []
        for ack, value, error in answers:
            if type(ack) is LoopAck:
                awaited.append((ack, value, error))
            else:
                ack(value, error)
        if awaited:
            self._home.hop(_answer_all, awaited)

    def dispatch(self, works: list[Work]) -> None:
        self._bus.offer(works if self._withhold is None else self._withhold(works))

    def revoke(self, intents: list[str]) -> None:
        self._bus.revoke(intents)

    def publish_news(self, news: list[News]) -> None:
        # Asked again, now that it is durable: whoever began to watch since then would not look again.
        wants = self._watching.wants
        if self.audience.anybody and (heard := [item for item in news if wants(item.run, item.ended)]):
            self._home.hop(self._watching.tell, heard)


def _answer_all(answers: list[Answer]) -> None:
    for ack, value, error in answers:
        ack(value, error)


class NearDoor:
    """What the worker calls, from any thread but the core's."""

    def __init__(self, asks: Asks, reading: StoreReading, seat: Seat, vouching: Vouching) -> None:
        self.submit = asks.submit
        self.fetch_blob = reading.blob
        self._seat = seat
        self._vouching = vouching

    def turn_with(self, item: Deliver) -> bool:
        thread = self._seat.thread
        turning = None if thread is None else thread.turning
        return turning is not None and turning.turn_with(item)

    def sign(self, receipt: Receipt) -> bytes:
        return self._vouching.sign(receipt)

    async def secret(self, intent: str, name: str) -> str | dict[str, str] | None:
        """The worker here has all the secrets that there are."""
        return None
