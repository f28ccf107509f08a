"""What stands between the core and whoever does its work.

The owner of a store *offers* the work that its commits opened, *revokes* what is no longer wanted, and takes work
back from workers that fall silent. A worker *takes* what it can do, *renews* while it works, reports *progress*, and
*settles* with one receipt; what it cannot finish it *releases*. All of it is data (`data.py`) with a byte form (`messages.py`).

Leases are for progress, not for safety: the first receipt settles an intent, any other is stale. So a bus may lose
everything it holds: open intents are offered again by whoever owns them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt
from treadle.kernel.values import Value
from treadle.runtime.ports import Work
from treadle.store.rows import DefinitionRow

from .data import Handed, Noted, Settled, Settling, Taken, Told


class Offers(Protocol):
    """The owner's side. Any thread may call; nothing blocks."""

    def offer(self, works: Sequence[Work]) -> None:
        """Work that is durable and open. What was offered before is not offered twice."""
        ...

    def revoke(self, intents: Sequence[str]) -> None:
        """These are settled: nobody need work on them."""
        ...

    def expire(self) -> int:
        """Takes work back from workers that did not renew; how much."""
        ...

    def limit_pools(self, caps: Mapping[str, int]) -> None:
        """So much work of each of these pools is in hand at once, from now on; of others as much as comes."""
        ...


class Bus(Protocol):
    """One worker's side."""

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        """At most `limit` pieces of work of these pools; waits up to `wait_s` for the first, or until work in hand
        is revoked."""
        ...

    async def renew(self, leases: Sequence[str]) -> list[str]:
        """Keeps work in hand; the leases that are lost: stop that work."""
        ...

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        """Answers once what it says is durable. One bad receipt refuses itself only."""
        ...

    async def progress(self, told: Sequence[Told]) -> Noted:
        """Answers once it is durable."""
        ...

    async def release(self, leases: Sequence[str], *, reason: str = "") -> None:
        """Gives work back. With a reason this worker cannot do it, and does not get it again."""
        ...


class Resident(Protocol):
    """The worker in the owner's own process: told of its work on the spot, on whatever thread brings that."""

    def lane_of(self, work: Work) -> str:
        """The lane on which it would do this; `OTHERS` if that is nothing for it."""
        ...

    def offered(self, lanes: dict[str, int]) -> None:
        """So much new work waits in its lanes."""
        ...

    def revoked(self, intents: Sequence[str]) -> None: ...


class NearSide(Offers, Protocol):
    """A bus in the owner's own process, as its resident sees it. What the resident has in hand it holds without a lease:
    it lives and dies with this bus. Any thread may call; nothing blocks."""

    def attach(self, resident: Resident | None) -> None:
        """Names the resident, or that there is none any more. What was offered before is forgotten: the owner offers
        everything again."""
        ...

    def take_here(self, lane: str, limit: int) -> list[Work]:
        """The next work of one of its lanes: of each run in turn, a run's own in its order."""
        ...

    def waiting_in(self, lane: str) -> int: ...

    def unsettled_in(self, lane: str) -> int:
        """How much waits in a lane of the resident's, and is in its hands."""
        ...

    def find(self, intent: str) -> Work | None:
        """Work that was offered and is not done."""
        ...

    def held(self) -> list[Work]:
        """What the resident has in hand."""
        ...

    def is_held(self, intent: str) -> bool:
        """Whether anybody has it in hand."""
        ...

    def saved(self, intent: str, checkpoint: Value) -> None:
        """Whoever gets this work next goes on from here."""
        ...

    def done(self, intent: str) -> None:
        """It is settled. Of what is over already nothing is said."""
        ...

    def let_go(self, run: str, intent: str, checkpoint: Value) -> None:
        """Whoever saved this (this very object) was told that it is not theirs to save: they have it no more. If it is still
        open it is handed out again; if it came again meanwhile, that is another one's."""
        ...

    def move(self, intent: str, lane: str) -> None:
        """What the resident has in hand waits in another lane of its own."""
        ...

    def decline(self, intent: str, worker: str, why: str) -> None:
        """This worker, which has it in hand, cannot do it: it waits for the others."""
        ...

    def reconsider(self, chosen: Callable[[Work], bool], *, declined: bool = False) -> None:
        """What the resident left to the others, or has `declined`, may be something for it now."""
        ...


class FarSide(Bus, Protocol):
    """A bus to owners elsewhere; everything may say that they are `Away`."""

    async def register(self, **more: Value) -> None:
        """Says that this worker is there, and what has changed about it."""
        ...

    async def close(self) -> None: ...


class Goods(Protocol):
    """Where a worker gets what its work refers to, and puts what its receipts do."""

    async def blob(self, digest: str) -> bytes: ...

    async def put_blob(self, digest: str, body: bytes) -> None: ...

    async def definition(self, digest: str) -> DefinitionRow: ...

    async def secret(self, work: Handed, name: str) -> str | dict[str, str] | None:
        """A secret for work in hand, from its owner; None if it has none for that."""
        ...

    async def close(self) -> None: ...


class Owner(Protocol):
    """The core behind a bus. Everything is answered once it is durable."""

    async def settle(self, work: Work, receipt: Receipt) -> bool:
        """Whether the receipt settled its intent; False if that was not open any more. Refuses a receipt that it
        cannot use with a TreadleError."""
        ...

    async def progress(self, work: Work, told: Sequence[Told]) -> bool:
        """Whether the intent is still open."""
        ...

    async def dead_letter(self, work: Work, worker: str, error: TreadleError, sent: Value) -> None:
        """Keeps what could not be used, and fails its intent with the reason."""
        ...
