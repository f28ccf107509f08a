"""One member's part in the limits of pools, where several share a store: it hands out what it has leave for.

Before it gives leave back it stops to hand out more, and it takes up more only when it was told so: at no instant do all
members together have leave for more than the limit (`runtime/pools.py`). Its leave is good for as long as its lease: the
bus asks before it hands out. Whoever was away for longer, or lost shards, keeps what it has in hand, and asks anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from treadle.bus.local import LocalBus
from treadle.kernel.errors import TreadleError
from treadle.runtime import pools
from treadle.runtime.lines import pool_caps

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


log = logging.getLogger("treadle.core")

# How often what operators say is looked up, and leave that is in use is renewed.
LOOK_S: Final = 1.0
# How often somebody asks who wants more.
ASK_S: Final = 0.2
# Nobody asks more often than that, whatever comes and goes.
REST_S: Final = 0.02


# What operators say: the limit of each pool, and the pools of which somebody waits for our word.
Said = tuple[dict[str, int], Collection[str]]


class PoolSharing:
    """On the event loop."""

    def __init__(
        self,
        member: str,
        bus: LocalBus,
        *,
        is_there: Callable[[], bool],
        read: Callable[[Callable[[Reads], Said]], Awaitable[Said]],
        operate: Callable[[str, dict[str, Any]], Awaitable[Any]],
    ) -> None:
        """`is_there`: whether others still go by what they know of this member."""
        self._member = member
        self._bus = bus
        self._read = read
        self._operate = operate
        self._caps: dict[str, int] = {}
        # By pool: what we have leave for, and what is our due.
        self._leaves: dict[str, tuple[int, int]] = {}
        self._asked: dict[str, tuple[int, int, bool]] = {}
        # How often what we had leave for came to nothing: what was asked before is not answered to us any more.
        self._voided = 0
        # Between that, on the core's thread, and taking leave up, on the event loop.
        self._lock = threading.Lock()
        self._looked_s = self._heard_s = -LOOK_S
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] = lambda: None
        bus.caps.only_while(is_there)

    def begin(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closing
                loop.call_soon_threadsafe(self._woken.set)

        self._end_listening = self._bus.listen(wake)
        self._task = loop.create_task(self._run())

    async def end(self) -> None:
        self._end_listening()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def was_away(self) -> None:
        """On the core's thread: others may have been given what we had leave for."""
        with self._lock:
            self._void()
            self._leaves = {}
            for pool in self._caps:
                self._bus.limit_pool(pool, 0)
        self._bus.awaken()

    def _void(self) -> None:
        self._voided += 1
        self._asked = {}

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._turn()
            except TreadleError as error:
                # A store that is away, a member that is about to go: it is asked again.
                log.debug("pools cannot be shared: %s", error.message)
                await asyncio.sleep(ASK_S)
            except Exception:  # work of limited pools waits for it: it goes on, whatever happened
                log.exception("pools cannot be shared")
                await asyncio.sleep(LOOK_S)
            wants_more = any(wants > keeps for keeps, wants, _ in self._asked.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S if wants_more else LOOK_S):
                    await self._woken.wait()
            await asyncio.sleep(REST_S)

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._looked_s >= LOOK_S:
            await self.look()
            self._looked_s = now
        with self._lock:
            voided = self._voided
            offers = {pool: self._offer(pool) for pool in self._caps}
            ago_s = now - self._heard_s
            asks = {pool: list(ask) for pool, ask in offers.items() if self._is_news(pool, ask, ago_s)}
        if not asks:
            return
        answer = await self._operate(pools.SHARE, {"member": self._member, "asks": asks})
        with self._lock:
            if voided != self._voided:
                return
            self._heard_s = now
            self._asked = offers
            for pool, (held, due) in answer.items():
                self._leaves[pool] = held, due
                self._bus.limit_pool(pool, min(held, due))

    def _is_news(self, pool: str, ask: tuple[int, int, bool], ago_s: float) -> bool:
        """Whether there is something to be said: something else than before, that we want more, or, now and then, what
        we have."""
        keeps, wants, _ = ask
        said = self._asked.get(pool)
        return said is None or said[:2] != (keeps, wants) or wants > keeps or (keeps > 0 and ago_s >= LOOK_S)

    async def look(self) -> None:
        """Goes by what operators say, from now on."""
        caps, awaited = await self._read(
            lambda reads: (pool_caps(reads), pools.awaiting(reads, self._member))
        )
        with self._lock:
            # A limit that was taken away and made anew between two looks is none that we have spoken of.
            self._asked = {pool: ask for pool, ask in self._asked.items() if pool not in awaited}
        if caps == self._caps:
            return
        with self._lock:
            self._void()
            self._leaves = {pool: leave for pool, leave in self._leaves.items() if pool in caps}
            self._bus.limit_pools({pool: min(self._leaves.get(pool, (0, 0))) for pool in caps})
            self._caps = caps
        self._woken.set()

    def _offer(self, pool: str) -> tuple[int, int, bool]:
        """What we keep of a pool, from now on, what we could do, and whether workers elsewhere have some of it."""
        cap, (held, due) = self._caps[pool], self._leaves.get(pool, (0, 0))
        busy, waiting = self._bus.in_pool(pool)
        most = min(held, due, busy + waiting)
        busy, waiting = self._bus.limit_pool(pool, most)
        self._leaves[pool] = max(busy, most), due
        return max(busy, most), min(cap, busy + waiting), self._bus.is_elsewhere(pool)
