"""How calls from an event loop reach the core on its thread, and how its answers come back.

Hops between threads are what a fast engine pays for, so they are counted: one hop carries all the
answers of a commit, one all its news. Reads go to a connection of their own where there is one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.bus.local import LocalBus
from treadle.kernel.errors import EngineStopped, TreadleError, Unsupported
from treadle.kernel.limits import Limits
from treadle.kernel.model import Receipt
from treadle.runtime import pools, recovery
from treadle.runtime.commands import Command, Deliver, Elsewhere, Inspect, Operate, View
from treadle.runtime.core import Core
from treadle.runtime.desk import Operations
from treadle.runtime.meter import CoreMeter
from treadle.runtime.ports import Ack, Answer, Clock, News, SystemClock, Work
from treadle.runtime.registry import Registry
from treadle.store.marks import MovedRun
from treadle.store.members import Membership
from treadle.store.open import Place
from treadle.store.owner import Tenure
from treadle.store.protocol import Reads, Store
from treadle.work.worker import Worker

from .acting import NAMELESS, origin, stamped
from .aside import OPENED, aside, beside, threads_given
from .asking import UNDECIDED
from .haste import Haste, Threads
from .helping import Asking
from .news import Watching
from .readers import Readers, events_after
from .signing import Signer, node_signer
from .thread import CoreThread, Together

if TYPE_CHECKING:
    from .pool_sharing import PoolSharing
    from .sharing import Sharing

log = logging.getLogger("treadle")
T = TypeVar("T")

# How long a guest waits for the owner's answer before it says whom it waits for, and how often again.
PATIENCE_S = 5.0


class ThreadAck:
    """Answers a thread that waits."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        self.future = future

    def __call__(self, value: Any, error: TreadleError | None) -> None:
        if not self.future.done():  # else it waits no more, or was told that its core is over
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(value)


class LoopAck(ThreadAck):
    """Answers a coroutine; many of them travel to the event loop in one hop."""

    __slots__ = ()


