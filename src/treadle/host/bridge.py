"""How calls from an event loop reach the core on its thread, and how its answers come back.

Hops between threads are what a fast engine pays for, so they are counted: one hop carries all the
answers of a commit, one all its news. Reads go to a connection of their own where there is one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from treadle.kernel.errors import EngineStopped, StoreUnavailable, TreadleError, Unsupported
from treadle.kernel.values import copied, to_value
from treadle.runtime import document
from treadle.runtime.commands import Command, Operate, Write
from treadle.runtime.core import Core
from treadle.runtime.payloads import may_refer
from treadle.runtime.ports import Ack, Clock, News, Work
from treadle.runtime.registry import Registry
from treadle.store.open import open_sqlite, read_sqlite, schema_version
from treadle.store.owner import OwnerLock
from treadle.store.protocol import Reads, Store
from treadle.work.worker import Worker

from .news import Watching
from .signing import node_signer
from .thread import CoreThread

log = logging.getLogger("treadle")
T = TypeVar("T")
Operations = Callable[[Core, Operate], Any]

# A CPU-busy tool on another thread holds the interpreter for this long before the core gets it:
# the default of 5 ms would be added to every commit.
SWITCH_INTERVAL_S = 0.0005


class _LoopAck:
    """Answers a coroutine; many of them travel to the event loop in one hop."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def __call__(self, value: Any, error: TreadleError | None) -> None:
        if not self.future.done():
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(value)


