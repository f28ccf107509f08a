"""One engine's core from its start to its end, and what stands between it and the event loop.

Each part has its own state and knows no other than it is given: where the engine is at home, what it decides, who asks, what
the core and the worker see of it (`passage.py`), who reads (`reading.py`), those who watch (`news.py`). Here they are put
together, and begin and end in their order.

Hops between threads are what a fast engine pays for, so they are counted: one hop carries all the
answers of a commit, one all its news. Reads go to a connection of their own where there is one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from treadle.bus.local import LocalBus
from treadle.kernel.errors import EngineStopped, TreadleError
from treadle.kernel.limits import Limits
from treadle.runtime import recovery
from treadle.runtime.core import Core
from treadle.runtime.lines import pool_caps
from treadle.runtime.meter import CoreMeter
from treadle.runtime.ports import Clock, SystemClock
from treadle.runtime.registry import Registry
from treadle.store.open import Place
from treadle.work.worker import Worker

from .aside import aside, beside, threads_given
from .asking import UNDECIDED
from .haste import Haste, Threads
from .helping import Helping
from .news import Watching
from .passage import Asks, CorePort, HomeLoop, NearDoor, Seat
from .reading import StoreReading
from .signing import Signer, Vouching, node_signer
from .thread import CoreThread, Together

if TYPE_CHECKING:
    from treadle.runtime.commands import Elsewhere
    from treadle.runtime.desk import Operations
    from treadle.store.protocol import Reads, Store

    from .pool_sharing import PoolSharing

log = logging.getLogger("treadle")


class Bridge:
    """One engine's way to its core."""

    def __init__(
        self,
        place: Place,
        *,
        clock: Clock,
        hot_runs: int,
        registry_of: Callable[[Reads], Registry],
        core_registry_of: Callable[[Reads], Registry],
        operations: Operations,
        readonly: bool = False,
    ) -> None:
        self.place = place
        self._readonly = readonly
        self._clock, self._hot_runs, self._operations = clock, hot_runs, operations
        self._core_registry_of = core_registry_of
        self.meter, self._threads = CoreMeter(), Threads()
        self._haste = Haste(self.meter, self._threads.others_s)
        self.home, self.seat, self.vouching = HomeLoop(), Seat(), Vouching()
        self.asks = Asks(self.home, self.seat, readonly=readonly)
        self.reading = StoreReading(place, self.home, self.asks, registry_of, onlooker=readonly)
        self.watching = Watching(self.reading, self.seat, self.home.check)
        self.bus = LocalBus(SystemClock(), again=self._offer_again)
        self.door = NearDoor(self.asks, self.seat, self.reading.blob, self.vouching.sign)
        # Of one life: made when the core starts.
        self._worker: Worker | None = None
        self._helping: Helping | None = None
        self.pools: PoolSharing | None = None
        self._started = False

    def help(self, runs: list[str] | None) -> None:
        """On the core thread: somebody wants these runs done, or all."""
        if self._helping is not None:
            self._helping.help(runs)

    # --- it begins ---

    async def start(self, worker: Worker) -> None:
        self.place.check()
        loop = self.home.open()
        self._worker = worker
        self.asks.begin()
        self.reading.begin()
        if not self._readonly:
            try:
                await self._start_core(loop, worker)
            except BaseException:
                await self.stop()
                raise
        await self.watching.begin()

    async def _start_core(self, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
        seat = self.seat
        lock = seat.claim(self.place, alone=None if worker.is_clerk else not worker.others.helps)
        self._helping = None if worker.is_clerk else Helping(seat, worker, self.asks.operate)
        together = self._together()
        port = CorePort(
            self.home, self.bus, self.watching, withhold=None if together is None else seat.withheld
        )
        # A core that begins anew bars what the one before it may still have in flight.
        holder = None if seat.member is None else seat.member.name
        opened: asyncio.Future[BaseException | None] = loop.create_future()
        thread = CoreThread(
            partial(self.place.open, holder=holder, crowded=self._haste.is_crowded),
            partial(self._make_core, port),
            port,
            lock,
            on_open=partial(self.home.hop, partial(_settle, opened)),
            on_stop=self._stopped,
            tend=self._haste.look,
            together=together,
        )
        worker.start(loop)
        self._threads.begin()
        with threads_given():
            thread.start()
        seat.take(thread)
        if (failure := await opened) is not None:
            raise failure
        self._started = True
        if self.place.shared and self._helping is not None:
            self._helping.begin()
        if self.pools is not None:
            self.pools.begin()

    def _together(self) -> Together | None:
        """What it takes to be one of several members, where there may be several."""
        member = self.seat.member
        if member is None:
            return None
        from .pool_sharing import PoolSharing  # one who has a file to itself shares nothing

        self.pools = PoolSharing(
            member.name,
            self.bus,
            is_there=lambda: self.seat.is_there,
            read=self.reading.read,
            operate=self.asks.operate,
        )
        told = self._interrupted, self._moved, self.pools.was_away
        return Together(member, self.bus, self.place.listener, *told)

    def _make_core(self, port: CorePort, store: Store, elsewhere: Elsewhere) -> Core:
        self._threads.join()
        key, is_member = store.work_key(), self.seat.shares
        signer = Signer(key) if is_member else node_signer(self.place.path)
        self.vouching.begin(key, signer)
        self.bus.seal_with(key)
        # Before anything is handed out. Of several members each has to ask first.
        caps = pool_caps(store)
        self.bus.limit_pools(dict.fromkeys(caps, 0) if is_member else caps)
        return Core(
            store,
            self._core_registry_of(store),
            port,
            clock=self._clock,
            entropy=os.urandom,
            operations=self._operations,
            verify=signer.verify,
            limits=Limits(hot_runs=self._hot_runs),
            elsewhere=elsewhere,
            # Where several share a store, who decides a run may lose it at any moment.
            eager=None if is_member else self._worker,
            meter=self.meter,
            beside=beside,
        )

    # --- it ends ---

    async def stop(self) -> None:
        if self.pools is not None:
            await self.pools.end()
        if self._helping is not None:
            await self._helping.end()
        if self._worker is not None:
            await self._worker.stop()
        await self.watching.end()
        await self.reading.make_way()
        if (thread := self.seat.thread) is not None:
            thread.stop()
            await aside(thread.join)
            self.seat.leave()
            # Handed in at the very end, and taken by nobody.
            self.asks.leave_unanswered(EngineStopped(UNDECIDED))
        await self.watching.drain()
        self.watching.close(None)
        self.home.close()
        await self.reading.end()
        self._haste.end()

    def _stopped(self, failure: BaseException | None) -> None:
        """On the core thread, at its end."""
        self.asks.fail(failure)
        if failure is not None:
            if self._started:  # else whoever started it is told, by the exception
                log.error("the engine stopped: %s", failure)
            self.asks.leave_threads_unanswered(failure)
            self.home.hop(self._fail, failure)

    def _fail(self, failure: BaseException) -> None:
        """The core is gone: whoever waits for it is told so."""
        self.watching.close(failure)
        self.asks.leave_unanswered(failure)

    # --- what happens to it meanwhile ---

    def _interrupted(self, error: TreadleError) -> None:
        """The core is gone, and another comes."""
        self.bus.revoke([work.intent.id for work, _ in self.bus.works()])
        self.asks.interrupt(error)

    def _moved(self) -> None:
        """Those who wait for runs look again: news of some come from elsewhere from now on."""
        self.home.hop(self.watching.awaken, None)

    def _offer_again(self, intents: Mapping[str, str]) -> None:
        """The bus has room for what it could not take."""
        core = self.seat.core  # a guest has none, and nothing to offer
        with suppress(EngineStopped):
            for asked in () if core is None else recovery.offers(intents, core.held):
                self.asks.submit(asked)


def _settle(opened: asyncio.Future[BaseException | None], failure: BaseException | None) -> None:
    """Of several cores of one life only the first is waited for; nor is one whose start was given up."""
    if not opened.done():
        opened.set_result(failure)
