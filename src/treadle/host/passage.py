"""The passage between an engine's event loop and its core: where the engine is at home, what of its store it decides, how
commands go in, and how answers, news and work come out.

Nothing of an open engine goes along with a fork: a child made by fork() has none of its parent's threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from treadle.bus.local import LocalBus
from treadle.kernel.errors import EngineStopped, StoreUnavailable, TreadleError, Unsupported
from treadle.kernel.model import Receipt
from treadle.runtime.commands import Command, Deliver, Inspect, Operate, View
from treadle.runtime.core import Core
from treadle.runtime.ports import Ack, Answer, News, Work
from treadle.store.open import Place

from .acting import NAMELESS, origin, stamped
from .news import Watching
from .thread import CoreThread

if TYPE_CHECKING:
    from treadle.store.members import Membership
    from treadle.store.owner import Tenure

    from .sharing import Sharing

log = logging.getLogger("treadle")
T = TypeVar("T")
_Unanswered = asyncio.Future[Any] | concurrent.futures.Future[Any]

# How long a guest waits for the owner's answer before it says whom it waits for, and how often again.
PATIENCE_S: Final = 5.0


class HomeLoop:
    """The process that opened the engine, and the event loop on which that was."""

    def __init__(self) -> None:
        # Whether this is a child forked from the process that opened the engine: it has none of its threads.
        self.is_forked = False
        self.is_open = False
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> asyncio.AbstractEventLoop:
        """From now on the engine answers on the loop that this is called from, and on no other."""
        self.check_process()
        if self.is_open:
            raise Unsupported("this engine is open already; use it inside its one `async with`")
        self.is_open = True
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        _OPENED.add(self)
        return self._loop

    def close(self) -> None:
        self.is_open = False
        _OPENED.discard(self)

    def check_process(self) -> None:
        if self.is_forked:
            raise Unsupported(
                f"this engine was opened by process {self._pid}, and a forked child has none of its threads; "
                "open an engine of the child's own",
                code="ENGINE_FORKED",
            )

    def check(self) -> asyncio.AbstractEventLoop:
        """The loop we are called from, which must be the one that opened the engine."""
        if self.is_forked:
            self.check_process()
        loop = asyncio.get_running_loop()
        if self.is_open and loop is not self._loop:
            raise Unsupported(
                "this engine was opened on another event loop, and answers only there; "
                "open one on this loop, or use treadle.sync.Engine, which any thread may call",
                code="ENGINE_ELSEWHERE",
            )
        return loop

    def hop(self, call: Callable[[T], None], argument: T) -> None:
        """From any thread: has something done on the loop."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closing: nobody is left to be told
                self._loop.call_soon_threadsafe(call, argument)


# Those of engines that are open in this process; in a child they are told that it is not theirs.
_OPENED: Final[weakref.WeakSet[HomeLoop]] = weakref.WeakSet()


def _leave_behind() -> None:
    for opened in list(_OPENED):
        opened.is_forked = True


os.register_at_fork(after_in_child=_leave_behind)


class Seat:
    """What of its store an engine decides: all of it as its owner, nothing as the guest of another process or as an onlooker,
    some shards of it as one of several members; and who decides the rest. Any thread may ask. What is seen was so a moment
    ago."""

    def __init__(self) -> None:
        # The core's thread, while there is one.
        self.thread: CoreThread | None = None
        # This engine among those who share the store, where several may.
        self.member: Membership | None = None
        self._lock: Tenure | None = None

    def claim(self, place: Place, *, alone: bool | None) -> Tenure | None:
        """How this engine may come to decide: by the lock of a file, or as a member. `alone`: it works for its own runs
        only; None if it does not work."""
        self._lock, self.member = place.tenure(), place.membership()
        for tenure in (self._lock, self.member):
            if tenure is not None and alone is not None:
                tenure.alone = alone
        return self._lock

    def take(self, thread: CoreThread) -> None:
        self.thread = thread

    def leave(self) -> None:
        self.thread = None

    def help_all(self) -> None:
        """It works for everybody from now on, and others can see so."""
        if self._lock is not None:
            self._lock.helps()
        if self.member is not None:
            self.member.alone = False

    # --- what is decided here ---

    @property
    def core(self) -> Core | None:
        """The core, if this engine owns the store; else it is the guest of another process."""
        return self.thread.core if self.thread is not None else None

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
    def is_told(self) -> bool:
        """Whether commits send their news here; as a guest, or as an onlooker, we have to look."""
        core = self.core
        return core is not None and (not core.held.several or core.held.all)

    # --- who else is there ---

    @property
    def shares(self) -> bool:
        """Whether this is one of several members, so that commits elsewhere are nothing out of the ordinary."""
        return self.member is not None

    @property
    def sharing(self) -> Sharing | None:
        """This engine as one of several members, where there may be several."""
        return None if self.thread is None else self.thread.sharing

    @property
    def is_there(self) -> bool:
        """As a member: whether others still go by what they know of us."""
        sharing = self.sharing
        return sharing is not None and sharing.is_there

    def withheld(self, works: list[Work]) -> list[Work]:
        """As a member: what of new work may go out."""
        return works if (sharing := self.sharing) is None else sharing.withhold(works)

    def homes(self) -> list[str]:
        """Names at which everybody is reached who decides something on this store, one for each."""
        return [""] if self.sharing is None else self.sharing.homes()

    def works_alone(self) -> str | None:
        """Who decides here in our place, and works for its own runs only; None where we do, or it helps everybody."""
        if self.sharing is not None:
            return self.sharing.works_alone()
        return self._lock.works_alone() if self._lock is not None and self.core is None else None

    def waits_for(self) -> str | None:
        """Whom those wait for here who are not answered; None if nobody else is to blame."""
        if self.member is not None:
            return "the member that decides this has not answered yet"
        return self._lock.waits_for() if self._lock is not None and self.core is None else None


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