def blocking_ack(future: concurrent.futures.Future[Any]) -> Ack:
    """Answers a thread that waits."""

    def ack(value: Any, error: TreadleError | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    return ack


class Bridge:
    """One engine's way to its core."""

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock,
        hot_runs: int,
        registry_of: Callable[[Reads], Registry],
        operations: Operations,
        readonly: bool = False,
    ) -> None:
        self.path = path
        # An onlooker never owns the store, decides nothing and performs nothing.
        self.readonly = readonly
        self.worker: Worker | None = None
        self.watching = Watching(self)
        self._clock = clock
        self._hot_runs = hot_runs
        self._registry_of = registry_of
        self._operations = operations
        self._thread: CoreThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers: concurrent.futures.ThreadPoolExecutor | None = None
        self._reads: Reads | None = None
        self._failure: BaseException | None = None
        self._started = False
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._switch_interval = sys.getswitchinterval()

    # --- life ---

    @property
    def open(self) -> bool:
        return self._thread is not None

    @property
    def core(self) -> Core | None:
        """The core, if this engine owns the store; else it is the guest of another process."""
        return self._thread.core if self._thread is not None else None

    async def start(self) -> None:
        if self._readers is not None:
            raise Unsupported("this engine is open already; use it inside its one `async with`")
        if self.path is not None and not self.path.parent.is_dir():
            raise StoreUnavailable(
                f"the folder {self.path.parent} does not exist; create it, or choose another --store"
            )
        self._loop = asyncio.get_running_loop()
        self._failure = None
        self._readers = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="treadle-reader")
        if self.readonly:
            await self.watching.begin()
            return
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_interval, SWITCH_INTERVAL_S))
        if self.worker is not None:
            self.worker.start(self._loop)
        lock = OwnerLock(self.path) if self.path is not None else None
        thread = CoreThread(
            lambda: open_sqlite(self.path), self._make_core, self, lock, on_stop=self._stopped
        )
        self._thread = thread
        if self.worker is not None:
            self.worker.turn_with = thread.turn_with
        thread.start()
        failure = await asyncio.to_thread(thread.opened.get)
        if failure is not None:
            await self.stop()
            raise failure
        self._started = True
        await self.watching.begin()

    async def stop(self) -> None:
        if self.worker is not None:
            await self.worker.stop()
        await self.watching.end()
        if self._readers is not None:
            # Before the owner's connection: the last to close, if it may write, tidies the log away.
            self._readers.submit(self._close_reads).result()
        if self._thread is not None:
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        await self.watching.drain()
        self.watching.close(None)
        if self._readers is not None:
            self._readers.submit(self._close_reads).result()
            self._readers.shutdown()
            self._readers = None
        sys.setswitchinterval(self._switch_interval)

    def _make_core(self, store: Store) -> Core:
        core = Core(
            store,
            self._registry_of(store),
            self,
            clock=self._clock,
            entropy=os.urandom,
            hot_max=self._hot_runs,
        )
        core.operations = self._operations
        signer = node_signer(self.path)
        core.verify = signer.verify
        if self.worker is not None:
            self.worker.sign = signer.sign
        return core

    def _stopped(self, failure: BaseException | None) -> None:
        self._failure = failure
        if failure is not None and self._loop is not None:
            if self._started:  # else whoever started it is told, by the exception
                log.error("the engine stopped: %s", failure)
            self._hop(self._fail, failure)

    def _fail(self, failure: BaseException) -> None:
        """The core is gone: whoever waits for it is told so."""
        self.watching.close(failure)
        for future in self._unanswered:
            if not future.done():
                future.set_exception(failure)

    # --- the core's port: called on the core thread, after a commit ---

    def answer(self, answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
        awaited: list[tuple[Ack, Any, TreadleError | None]] = []
        for ack, value, error in answers:
            if type(ack) is _LoopAck:
                awaited.append((ack, value, error))
            else:
                ack(value, error)
        if awaited:
            self._hop(_answer_all, awaited)

    def dispatch(self, works: list[Work]) -> None:
        if self.worker is not None:
            self.worker.dispatch(works)

    def revoke(self, intents: list[str]) -> None:
        if self.worker is not None:
            self.worker.revoke(intents)

    def wants_news(self, run: str, ended: bool) -> bool:
        return self.watching.wants(run, ended)

    def publish_news(self, news: list[News]) -> None:
        self._hop(self.watching.tell, news)

    def _hop(self, call: Callable[..., None], argument: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closing: nobody is left to be told
                self._loop.call_soon_threadsafe(call, argument)

    # --- to the core ---

    def submit(self, command: Command) -> None:
        if self.readonly:
            raise Unsupported("this engine only looks; open it without readonly to change something")
        if self._thread is None:
            raise EngineStopped()
        self._thread.submit(command)

    async def ask(self, make: Callable[[Ack], Command]) -> Any:
        """Hands a command over; returns its answer once that is durable."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._unanswered.add(future)
        try:
            self.submit(make(_LoopAck(future)))
            return await future
        finally:
            self._unanswered.discard(future)

    def ask_blocking(self, make: Callable[[Ack], Command], *, timeout_s: float = 60) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.submit(make(blocking_ack(done)))
        return done.result(timeout=timeout_s)

    async def write(self, change: Callable[[Core], T]) -> T:
        """Runs a change on the core thread, in a commit of its own."""
        found: T = await self.ask(lambda ack: Write(change, ack))
        return found

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        return await self.ask(lambda ack: Operate(home, name, body, ack))

    def operate_blocking(self, name: str, body: dict[str, Any]) -> Any:
        return self.ask_blocking(lambda ack: Operate("", name, body, ack))

    async def read(self, question: Callable[[Reads], T]) -> T:
        """Asks the store on a connection of its own, off the core thread where there is one."""
        if self._readers is None:
            raise EngineStopped()
        if self.path is None and not self.readonly:
            return await self.write(lambda core: question(core.store))
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_now, question)

    def _read_now(self, question: Callable[[Reads], T]) -> T:
        if self._reads is None and self._is_there():
            assert self.path is not None, "a store in memory is read on the core thread"
            self._reads = read_sqlite(self.path)
        if self._reads is not None:
            return question(self._reads)
        # To an onlooker a store that is not there yet is an empty one, and stays away.
        empty = open_sqlite(None)
        try:
            return question(empty)
        finally:
            empty.close()

    def _is_there(self) -> bool:
        return not self.readonly or (self.path is not None and schema_version(self.path) > 0)

    def _close_reads(self) -> None:
        if self._reads is not None:
            self._reads.close()
            self._reads = None

    def fetch_blob(self, digest: str) -> bytes:
        """For workers, from any thread."""
        found: bytes
        if self.path is not None and self._readers is not None:
            found = self._readers.submit(self._read_now, lambda reads: reads.blob(digest)).result()
        else:
            found = self.ask_blocking(lambda ack: Write(lambda core: core.store.blob(digest), ack))
        return found

    # --- events, for those who watch ---

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        def ask(reads: Reads) -> list[dict[str, Any]]:
            row = reads.run(run)
            return [] if row is None else [*document.events(reads, row, after=after, record=record)]

        return await self.read(ask)

    @property
    def is_told(self) -> bool:
        """Whether commits send their news here; as a guest, or as an onlooker, we have to look."""
        return self.core is not None

    async def moved(self, since: tuple[int, int]) -> tuple[tuple[int, int], list[tuple[str, str, bool]]]:
        return await self.read(lambda reads: reads.moved(since))

    def is_going_on(self, run: str) -> bool:
        hot = self.core.hot.peek(run) if self.core is not None else None
        return hot is not None and not hot.state.ended

    def outcome(self, run: str) -> dict[str, Any] | None:
        """How a run ended, if it is in memory; asked by those who were told of its end."""
        hot = self.core.hot.peek(run) if self.core is not None else None
        if hot is None or not hot.state.ended:
            return None
        result, body = copied(hot.state.result)
        if may_refer(body):
            return None
        return {"status": hot.state.status, "result": result, "error": to_value(hot.state.error)}

    async def runs_beyond(self, event_no: int) -> list[str]:
        return await self.read(lambda reads: reads.runs_beyond(event_no))


def _answer_all(answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
    for ack, value, error in answers:
        ack(value, error)
