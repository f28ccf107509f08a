"""The worker inside the engine's process.

Two lanes. Coroutines run as tasks on the engine's event loop; work that is known never to suspend
(plain functions) runs on threads, driven by hand, because a hop through the loop costs more than
the work. Either way one intent is one `perform(job)`, its result one receipt.

Promises: at most `concurrency` jobs at once in each lane; a revoked job is cancelled at once (a
thread cannot be killed: its late receipt is stale, and counted; nor can a coroutine that will not end:
neither takes a place any more); a lane that is full of work that does not end says so; whatever a
performer raises becomes a receipt; nothing leaves the worker before secrets are redacted; a value too
large for the journal leaves as a reference.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from treadle.bus.data import DEFAULT_POOL, OTHERS, RESIDENT
from treadle.kernel.errors import EngineStopped, TreadleError
from treadle.kernel.model import Receipt
from treadle.runtime.commands import LATE, Command, Deliver, FrameSent
from treadle.runtime.ports import Work

from . import at_hand
from .job import Done, Performer, StaysOpen, Threaded, is_revoked
from .lane import FUNCTIONS, STUCK_S, Lane
from .others import Others
from .performers import ANY, PerformerTable, Performs
from .worker_job import Unanswered, WorkerJob, failed

if TYPE_CHECKING:
    from treadle.bus.protocol import NearSide
    from treadle.telemetry.tracer import Tracer, WorkSpan
    from treadle.work.worker_job import Definitions, Vault

    class CoreDoor(Protocol):
        """How a worker reaches the core, from any thread but the core's."""

        def submit(self, command: Command) -> None: ...

        def fetch_blob(self, digest: str) -> bytes: ...

        def turn_with(self, item: Deliver) -> bool:
            """Turns the core with a receipt on the calling thread, if it is idle; False if it is not."""
            ...

        def sign(self, receipt: Receipt) -> bytes:
            """The node's signature; empty where this process has no key."""
            ...

        async def secret(self, intent: str, name: str) -> str | dict[str, str] | None:
            """A secret that whoever owns this work has for it; None if it has none, or is this process."""
            ...


T = TypeVar("T")
log = logging.getLogger("treadle.worker")

COROUTINES: Final = "coroutines"
FINISH_POLL_S: Final = 0.02
# The lane of functions grows to this many threads while all of them are busy and nothing moves.
THREADS_MAX: Final = 64
# A lane that is full and has not moved for this long says so, and again after a while.
STALLED_S: Final = 5.0
STALLED_AGAIN_S: Final = 60.0
STALLED_SHOWN_MAX: Final = 8
# A coroutine that was cancelled and goes on all the same keeps its place for this long.
CANCEL_S: Final = 5.0


class _Here(threading.local):
    """Of the calling thread: whether it turns the core right now."""

    turning = False
    # And whether it takes up what that brought.
    has_next = False