def _answer_all(answers: list[Answer]) -> None:
    for ack, value, error in answers:
        ack(value, error)


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
        # An onlooker never owns the store, decides nothing and performs nothing.
        self.readonly = readonly
        self._worker: Worker | None = None
        # Vouches for receipts; made with the core.
        self.signer: Signer | None = None
        # What leases of work are sealed with; the store's.
        self.work_key = b""
        self.bus = LocalBus(SystemClock(), again=self._offer_again)
        self.watching, self._asking = Watching(self), Asking(self)
        self.wants_news = self.watching.hears
        self._clock, self.meter, self._threads = clock, CoreMeter(), Threads()
        self._haste = Haste(self.meter, self._threads.others_s)
        self._hot_runs = hot_runs
        self._registry_of, self._core_registry_of = registry_of, core_registry_of
        self._operations = operations
        self._thread: CoreThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: Tenure | None = None
        # This engine among those who share the store, where several may.
        self.member: Membership | None = None
        self.pools: PoolSharing | None = None
        self._readers: Readers | None = None
        # Whether this is a child forked from the process that opened the engine: it has none of its threads.
        self.is_forked, self._pid = False, os.getpid()
        self._failure: BaseException | None = None
        self.patience_s, self._said_waiting = PATIENCE_S, -PATIENCE_S
        self._started = False
        self._unanswered: set[asyncio.Future[Any] | concurrent.futures.Future[Any]] = set()

    # --- life ---

    @property
    def worker(self) -> Worker | None:
        """What does the work here, if anything does."""
        return None if self._worker is None or self._worker.is_clerk else self._worker

    @property
    def open(self) -> bool:
        return self._thread is not None

    @property
    def core(self) -> Core | None:
        """The core, if this engine owns the store; else it is the guest of another process."""
        return self._thread.core if self._thread is not None else None

    @property
    def shards(self) -> tuple[int, int]:
        """How many shards are decided here, of how many."""
        core = self.core
        return (0, 1) if core is None else (len(core.store.held), core.store.shards)

    @property
    def owns(self) -> bool:
        """Whether runs are decided here."""
        return self.shards[0] > 0

    def decides(self, run: str) -> bool:
        core = self.core
        return core is not None and (not core.held.several or core.held.holds(run))

    @property
    def sharing(self) -> Sharing | None:
        """This engine as one of several members, where there may be several."""
        return None if self._thread is None else self._thread.sharing

    def homes(self) -> list[str]:
        return [""] if self.sharing is None else self.sharing.homes()

    def works_alone(self) -> str | None:
        """Who decides here in our place, and works for its own runs only; None where we do, or it helps everybody."""
        if self.sharing is not None:
            return self.sharing.works_alone()
        return self._lock.works_alone() if self._lock is not None and self.core is None else None

    def help(self, runs: list[str] | None) -> None:
        """On the core thread: somebody wants these runs done, or all."""
        if self.worker is None:
            return
        self.worker.help(runs)
        if runs is None and self._lock is not None:
            self._lock.helps()
        if runs is None and self.member is not None:
            self.member.alone = False

    def be_forked(self) -> None:
        self.is_forked = True

    def _check_process(self) -> None:
        if self.is_forked:
            raise Unsupported(
                f"this engine was opened by process {self._pid}, and a forked child has none of its threads; "
                "open an engine of the child's own",
                code="ENGINE_FORKED",
            )

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """The loop we are called from, which must be the one that opened the engine."""
        if self.is_forked:
            self._check_process()
        loop = asyncio.get_running_loop()
        if self._readers is not None and loop is not self._loop:
            raise Unsupported(
                "this engine was opened on another event loop, and answers only there; "
                "open one on this loop, or use treadle.sync.Engine, which any thread may call",
                code="ENGINE_ELSEWHERE",
            )
        return loop

    async def start(self, worker: Worker | None) -> None:
        self._check_process()
        if self._readers is not None:
            raise Unsupported("this engine is open already; use it inside its one `async with`")
        self.place.check()
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        OPENED.add(self)
        self._failure, self._worker = None, worker
        self._readers = Readers(self.place, onlooker=self.readonly)
        if not self.readonly:
            try:
                await self._start_core(self._loop)
            except BaseException:
                await self.stop()
                raise
        await self.watching.begin()

    async def _start_core(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lock, self.member = self.place.tenure(), self.place.membership()
        for tenure in (self._lock, self.member):
            if tenure is not None and self.worker is not None:
                tenure.alone = not self.worker.others.helps
        together = None
        if self.member is not None:
            from .pool_sharing import PoolSharing  # one who has a file to itself shares nothing

            self.pools = PoolSharing(self, self.member.name)
            told = self._interrupted, self._moved, self.pools.was_away
            together = Together(self.member, self.bus, self.place.listener, *told)
        # A core that begins anew bars what the one before it may still have in flight.
        holder = None if self.member is None else self.member.name
        thread = CoreThread(
            partial(self.place.open, holder=holder, crowded=self._haste.is_crowded),
            self._make_core,
            self,
            self._lock,
            on_stop=self._stopped,
            tend=self._haste.look,
            together=together,
        )
        if self._worker is not None:
            self._worker.start(loop)
        else:
            self.bus.attach(None)
        with threads_given():
            thread.start()
        self._thread = thread
        self._threads.know(thread.ident, threading.get_ident())
        with threads_given():
            failure = await asyncio.to_thread(thread.opened.get)
        if failure is not None:
            raise failure
        self._started = True
        if self.place.shared:
            self._asking.begin()
        if self.pools is not None:
            self.pools.begin()

    async def stop(self) -> None:
        if self.pools is not None:
            await self.pools.end()
        await self._asking.end()
        if self._worker is not None:
            await self._worker.stop()
        await self.watching.end()
        if self._readers is not None:
            # Before the owner's connection: the last to close, if it may write, tidies the log away.
            before, self._readers = self._readers, Readers(self.place, onlooker=self.readonly)
            await aside(before.close)
        if self._thread is not None:
            self._thread.stop()
            await aside(self._thread.join)
            self._thread = None
            self._leave_unanswered(EngineStopped(UNDECIDED))  # handed in at the very end, and taken by nobody
        await self.watching.drain()
        self.watching.close(None)
        if self._readers is not None:
            readers, self._readers = self._readers, None
            OPENED.discard(self)
            await aside(readers.close)
        self._haste.end()

    def _make_core(self, store: Store, elsewhere: Elsewhere) -> Core:
        self.work_key = key = store.work_key()
        self.signer = signer = node_signer(self.place.path) if self.member is None else Signer(key)
        self.bus.seal_with(key)
        # Before anything is handed out. Of several members each has to ask first.
        caps = pools.pool_caps(store)
        self.bus.limit_pools(caps if self.member is None else dict.fromkeys(caps, 0))
        return Core(
            store,
            self._core_registry_of(store),
            self,
            clock=self._clock,
            entropy=os.urandom,
            operations=self._operations,
            verify=signer.verify,
            limits=Limits(hot_runs=self._hot_runs),
            elsewhere=elsewhere,
            # Where several share a store, who decides a run may lose it at any moment.
            eager=self._worker if self.member is None else None,
            meter=self.meter,
            beside=beside,
        )

    def _stopped(self, failure: BaseException | None) -> None:
        self._failure = failure
        if failure is not None and self._loop is not None:
            if self._started:  # else whoever started it is told, by the exception
                log.error("the engine stopped: %s", failure)
            # The event loop's own thread may be one of those that wait: it could not tell itself.
            self._leave_unanswered(failure, concurrent.futures.Future)
            self._hop(self._fail, failure)

    def _fail(self, failure: BaseException) -> None:
        """The core is gone: whoever waits for it is told so."""
        self.watching.close(failure)
        self._leave_unanswered(failure)

    def _leave_unanswered(self, failure: BaseException, only: type[Any] = object) -> None:
        for future in list(self._unanswered):
            if isinstance(future, only) and not future.done():
                with suppress(concurrent.futures.InvalidStateError):  # it was answered just now
                    future.set_exception(failure)

    def _interrupted(self, error: TreadleError) -> None:
        self.bus.revoke([work.intent.id for work, _ in self.bus.works()])
        self._leave_unanswered(error, concurrent.futures.Future)
        self._hop(self._leave_unanswered, error)

    def _moved(self) -> None:
        """Those who wait for runs look again: news of some come from elsewhere from now on."""
        self._hop(self.watching.awaken, None)

    # --- the core's port: called on the core thread, after a commit ---

    def answer(self, answers: list[Answer]) -> None:
        awaited: list[Answer] = []
        for ack, value, error in answers:
            if type(ack) is LoopAck:
                awaited.append((ack, value, error))
            else:
                ack(value, error)
        if awaited:
            self._hop(_answer_all, awaited)

    def dispatch(self, works: list[Work]) -> None:
        sharing = None if self._thread is None else self._thread.sharing
        self.bus.offer(works if sharing is None else sharing.withhold(works))

    def revoke(self, intents: list[str]) -> None:
        self.bus.revoke(intents)

    def _offer_again(self, runs: list[str]) -> None:
        """The bus has room for what it could not take."""
        core = self.core  # a guest has none, and nothing to offer
        with suppress(EngineStopped):
            for asked in () if core is None else recovery.offers(runs, core.held):
                self.submit(asked)

    def publish_news(self, news: list[News]) -> None:
        # Asked again, now that it is durable: whoever began to watch since then would not look again.
        heard = [item for item in news if self.watching.wants(item.run, item.ended)]
        if heard:
            self._hop(self.watching.tell, heard)

    def _hop(self, call: Callable[..., None], argument: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closing: nobody is left to be told
                self._loop.call_soon_threadsafe(call, argument)

    # --- to the core ---

    def submit(self, command: Command) -> None:
        if self.is_forked:
            self._check_process()
        if self.readonly:
            raise Unsupported("this engine only looks; open it without readonly to change something")
        if self._thread is None:
            raise EngineStopped()
        self._thread.submit(command)

    async def ask(self, make: Callable[[Ack], Command]) -> Any:
        """Hands a command over; returns its answer once that is durable."""
        loop = self.check_loop()
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Any] = loop.create_future()
        self._unanswered.add(future)
        try:
            command = make(LoopAck(future))
            if origin() is not None or not (type(command) is Deliver and type(command.event) in NAMELESS):
                command = stamped(command)
            self.submit(command)
            if self._thread is not None and not self._thread.decides(command):
                await self._be_patient(future)
            return await future
        finally:
            self._unanswered.discard(future)
            future.cancel()

    async def _be_patient(self, future: asyncio.Future[Any]) -> None:
        """As a guest: waits for the owner, and says for whom if that takes long."""
        while not (await asyncio.wait([future], timeout=self.patience_s))[0]:
            if self.member is not None:
                self._say_waiting("the member that decides this has not answered yet")
            elif self.core is None and self._lock is not None:
                self._say_waiting(self._lock.waits_for())

    def _say_waiting(self, what: str) -> None:
        """Once for all who wait: a thousand calls wait for one owner."""
        if (now := time.monotonic()) - self._said_waiting >= self.patience_s:
            self._said_waiting = now
            log.warning("waiting for an answer: %s", what)

    def ask_blocking(self, make: Callable[[Ack], Command], *, timeout_s: float = 60) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._unanswered.add(done)
        try:
            if self._failure is not None:
                raise self._failure
            self.submit(stamped(make(ThreadAck(done))))
            return done.result(timeout=timeout_s)
        finally:
            self._unanswered.discard(done)

    async def look(self, question: Callable[[View], T]) -> T:
        """Asks on the core's thread, between two commits. Changes nothing."""
        found: T = await self.ask(lambda ack: Inspect(question, ack))
        return found

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        return await self.ask(lambda ack: Operate(home, name, body, ack))

    def operate_blocking(self, name: str, body: dict[str, Any]) -> Any:
        return self.ask_blocking(lambda ack: Operate("", name, body, ack))

    async def read(self, question: Callable[[Reads], T], *, long: bool = False) -> T:
        """Asks the store on a connection of its own, off the core thread if there is one; `long`: it may take time."""
        self.check_loop()
        if self._readers is None:
            raise EngineStopped()
        if not self.place.shared and not self.readonly:
            return await self.look(lambda view: question(view.store))
        if long:
            return await asyncio.wrap_future(self._readers.submit(question, long=True))
        return await self._readers.ask(question)

    def read_blocking(self, question: Callable[[Reads], T]) -> T:
        """For workers, from any thread but the core's."""
        if self.place.shared and self._readers is not None:
            return self._readers.submit(question).result()
        found: T = self.ask_blocking(lambda ack: Inspect(lambda view: question(view.store), ack))
        return found

    # --- for the worker ---

    def turn_with(self, item: Deliver) -> bool:
        turning = None if self._thread is None else self._thread.turning
        return turning is not None and turning.turn_with(item)

    def sign(self, receipt: Receipt) -> bytes:
        return b"" if self.signer is None else self.signer.sign(receipt)

    async def secret(self, intent: str, name: str) -> str | dict[str, str] | None:
        """The worker here has all the secrets that there are."""
        return None

    def fetch_blob(self, digest: str) -> bytes:
        return self.read_blocking(lambda reads: reads.blob(digest))

    # --- events, for those who watch ---

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        return await events_after(self.read, self._registry_of, run, after, record)

    @property
    def is_told(self) -> bool:
        """Whether commits send their news here; as a guest, or as an onlooker, we have to look."""
        core = self.core
        return core is not None and (not core.held.several or core.held.all)

    @property
    def shares(self) -> bool:
        """Whether this is one of several members, so that commits elsewhere are nothing out of the ordinary."""
        return self.member is not None

    async def moved_since(self, since: tuple[int, int]) -> tuple[tuple[int, int], list[MovedRun]]:
        return await self.read(lambda reads: reads.moved(since))

    async def runs_beyond(self, event_no: int) -> list[str]:
        return await self.read(lambda reads: reads.runs_beyond(event_no))
