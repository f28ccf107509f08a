"""What a system between machines has to offer so that work can travel over it (`far.py`): a queue of tickets, a way to
ask whoever owns a shard, and a list of those who are there.

A carrier may lose everything at any time. A ticket says only that some work waits: the work itself is with its owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec


class Away(Exception):
    """Nobody answers now: the carrier, or the owner that was asked. The same again is safe."""


class Ticket(msgspec.Struct, frozen=True):
    """Some work waits. The same `id` twice is one ticket."""

    id: str
    intent: str
    shard: int
    pool: str


class Pulled(Protocol):
    """A ticket in a worker's hands."""

    @property
    def ticket(self) -> Ticket: ...

    async def spend(self) -> None:
        """It was shown to the owner: nobody needs it any more."""
        ...

    async def put_back(self, after_s: float) -> None:
        """For others, after a while."""
        ...


Shards = Callable[[], Collection[int]]
Answering = Callable[[int, bytes], Awaitable[bytes]]


class Carrier(Protocol):
    """Everything raises `Away` while the system cannot be reached, and connects again by itself."""

    kind: str

    async def close(self) -> None: ...

    # --- tickets ---

    async def push(self, tickets: Sequence[Ticket]) -> None:
        """A pool that is full takes no more: its tickets are left out, and pushed again later."""
        ...

    async def pull(self, pools: Collection[str], limit: int, wait_s: float) -> Sequence[Pulled]: ...

    async def queued(self, pools: Collection[str]) -> Mapping[str, int]:
        """How many tickets of each pool wait or are on their way to an owner."""
        ...

    # --- questions to the owner of a shard ---

    async def ask(self, shard: int, body: bytes, *, lasting: bool, limit_s: float) -> bytes:
        """The owner's answer. What is `lasting` reaches an owner also if there is none just now, and whoever asks is
        gone by then."""
        ...

    async def answer(self, shards: Shards, answering: Answering) -> None:
        """Answers questions to these shards, until cancelled. What cannot be answered now (`Away`) is left to
        whoever owns the shard next, or to be asked again."""
        ...

    # --- who is there ---

    async def tell(self, worker: str) -> None:
        """Has a worker look at what it has in hand."""
        ...

    async def hear(self, worker: str, told: Callable[[], None]) -> None:
        """From now on this worker is told."""
        ...

    async def sign_in(self, worker: str, row: bytes) -> None:
        """A worker is there. Who does not say so again is forgotten after a while."""
        ...

    async def sign_out(self, worker: str, row: bytes) -> None:
        """A worker that said this last has left, and is forgotten now. One of its name that came since stays."""
        ...

    async def members(self) -> Mapping[str, bytes]: ...