class Asks:
    """Commands on their way to the core, and those here who wait for its answers: coroutines, and threads."""

    def __init__(self, home: HomeLoop, seat: Seat, *, readonly: bool) -> None:
        self._home = home
        self._seat = seat
        # An onlooker never owns the store, decides nothing and performs nothing.
        self._readonly = readonly
        self.patience_s, self._said_waiting = PATIENCE_S, -PATIENCE_S
        self._failure: BaseException | None = None
        self._unanswered: set[_Unanswered] = set()

    def submit(self, command: Command) -> None:
        """Any thread may."""
        if self._home.is_forked:
            self._home.check_process()
        if self._readonly:
            raise Unsupported("this engine only looks; open it without readonly to change something")
        if (thread := self._seat.thread) is None:
            raise EngineStopped()
        thread.submit(command)

    async def ask(self, make: Callable[[Ack], Command]) -> Any:
        """Hands a command over; returns its answer once that is durable."""
        loop = self._home.check()
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Any] = loop.create_future()
        self._unanswered.add(future)
        try:
            command = make(LoopAck(future))
            if origin() is not None or not (type(command) is Deliver and type(command.event) in NAMELESS):
                command = stamped(command)
            self.submit(command)
            if (thread := self._seat.thread) is not None and not thread.decides(command):
                await self._be_patient(future)
            return await future
        finally:
            self._unanswered.discard(future)
            future.cancel()

    async def _be_patient(self, future: asyncio.Future[Any]) -> None:
        """As a guest: waits for the owner, and says for whom if that takes long."""
        while not (await asyncio.wait([future], timeout=self.patience_s))[0]:
            if (whom := self._seat.waits_for()) is not None:
                self._say_waiting(whom)

    def _say_waiting(self, whom: str) -> None:
        """Once for all who wait: a thousand calls wait for one owner."""
        if (now := time.monotonic()) - self._said_waiting >= self.patience_s:
            self._said_waiting = now
            log.warning("waiting for an answer: %s", whom)

    def ask_blocking(self, make: Callable[[Ack], Command], *, timeout_s: float = 60) -> Any:
        """The same for a thread that waits, but not for ever."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._unanswered.add(done)
        try:
            if self._failure is not None:
                raise self._failure
            self.submit(stamped(make(ThreadAck(done))))
            if not concurrent.futures.wait([done], timeout=timeout_s).done:
                why = self._seat.waits_for() or "the core is busy"
                raise StoreUnavailable(
                    f"no answer within {timeout_s:g} s: {why}. What was asked may be done yet: look, or ask again"
                )
            return done.result()
        finally:
            self._unanswered.discard(done)

    async def look(self, question: Callable[[View], T]) -> T:
        """Asks on the core's thread, between two commits. Changes nothing."""
        found: T = await self.ask(lambda ack: Inspect(question, ack))
        return found

    def look_blocking(self, question: Callable[[View], T]) -> T:
        found: T = self.ask_blocking(lambda ack: Inspect(question, ack))
        return found

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        return await self.ask(lambda ack: Operate(home, name, body, ack))

    def operate_blocking(self, name: str, body: dict[str, Any]) -> Any:
        return self.ask_blocking(lambda ack: Operate("", name, body, ack))

    # --- the core goes ---

    def begin(self) -> None:
        """There is a core again."""
        self._failure = None

    def fail(self, failure: BaseException | None) -> None:
        """The core is gone: who asks from now on is told so."""
        self._failure = failure

    def leave_unanswered(self, failure: BaseException) -> None:
        """On the event loop: whoever waits is told that no answer comes."""
        _leave(failure, list(self._unanswered))

    def leave_threads_unanswered(self, failure: BaseException) -> None:
        """The event loop's own thread may be one of those that wait: it could not tell itself."""
        _leave(failure, _of_threads(list(self._unanswered)))

    def interrupt(self, failure: BaseException) -> None:
        """From any thread, where another core comes: whoever waits now is told. Who asks until that has come to the loop asks
        the next core, which does it."""
        asked = list(self._unanswered)
        _leave(failure, _of_threads(asked))
        self._home.hop(partial(_leave, failure), asked)


def _of_threads(futures: Iterable[_Unanswered]) -> list[_Unanswered]:
    return [future for future in futures if isinstance(future, concurrent.futures.Future)]


def _leave(failure: BaseException, futures: Iterable[_Unanswered]) -> None:
    for future in futures:
        if not future.done():
            with suppress(concurrent.futures.InvalidStateError):  # it was answered just now
                future.set_exception(failure)


class CorePort:
    """The outside, as the core sees it (`runtime.ports.Port`), on its thread and after a commit: answers and news go to the
    event loop, each of a commit in one hop; work goes to the bus."""

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
    """The core, as the worker here sees it (`work.worker.CoreDoor`), from any thread but the core's."""

    def __init__(
        self,
        asks: Asks,
        seat: Seat,
        fetch_blob: Callable[[str], bytes],
        sign: Callable[[Receipt], bytes],
    ) -> None:
        self.submit = asks.submit
        self.fetch_blob, self.sign = fetch_blob, sign
        self._seat = seat

    def turn_with(self, item: Deliver) -> bool:
        thread = self._seat.thread
        turning = None if thread is None else thread.turning
        return turning is not None and turning.turn_with(item)

    async def secret(self, intent: str, name: str) -> str | dict[str, str] | None:
        """The worker here has all the secrets that there are."""
        return None
