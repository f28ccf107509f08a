"""The core: mailbox, step, commit, next. One synchronous loop over one store.

It runs on the thread that owns the store's connection; the simulator calls `turn` by hand. It
promises: events of a run are admitted one at a time, in order; runs take turns, one event each;
nothing is answered, dispatched or shown before the commit that holds it; a commit that fails
leaves no trace, and its events are tried again in order.

It knows no dialect, no tool, no asyncio. How one event is admitted is in `admission.py`, what a
step sets in motion in `effects.py`, what comes by itself in `intake.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from treadle.kernel.errors import (
    PASSING,
    AppendConflict,
    OwnershipLost,
    StoreUnavailable,
    TreadleError,
    ValueRefused,
)
from treadle.kernel.history import snapshot
from treadle.kernel.limits import LIMITS, Limits
from treadle.kernel.model import Receipt
from treadle.kernel.run import Step, error_of
from treadle.kernel.values import Value, encode
from treadle.store.protocol import Store

from . import admission, changes, commands, effects, isolation, progress, undecided
from .commands import HANDED_ON, Change, CheckpointSaved, Command, FrameSent, Operate, Progress, Write
from .hot import BlobCache, Hot, HotRuns
from .intake import Intake
from .mail import Mail
from .messages import GUEST, message_to_bytes, reply_to_bytes, unusable
from .ports import Ack, Clock, Item, News, Own, Port
from .registry import Registry
from .staging import Staged, answer_of

RETRY_AFTER_NS = 200_000_000
FAILURES_MAX = 50
# Whoever waits for the store is told at once, and every ten seconds from then on.
WARN_EVERY = 50
REST_BYTES_MAX = 4096

log = logging.getLogger("treadle.core")


class Core:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        port: Port,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        operations: commands.Operations,
        limits: Limits = LIMITS,
    ) -> None:
        self.store = store
        self.registry = registry
        self.clock = clock
        self.entropy = entropy
        self.limits = limits
        self.blobs = BlobCache(store, limits.blob_cache_bytes)
        self.hot = HotRuns(store, registry, self.blobs, limit=limits.hot_runs)
        self.staged = Staged(1)
        self.operations = operations
        # Set by the composition root: whether a receipt bears the node's signature.
        self.verify: Callable[[Receipt], bool] | None = None
        self.next_run_no = store.last_run_no() + 1
        self.next_task_no = store.last_task_no() + 1
        self._port = port
        # None only wakes whoever waits.
        self._incoming: SimpleQueue[Command | None] = SimpleQueue()
        self._mail = Mail()
        self._writes: deque[Change] = deque()
        self._progress: deque[Progress] = deque()
        self._intake = Intake(self)
        self._unreadable: dict[str, TreadleError] = {}
        self._retry_at_ns = 0
        self._failures = 0
        self._warned = False
        self._expelling = False
        # How many of the next batches hold one event each, because one of several is to blame.
        self._apart = 0

    # --- from any thread ---

    def submit(self, command: Command) -> None:
        self._incoming.put(command)

    def wake(self) -> None:
        self._incoming.put(None)

    def wait(self, timeout_s: float | None) -> Command | None:
        """Waits for a command; the core thread's way to sleep. None if none came."""
        try:
            return self._incoming.get_nowait() if timeout_s == 0 else self._incoming.get(timeout=timeout_s)
        except Empty:
            return None

    # --- the loop ---

    def wait_ns(self) -> int | None:
        """How long nothing will happen by itself; None if for ever."""
        now = self.clock.now_ns()
        if self._mail or self._writes or self._progress or self._intake.busy:
            return self._held_back_ns(now)
        due = self._intake.next_due_ns()
        return None if due is None else max(due - now, self._held_back_ns(now))

    def _held_back_ns(self, now: int) -> int:
        """How long a failed commit still holds us back; a clock that was set back does not."""
        left = self._retry_at_ns - now
        return left if 0 < left <= RETRY_AFTER_NS else 0

    def poll(self) -> None:
        """Looks whether another process has written messages for us."""
        if self.store.changed():
            self._intake.inbox_dirty = True

    def turn(self, *, intake: bool = True) -> bool:
        """One batch: gather what is ready, commit it, publish it. False if there was nothing."""
        now = self.clock.now_ns()
        self._drain()
        if self._held_back_ns(now):
            return False
        if not (self._mail or self._writes or self._progress or (intake and self._intake.due(now))):
            return False
        try:
            if intake:
                self._intake.gather(now)
            self._fill()
        except PASSING as error:
            self._rollback(error)
            return True
        except Exception as error:
            self._single_out(error)
            return True
        if self.staged.empty:
            self.next_batch()
            return False
        self._commit()
        return True

    def _drain(self) -> None:
        try:
            while True:
                self.accept(self._incoming.get_nowait())
        except Empty:
            return

    def accept(self, command: Command | None) -> None:
        """Takes a command in; on the thread that turns the core."""
        if command is None:
            return
        try:
            self._accept(command)
        except Exception as error:
            isolation.turn_away(self, command, error)

    def _accept(self, command: Command) -> None:
        if type(command) is Item or type(command) is Operate:
            if (error := unusable(command)) is None:
                self.take(command)
            elif command.ack is not None:
                self._port.answer([(command.ack, None, error)])
        elif type(command) is Write:
            self._writes.append(command)
        else:
            assert isinstance(command, FrameSent | CheckpointSaved)
            hot = self.hot.peek(command.run)
            if isinstance(command, FrameSent) and hot and hot.machine.wants_frames(hot.definition):
                # An event of the run like any other: it keeps its place before the receipt.
                self.post(progress.as_event(command))
            else:
                self._progress.append(command)

    def take(self, command: Item | Operate) -> None:
        """Takes in what came from outside: by a call, or in a message."""
        if isinstance(command, Operate):
            self._writes.append(command)
        else:
            self._mail.post(command)

    def post(self, item: Item) -> None:
        """Puts an event into a run's mailbox and the run into the ring of ready ones."""
        self._mail.post(item)

    def hand_on(self, operate: Operate, item: Item) -> object:
        """Lets an event answer in place of an operation; the operation's message is done with it."""
        item.ack, item.inbox = operate.ack, operate.inbox
        self.staged.handed.append((operate, item))
        self._mail.post(item)
        return HANDED_ON

    def write_later(self, write: Change) -> None:
        """For a change that could not be made because the store did not answer."""
        self._writes.appendleft(write)

    def queued(self) -> list[Item]:
        """What waits in mailboxes, for changes that need an empty queue."""
        return list(self._mail)

    def _fill(self) -> None:
        while self._writes and not self._closed:
            if not self.staged.batch.empty:
                # A change may refuse itself halfway: nothing may share its commit before it.
                return
            changes.perform(self, self._writes.popleft())
        while self._progress and not self._closed:
            progress.note(self, self._progress.popleft())
        while self._mail and not self._closed:
            item = self._mail.take()
            if not admission.admit(self, item):
                # The run must be reloaded, and part of it is not durable yet: commit first.
                self._mail.put_back(item)
                return

    @property
    def _closed(self) -> bool:
        """Whether the batch at hand takes no more."""
        return self.staged.full(self.limits) or (self._apart > 0 and self.staged.holds > 0)

    # --- commit ---

    def _commit(self) -> None:
        self._post_leftovers()
        try:
            self.store.commit(self.staged.batch)
        except (OwnershipLost, AppendConflict):
            # Somebody else owns the store now. Nothing of ours was written, and nothing more will be.
            raise
        except ValueRefused as error:
            self._single_out(error)
            return
        except TreadleError as error:
            self._rollback(error)
            return
        except Exception as error:
            self._single_out(error)
            return
        self._publish()

    def _post_leftovers(self) -> None:
        """Messages between runs that did not fit into this batch become inbox rows with it."""
        for item in self._mail.made():
            if item.message is not None and item.inbox is None:
                item.inbox = item.message
                self.staged.batch.inbox.append((item.inbox, message_to_bytes(item)))

    def _publish(self) -> None:
        staged = self.staged
        if self._warned:
            self._warned = False
            log.warning("the store takes commits again, after %d that it did not", self._failures)
        self._failures, self._apart = 0, max(0, self._apart - 1)
        self._intake.reading.update(item.inbox for item in self._mail.made() if item.inbox is not None)
        self._mail.keep_made()
        self._intake.reading.difference_update(staged.batch.inbox_done)
        self._intake.firing.difference_update(staged.batch.timers_done)
        self.registry.stored.update(row.digest for row in staged.batch.definitions)
        self.registry.renamed(staged.batch.versions)
        self._intake.handed_out(staged.dispatched)
        self.next_batch()
        if staged.revoked:
            self._port.revoke(staged.revoked)
        if staged.news:
            # Before the work: an observer hears of a call before it is made.
            self._port.publish_news(list(staged.news.values()))
        if staged.dispatched:
            self._port.dispatch(staged.dispatched)
        if staged.answers:
            self._port.answer(staged.answers)
        self.hot.evict()

    def next_batch(self) -> None:
        """Begins an empty batch; what the last one held is done, or is put back by whoever calls."""
        self.staged = Staged(self.staged.number + 1)
        self.blobs.staged.clear()

    def _rollback(self, error: TreadleError) -> None:
        """The store did not take the commit. Callers from outside are told; what has happened outside
        is kept and tried again."""
        self._undo(error)
        self._retry_at_ns = self.clock.now_ns() + RETRY_AFTER_NS
        self._failures += 1
        if (self._mail or self._progress) and (not self._warned or self._failures % WARN_EVERY == 0):
            self._warned = True
            log.warning(
                "%s. What has happened is kept, and tried again until the store takes it", error.message
            )
        if isinstance(error, StoreUnavailable) and self._failures > FAILURES_MAX:
            # Room comes back and locks are freed, but this is something else: stop, and say what.
            raise error

    def _undo(self, error: TreadleError, *, told: bool = True, but: object = None) -> None:
        """The batch left no trace: forget every touched run, put the events back in order. Callers are
        told the error, or go on waiting; `but` is left out."""
        staged = self.staged
        answers: list[tuple[Ack, Any, TreadleError | None]] = []
        self.hot.drop_all()
        # Made by a step or a change of this batch: made again with it; who waits for one is told.
        derived = [item for item in (*self._mail, *staged.taken) if item.derived]
        answers += [(item.ack, None, error) for item in derived if item.ack is not None]
        handed = {id(item): operate for operate, item in staged.handed}
        self._mail.discard(lambda item: item.derived or id(item) in handed)
        for item in reversed(staged.taken):
            if item.derived or id(item) in handed:
                continue
            if told and item.ack is not None:
                answers.append((item.ack, None, error))
            else:
                self._mail.post(item, front=True)
        performed = [*staged.writes, *(op for op, item in staged.handed if but not in (op, item))]
        if told:
            answers += [(write.ack, None, error) for write in performed if write.ack is not None]
        else:  # what came in a message is read again
            mine = [write for write in performed if isinstance(write, Write) or write.inbox is None]
            self._writes.extendleft(reversed(mine))
        self._progress.extendleft(reversed(staged.progress))
        self._intake.undo(staged)
        self.next_batch()
        if answers:
            self._port.answer(answers)

    def _single_out(self, error: Exception) -> None:
        """Something that nobody foresaw, on account of one of those in this batch. Nothing of it is
        durable, so all go back and are tried one by one; the one that fails alone is turned away, and
        the others go on."""
        staged = self.staged
        if self._expelling or staged.vacant:
            raise error
        self._apart = staged.holds
        culprit, read = staged.release(), list(staged.batch.inbox_done)
        refused = isolation.known(error)
        self._undo(refused, told=False, but=culprit)
        if self._apart <= 1:
            self._expelling = True
            isolation.expel(self, culprit, refused, read)
            self._commit()
            self._expelling = False

    # --- answers, refusals, diagnostics ---

    def settle(self, asked: Item | Change, value: Any, error: TreadleError | None) -> None:
        """Answers a command with the commit at hand."""
        if asked.ack is not None:
            self.staged.answers.append((asked.ack, value, error))
        if not isinstance(asked, Write) and asked.inbox is not None:
            self.dispose(asked.inbox, value, error)

    def dispose(self, key: str, value: Any, error: TreadleError | None) -> None:
        """A message is done with, and answered if somebody waits for that in another process."""
        self.staged.batch.inbox_done.append(key)
        if key.startswith(GUEST):
            self.staged.batch.replies.append((key, self.clock.now_ns(), reply_to_bytes(value, error)))

    def answer(self, item: Item, value: Any) -> None:
        self.settle(item, value, None)

    def reply(self, ack: Ack, value: Any, error: TreadleError | None) -> None:
        """Answers at once, for a caller who was waiting for several commits."""
        self._port.answer([(ack, value, error)])

    def refuse(self, item: Item, error: TreadleError) -> None:
        """Nothing changes; whoever asked is told, and a line stays in the diagnostics."""
        kind = item.event.kind if item.event is not None else None
        value = error_of(error)
        self.diagnose(item.run, "refused", {"event": kind, "error": value})
        self.settle(item, None, error)
        if item.submission is not None:
            self.remember(item.submission, {"error": value})
        effects.refused(self, item, value)

    def diagnose(self, run: str, code: str, body: dict[str, Any]) -> None:
        self.staged.batch.diagnostics.append((run, self.clock.now_ns(), code, encode(body)))

    def note_stale(self, hot: Hot, item: Item, code: str, body: dict[str, Any]) -> None:
        state = hot.state
        self.diagnose(item.run, code, body)
        if not (state.ended and hot.machine.last_event_closes):
            self.show(hot, {"type": "stale", "code": code, **body})
        self.answer(item, {"run": item.run, "seq": state.seq, "status": state.status, "stale": True})

    def quarantine(self, item: Item, error: TreadleError) -> None:
        """A run that cannot be loaded is left as it is; its open work stays open."""
        if item.run not in self._unreadable:
            self._unreadable[item.run] = error
            undecided.note(self, item.run, error)
        if item.inbox is not None and item.inbox.startswith(GUEST):
            self.refuse(item, error)
        elif item.ack is not None:
            self.staged.answers.append((item.ack, None, error))

    def raise_if_unreadable(self, run: str) -> None:
        if run in self._unreadable:
            raise self._unreadable[run]

    def readable(self) -> None:
        """Gives unreadable runs another chance, after what they need was registered."""
        self._unreadable.clear()

    def answered_before(self, item: Item) -> bool:
        assert item.submission is not None
        found = self.remembered(item.submission)
        if found is None:
            return False
        if "error" in found:
            self.settle(item, None, TreadleError.from_value(found["error"]))
        else:
            self.answer(item, {**found, "duplicate": True})
        return True

    def remembered(self, submission: tuple[str, str]) -> Value:
        """The answer of a submission id, if it has one."""
        return answer_of(lambda *id: self.staged.submitted.get(id) or self.store.submission(*id), *submission)

    def remember(self, submission: tuple[str, str], body: Value) -> None:
        """The durable answer of a submission id, written with what it answers."""
        self.staged.submitted[submission] = body
        self.staged.batch.submissions.append((*submission, self.clock.now_ns(), encode(body)))

    # --- what admission and effects stage ---

    def put_back(self, item: Item) -> None:
        """For an event that has to wait until the run has had what it owes itself."""
        self._mail.post(item, front=True)

    def owe(self, hot: Hot) -> None:
        """Events a run owes itself come before whatever else waits in its mailbox."""
        owed = hot.state.pending()
        if owed is None:
            return
        head = self._mail.head(hot.state.id)
        if head is None or head.event != owed:
            self._mail.post(Item(hot.state.id, owed, derived=True), front=True)

    def arm(self, due_ns: int) -> None:
        self._intake.arm(due_ns)

    def fired(self, intent: str) -> None:
        self._intake.firing.discard(intent)

    def stage_blobs(self, hot: Hot, blobs: dict[str, bytes]) -> None:
        batch = self.staged.batch
        for digest, body in blobs.items():
            batch.blobs[digest] = body
            self.blobs.staged[digest] = body
            batch.blob_refs.append((hot.no, digest))
            batch.bytes += len(body)

    def stage_snapshot(self, hot: Hot) -> None:
        body = snapshot(hot.state)
        self.staged.batch.snapshots.append((hot.no, hot.state.seq, body))
        self.staged.batch.bytes += len(body)

    def stage_rest(self, hot: Hot, *, moved: bool) -> None:
        """A cell that has come to rest is snapshotted, in place of its last snapshot, so that new code
        can be applied without the old one at hand. A large one only when it comes to rest."""
        state = hot.state
        if not moved and state.snapshot_bytes > REST_BYTES_MAX:
            return
        last = state.seq - state.tail_records
        self.stage_snapshot(hot)
        if last > 1:
            self.staged.batch.snapshots_done.append((hot.no, last))

    def show(self, hot: Hot, event: dict[str, Any]) -> None:
        """An event beside the journal: numbered and visible, decided on by nobody."""
        hot.event_no += 1
        hot.batch = self.staged.number
        now = self.clock.now_ns()
        self.staged.batch.frames.append((hot.no, hot.event_no, now, encode(event)))
        self.tell(hot, [event], hot.event_no, hot.state.seq, now)

    def tell(self, hot: Hot, events: list[dict[str, Any]], first_no: int, seq: int, at_ns: int) -> None:
        state = hot.state
        # An end is always told: somebody may begin to wait for it before it is durable.
        if not (wanted := self._port.wants_news(state.id, state.ended)) and not state.ended:
            return
        news = self.staged.news.get(state.id)
        told = progress.numbered(events, first_no, seq, at_ns) if wanted else []
        earlier = news.events if news is not None else []
        self.staged.news[state.id] = News(state.id, state.status, state.ended, earlier + told)

    def adopt(self, hot: Hot, step: Step) -> None:
        """Takes in a run that was made by other means than an event: a fork."""
        self.hot.add(hot)
        admission.record(self, hot, step, Own(hot.state.id, None), forked=True)