class Worker:
    def __init__(
        self,
        bus: NearSide,
        core: CoreDoor,
        vault: Vault,
        definitions: Definitions,
        performers: PerformerTable | None = None,
        *,
        concurrency: int = 1_000,
        threads: int = 8,
        pools: Collection[str] | None = None,
        only: Callable[[Work], bool] | None = None,
        name: str = RESIDENT,
        tracer: Tracer | None = None,
        stalled_s: float = STALLED_S,
    ) -> None:
        self.name = name
        # A lane that is full and does not move for so long says so.
        self.stalled_s = stalled_s
        # Who tells of the work that is done here, if anybody is told.
        self.tracer = tracer
        self.bus = bus
        self.core = core
        self.submit = core.submit
        self.vault = vault
        self.definitions = definitions
        # Which pools it serves; None for all.
        self.pools = pools
        # Which work it does at all; None for whatever comes.
        self._only = only
        self.others = Others()
        # What could not be done here, and why.
        self.unknown: dict[str, str] = {}
        self.concurrency = concurrency
        self.performers = PerformerTable() if performers is None else performers
        self._threads = threads
        self._make_lane()
        self._here = _Here()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Work that was revoked and came again before its task had ended.
        self._after: dict[str, Work] = {}
        # What is being made, and jobs wait for together.
        self._making: dict[str, tuple[asyncio.Task[Any], asyncio.Event]] = {}
        self._begun: dict[str, float] = {}
        self._ended = 0
        self._watching: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._leaving = False

    @property
    def is_clerk(self) -> bool:
        """Whether it does only what cannot be left to others."""
        return self._only is not None

    # --- what can be performed ---

    def register(
        self, kind: str, performer: Performer, *, dialect: str = ANY, threaded: Threaded | None = None
    ) -> None:
        """Who performs a kind of intent, of one dialect or of any. The kind `*` is every other kind."""
        self.performers.register(Performs(kind, performer, threaded), dialect=dialect)

    # --- life ---

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # An engine may be opened again: what was open then is handed out again by its recovery.
        self._stopping = self._leaving = False
        self._make_lane()
        self.unknown.clear()
        self.bus.attach(self)

    def _make_lane(self) -> None:
        self.unanswered = Unanswered()
        self._lane = Lane(
            self.bus,
            self._serve,
            threads=self._threads,
            threads_max=max(self._threads, min(self.concurrency, THREADS_MAX)),
        )

    def late(self, run: str, intent: str) -> None:
        """Of an intent that is not in hand here any more. It is for its owner to say whether that is settled: it may
        be in other hands, and then this must not settle it."""
        if not self.bus.is_held(intent) and not self._stopping:
            self.submit(FrameSent(run, intent, 0, LATE, None))

    def take_no_more(self) -> list[Work]:
        """For whoever wants to leave: begins nothing new; what is in hand, and would be done again by
        the next one if it were dropped."""
        self._leaving = True
        self._lane.take_no_more()
        return self.bus.held()

    async def finish(self, limit_s: float) -> bool:
        """Waits until what is in hand is done, and handed in; False if that takes longer."""
        until = time.monotonic() + limit_s
        while self.take_no_more() or self._lane.busy:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(FINISH_POLL_S)
        return True

    async def stop(self) -> None:
        """Stops without settling anything: what is open stays open and is done again later."""
        self._stopping = True
        threads = self._lane.close()
        self.unanswered.end()
        if self._watching is not None:
            self._watching.cancel()
        waiting = list(self._tasks.values())
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=CANCEL_S)
        if threads:
            await asyncio.to_thread(_join, threads, 1.0)

    # --- the resident of the bus: called on the core thread ---

    def lane_of(self, work: Work) -> str:
        if self._only is not None and not self._only(work):
            return OTHERS
        if self.pools is not None and (work.intent.pool or DEFAULT_POOL) not in self.pools:
            return OTHERS
        if not (self.others.helps or self.others.takes(work.run)):
            return OTHERS
        try:
            row = self.performers[work.dialect, work.intent.kind]
            # Who performs a dialect's work is found out by its first job, on the loop.
            if row is None or (row.threaded is None and row.at_once is None):
                return COROUTINES
            told = (found := self.definitions.peek(work.definition)) and found.definition
            if row.threaded and row.threaded(work.intent, told):
                return FUNCTIONS
            return FUNCTIONS if row.at_once and row.at_once(work.intent, told, work.options) else COROUTINES
        except Exception:  # the core must not stop for it; the performer finds the same, and says it
            return COROUTINES

    def offered(self, lanes: dict[str, int]) -> None:
        if self._stopping or self._loop is None:
            return
        plain = lanes.get(FUNCTIONS, 0)
        here = self._here
        if plain == 1 and here.turning and not here.has_next:
            # The thread that turned the core takes a single piece of work itself; but one, of all that its turn brings.
            here.has_next = True
        elif plain and self._lane.wake() and self._watching is None:
            self._soon(self._watch)
        if COROUTINES in lanes:
            self._soon(self._pump)

    def help(self, runs: list[str] | None) -> None:
        """Does the work of these runs too, or of all."""
        if runs is None:
            self.others.help()
        else:
            self.others.want(runs)
        self.bus.reconsider(lambda work: self.others.takes(work.run))

    def revoked(self, intents: Sequence[str]) -> None:
        self.unanswered.leave(intents)
        for intent in intents:
            self._lane.revoke(intent)
        if any(intent in self._tasks for intent in intents):
            self._soon(self._cancel, intents)

    def try_again(self, dialect: str) -> None:
        """Takes up what had to stay open: code of its dialect has come."""
        self.bus.reconsider(lambda work: work.dialect == dialect, declined=True)

    def is_pure(self, work: Work, definition: Any) -> bool:
        """Whether work touches nothing outside and would be done here. Asked on the core thread, before its commit."""
        row = self.performers[work.dialect, work.intent.kind]
        try:
            is_pure = row is not None and row.pure is not None and row.pure(work.intent, definition)
            return is_pure and self.lane_of(work) != OTHERS
        except Exception:  # the core must not stop for it; the performer finds the same, and says it
            return False

    def begin(self, works: list[Work]) -> None:
        """Takes work on before its commit."""
        self.bus.offer(works)

    def revoke(self, intents: list[str]) -> None:
        """The commit did not come about."""
        self.bus.revoke(intents)

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closing: nothing is lost, it is all open
            self._loop.call_soon_threadsafe(call, *arguments)

    # --- the lane of coroutines ---

    def _pump(self) -> None:
        assert self._loop is not None
        room = self.concurrency - len(self._tasks)
        if room <= 0 and self.bus.waiting_in(COROUTINES):
            self._watch()
        if room <= 0 or self._stopping:
            return
        for work in [] if self._leaving else self.bus.take_here(COROUTINES, room):
            if work.intent.id in self._tasks:
                self._after[work.intent.id] = work
            else:
                self._begin(work)

    def _begin(self, work: Work) -> None:
        assert self._loop is not None
        self._begun[work.intent.id] = time.monotonic()
        self._tasks[work.intent.id] = self._loop.create_task(self._run(work))

    def _cancel(self, intents: Sequence[str]) -> None:
        assert self._loop is not None
        for intent in intents:
            self._after.pop(intent, None)
            if task := self._tasks.get(intent):
                task.cancel()
                self._loop.call_later(CANCEL_S, self._give_up, intent, task)

    def _give_up(self, intent: str, task: asyncio.Task[None]) -> None:
        """A coroutine that does not end when it is cancelled: its place is free all the same."""
        if self._tasks.get(intent) is task:
            log.warning("work that was cancelled %g s ago does not end; it is left to itself", CANCEL_S)
            self._free(intent)

    async def _run(self, work: Work) -> None:
        item: Deliver | None = None
        try:
            # Asked once `revoked` finds it among the tasks: what was revoked before that is not begun.
            if not self.bus.is_held(work.intent.id):
                return
            job = WorkerJob(self, work, threaded=False)
            try:
                if work.dialect not in self.performers.ready:
                    await self.once(work.dialect, self.performers.prepare)
                    if self.lane_of(work) == FUNCTIONS:
                        self.bus.move(work.intent.id, FUNCTIONS)
                        return
                at_hand.begin(job)
                item = await (self._perform(job) if job.span is None else self._traced(job, job.span))
            except BaseException as error:
                if is_revoked(error):
                    raise
                item = failed(job, error)
            finally:
                job.send_said()
            if item is not None:
                self.submit(item)
        finally:
            if self._tasks.get(work.intent.id) is asyncio.current_task():
                if item is not None:
                    self.bus.done(work.intent.id)
                self._free(work.intent.id)

    async def once(self, name: str, make: Callable[[str], T]) -> T:
        """Something that is made on a thread: a dialect's performers, a definition. The first jobs that need it, hundreds
        after a crash, wait for it together, and go on in the order they came."""
        assert self._loop is not None
        if asyncio.get_running_loop() is not self._loop:  # a part of a job, on a loop of its own
            return await asyncio.to_thread(make, name)
        task: asyncio.Task[T]
        task, made = self._making.get(name) or self._make(name, make)
        # A shield would be a dozen objects for each of them.
        await made.wait()
        return task.result()

    def _make(self, name: str, make: Callable[[str], T]) -> tuple[asyncio.Task[T], asyncio.Event]:
        assert self._loop is not None
        task, made = self._loop.create_task(asyncio.to_thread(make, name)), asyncio.Event()

        def end(_: asyncio.Task[T]) -> None:
            del self._making[name]
            made.set()

        task.add_done_callback(end)
        self._making[name] = (task, made)
        return task, made

    def _free(self, intent: str) -> None:
        del self._tasks[intent], self._begun[intent]
        self._ended += 1
        after = self._after.pop(intent, None)
        if after is not None and self.bus.is_held(intent) and not self._stopping:
            self._begin(after)
        self._pump()

    # --- the lane of plain functions ---

    def _serve(self, work: Work) -> None:
        """One piece of work, on a thread of the lane."""
        job = WorkerJob(self, work, threaded=True)
        at_hand.begin(job)
        try:
            item = _drive(self._perform(job) if job.span is None else self._traced(job, job.span))
        except BaseException as error:  # whatever a tool raises must not cost the thread
            item = failed(job, error)
        at_hand.begin(None)
        if item is not None:
            # It is in hand until the core has its receipt: a shard is not given away meanwhile.
            self._hand_in(item)
            self.bus.done(work.intent.id)

    def _hand_in(self, item: Deliver) -> None:
        """Gives a receipt to the core. If this was all there was to do, the core is turned right here,
        and the work that follows is done by this thread too."""
        if not self._stopping and not self._tasks and self.bus.unsettled_in(FUNCTIONS) <= 1:
            self._here.turning, self._here.has_next = True, False
            try:
                if self.core.turn_with(item):
                    return
            finally:
                self._here.turning = False
        try:
            self.submit(item)
        except EngineStopped:
            log.debug("%s: its receipt comes after the engine has stopped", item.run)

    # --- lanes that do not move ---

    def _watch(self) -> None:
        """On the loop: looks after a lane in which work waits, until none does."""
        if self._watching is None and self._loop is not None and not self._stopping:
            self._watching = self._loop.call_later(STUCK_S, self._tend, self._ended, time.monotonic())

    def _tend(self, ended: int, since: float) -> None:
        """`ended` coroutines had ended at `since`, when last one did."""
        assert self._loop is not None
        self._watching = None
        if self._stopping:
            return
        if ended != self._ended:
            ended, since = self._ended, time.monotonic()
        still = self._lane.tend()
        if still is not None and still >= self.stalled_s:
            self._tell("functions", self._lane.busy, self._lane.waiting)
        waiting = self.bus.waiting_in(COROUTINES)
        full = len(self._tasks) >= self.concurrency and waiting > 0
        if full and time.monotonic() - since >= self.stalled_s:
            begun, now = self._begun, time.monotonic()
            held = [(w, now - begun[w.intent.id]) for w in self.bus.held() if w.intent.id in begun]
            self._tell("coroutines", sorted(held, key=lambda pair: -pair[1]), waiting)
        if full or still is not None:
            self._watching = self._loop.call_later(STUCK_S, self._tend, ended, since)

    def _tell(self, lane: str, held: list[tuple[Work, float]], waiting: int) -> None:
        """A lane is full of work that does not end: the log names it, and so do the events of its runs."""
        now = time.monotonic()
        if now - self._said.get(lane, -STALLED_AGAIN_S) < STALLED_AGAIN_S:
            return
        self._said[lane] = now
        shown = held[:STALLED_SHOWN_MAX]
        names = ", ".join(f"{w.intent.kind} {w.intent.name} of {w.run} ({for_s:.0f} s)" for w, for_s in shown)
        log.warning(
            "%d jobs wait: all %d places for %s are taken by work that does not end. The oldest: %s. "
            "Give such tasks a `timeout`, or cancel their runs",
            *(waiting, len(held), lane, names),
        )
        for work, for_s in shown:
            data = {"intent": work.intent.id, "seconds": round(for_s), "waiting": waiting}
            self.submit(FrameSent(work.run, work.intent.id, 0, "work.stalled", data))

    # --- both ---

    async def _traced(self, job: WorkerJob, span: WorkSpan) -> Deliver | None:
        item: Deliver | None = None
        try:
            item = await self._perform(job)
        finally:
            receipt = None if item is None else item.event
            span.end(receipt if isinstance(receipt, Receipt) else None)
        return item

    async def _perform(self, job: WorkerJob) -> Deliver | None:
        row = self.performers[job.dialect, job.intent.kind]
        if row is None:
            return self._stays_open(job, f"nothing is registered for {job.intent.kind!r}")
        try:
            return job.finish(await row.performer(job))
        except StaysOpen as error:
            return self._stays_open(job, str(error))
        except EngineStopped:
            return None  # nobody is there to be told; it is done again
        except TreadleError as error:
            return job.finish(Done(status="error", error=error.to_value()))
        except Exception as error:
            return failed(job, error)

    def _stays_open(self, job: WorkerJob, why: str) -> Deliver | None:
        self.unknown[job.intent.id] = why
        self.bus.decline(job.intent.id, RESIDENT, why)
        log.warning("%s: %s (%s) stays open: %s", job.run, job.intent.kind, job.intent.name, why)
        data = {"intent": job.intent.id, "kind": job.intent.kind, "name": job.intent.name, "reason": why}
        self.submit(FrameSent(job.run, job.intent.id, 0, "work.unavailable", data))
        return None


def _join(threads: list[threading.Thread], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _drive(work: Coroutine[Any, Any, Deliver | None]) -> Deliver | None:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        found: Deliver | None = stop.value
        return found
    work.close()
    raise RuntimeError("work that was declared never to wait did wait")
