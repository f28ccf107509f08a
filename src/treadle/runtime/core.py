"""The core: mailbox, step, commit, next. One synchronous loop over one store.

It runs on the thread that owns the store's connection; the simulator calls `turn` by hand. It
promises: events of a run are admitted one at a time, in order; runs take turns, one event each;
nothing is answered, dispatched or shown before the commit that holds it; a commit that fails
leaves no trace, and its events are tried again in order.

It knows no dialect, no tool, no asyncio. What a step's intents set in motion is in `effects.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from treadle.kernel.errors import (
    AppendConflict,
    JournalCorrupt,
    KernelBug,
    OwnershipLost,
    ReplayDiffers,
    RunEnded,
    RunExists,
    RunNotFound,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    TreadleError,
    VersionMismatch,
)
from treadle.kernel.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HOT_RUNS_MAX,
    INBOX_PER_TURN_MAX,
    TIMERS_PER_TURN_MAX,
)
from treadle.kernel.model import (
    ENGINE_KINDS,
    REFUSABLE,
    Cancel,
    Event,
    Frame,
    Receipt,
    Rejected,
    Retry,
    Signal,
    Started,
)
from treadle.kernel.run import RunState, Step, advance, error_of, fault, snapshot
from treadle.kernel.values import Value, digest, encode
from treadle.lang.duration import instant_text
from treadle.store.protocol import Batch, RunRow, Store

from . import effects
from .hot import BlobCache, Hot, HotRuns, join_ids, open_work
from .messages import item_from_bytes, item_to_bytes
from .ports import Clock, Item, News, Port, Work
from .registry import Registry

RECOVER_PER_TURN = 250
RETRY_AFTER_NS = 200_000_000


class FrameSent(NamedTuple):
    run: str
    intent: str
    seq: int
    type: str
    data: dict[str, Any]


class CheckpointSaved(NamedTuple):
    run: str
    intent: str
    body: Value
    events: list[dict[str, Any]]
    blobs: dict[str, bytes]
    ack: Callable[[Any, TreadleError | None], None] | None


class Write(NamedTuple):
    """A change that is not an event of a run: deploy, claim, comment, fork, collect."""

    change: Callable[[Core], Any]
    ack: Callable[[Any, TreadleError | None], None] | None


# What a change returns when an event it posted answers in its place.
HANDED_ON = object()

Command = Item | FrameSent | CheckpointSaved | Write


class Core:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        port: Port,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        hot_max: int = HOT_RUNS_MAX,
    ) -> None:
        self.store = store
        self.registry = registry
        self.clock = clock
        self.entropy = entropy
        self.blobs = BlobCache(store)
        self.hot = HotRuns(store, registry, self.blobs, limit=hot_max)
        self.batch = Batch()
        self.dispatched: list[Work] = []
        self.revoked: list[str] = []
        self._port = port
        self._incoming: SimpleQueue[Command] = SimpleQueue()
        self._mail: dict[str, deque[Item]] = {}
        self._ready: deque[str] = deque()
        self._writes: deque[Write] = deque()
        self._progress: deque[FrameSent | CheckpointSaved] = deque()
        self._batch_no = 1
        self._taken: list[Item] = []
        self._kept: list[FrameSent | CheckpointSaved] = []
        self._answers: list[tuple[Any, Any, TreadleError | None]] = []
        self._news: dict[str, News] = {}
        self._submitted: dict[tuple[str, str], Value] = {}
        self._posted: dict[str, Item] = {}
        self._taken_writes: list[Write] = []
        self._firing: set[str] = set()
        self._inbox_seen: set[str] = set()
        self._unreadable: dict[str, TreadleError] = {}
        self._next_due_ns: int | None = 0
        self._inbox_dirty = True
        self._recovered_no: int | None = 0
        self._retry_at_ns = 0
        # Set by the composition root: performs operations that are no events of a run (tasks, deploys).
        self.operations: Callable[[Core, dict[str, Any], Any], Any] = _no_operations
        self.next_run_no = store.last_run_no() + 1
        self.next_task_no = store.last_task_no() + 1

    # --- from any thread ---

    def submit(self, command: Command) -> None:
        self._incoming.put(command)

    # --- the loop ---

    @property
    def recovering(self) -> bool:
        return self._recovered_no is not None

    def wait_ns(self) -> int | None:
        """How long nothing will happen by itself; None if for ever."""
        now = self.clock.now_ns()
        if self._ready or self._writes or self._progress or self.recovering or self._inbox_dirty:
            return max(0, self._retry_at_ns - now)
        return None if self._next_due_ns is None else max(0, self._next_due_ns - now, self._retry_at_ns - now)

    def take(self, timeout_s: float | None) -> None:
        """Waits for a command; the core thread's way to sleep."""
        try:
            self._accept(
                self._incoming.get(timeout=timeout_s) if timeout_s != 0 else self._incoming.get_nowait()
            )
        except Empty:
            return

    def poll(self) -> None:
        """Looks whether another process has written messages for us."""
        if self.store.changed():
            self._inbox_dirty = True

    def turn(self) -> bool:
        """One batch: gather what is ready, commit it, publish it. False if there was nothing."""
        now = self.clock.now_ns()
        if now < self._retry_at_ns:
            self._drain()
            return False
        self._drain()
        try:
            self._recover()
            self._read_inbox()
            self._fire_timers(now)
            self._fill_batch()
        except (StoreFull, StoreBusy, StoreUnavailable) as error:
            self._rollback(error)
            return True
        if self.batch.empty and not self._answers and not self.dispatched:
            self._reset_batch()
            return False
        self._commit()
        return True

    def _drain(self) -> None:
        try:
            while True:
                self._accept(self._incoming.get_nowait())
        except Empty:
            return

    def _accept(self, command: Command) -> None:
        if type(command) is Item:
            self.post(command)
        elif type(command) is Write:
            self._writes.append(command)
        else:
            assert isinstance(command, FrameSent | CheckpointSaved)
            self._progress.append(command)

    def post(self, item: Item, *, front: bool = False) -> None:
        """Puts an event into a run's mailbox and the run into the ring of ready ones."""
        if "op" in item.notes:
            self._writes.append(Write(lambda core: core.operate(item), item.ack))
            return
        box = self._mail.get(item.run)
        if box is None:
            box = self._mail[item.run] = deque()
            self._ready.append(item.run)
        if front:
            box.appendleft(item)
        else:
            box.append(item)

    def _full(self) -> bool:
        return len(self.batch.records) >= BATCH_RECORDS_MAX or self.batch.bytes >= BATCH_BYTES_MAX

    def _fill_batch(self) -> None:
        while self._writes and not self._full():
            if not self._write(self._writes.popleft()):
                return
        while self._progress and not self._full():
            self._note(self._progress.popleft())
        while self._ready and not self._full():
            run = self._ready.popleft()
            box = self._mail[run]
            item = box.popleft()
            if not self._process(item):
                # The run has uncommitted records and must be reloaded: commit first, then go on.
                box.appendleft(item)
                self._ready.appendleft(run)
                return
            if box:
                self._ready.append(run)
            else:
                del self._mail[run]

    # --- one event ---

    def _process(self, item: Item) -> bool:
        """Admits one event; False if the batch must be committed before it can be."""
        if item.submission is not None and self._answered_before(item):
            return True
        try:
            hot = self._find(item)
        except (ReplayDiffers, JournalCorrupt, AppendConflict) as error:
            return self._quarantine(item, error)
        except (StoreFull, StoreBusy, StoreUnavailable):
            self._taken.append(item)
            raise
        except TreadleError as error:
            # Its code or its definition is not at hand here; another engine may have it.
            return self._quarantine(item, error)
        self._taken.append(item)
        if hot is None:
            self.refuse(
                item, RunNotFound(f"there is no run {item.run!r}; `treadle list` shows what is there")
            )
            return True
        event = item.event
        if event is None:
            self._owe(hot)
            return True
        if self._stale(hot, item, event) or self._barred(hot, item, event):
            return True
        at_ns = self.clock.now_ns()
        if blobs := item.notes.get("blobs"):
            self.stage_blobs(hot, blobs)
        try:
            step = advance(hot.state, hot.machine, hot.definition, event, at_ns=at_ns, blobs=self.blobs)
        except (StoreFull, StoreBusy, StoreUnavailable):
            raise
        except Exception as error:
            return self._failed_step(hot, item, event, error, at_ns)
        self._record(hot, step, item)
        return True

    def _find(self, item: Item) -> Hot | None:
        hot = self.hot.peek(item.run)
        if hot is None:
            if item.run in self._unreadable:
                raise self._unreadable[item.run]
            hot = self.hot.get(item.run)
        if hot is None and item.create is not None:
            return self._create(item)
        return hot

    def _create(self, item: Item) -> Hot:
        assert item.create is not None
        new = item.create
        loaded = self.registry.load(new.definition)
        now = self.clock.now_ns()
        row = RunRow(
            no=self.next_run_no,
            id=item.run,
            dialect=new.dialect,
            workflow=new.workflow,
            version=new.version,
            definition=new.definition,
            cell_key=new.key,
            started_ns=now,
        )
        state = RunState(
            id=item.run,
            dialect=new.dialect,
            workflow=new.workflow,
            version=new.version,
            definition=new.definition,
            key=new.key,
        )
        self.next_run_no += 1
        hot = Hot(state, row.no, 0, loaded.machine, loaded.definition, row, set())
        self.hot.add(hot)
        if type(item.event) is not Started:
            # A cell comes to life with its first event.
            seed = self.entropy(16)
            started = Started(definition=new.definition, seed=seed, machine=loaded.machine.version)
            step = advance(state, loaded.machine, loaded.definition, started, at_ns=now, blobs=self.blobs)
            self._record(hot, step, Item(item.run, started, derived=True))
        return hot

    def _stale(self, hot: Hot, item: Item, event: Event) -> bool:
        """What settles an intent that is not open, or steers a run that has ended, changes nothing."""
        if isinstance(event, Receipt | Rejected | Frame):
            if event.intent in hot.state.open:
                return False
            self.note_stale(hot, item, "receipt.stale", {"intent": event.intent})
            return True
        if hot.state.ended and hot.machine.final and isinstance(event, Signal | Cancel):
            self.note_stale(hot, item, f"{event.kind}.stale", {"status": hot.state.status})
            return True
        return False

    def _barred(self, hot: Hot, item: Item, event: Event) -> bool:
        if type(event) is Started and hot.state.seq > 0:
            self._start_again(hot, item, event)
            return True
        if item.expected_version is not None and item.expected_version != hot.state.seq:
            expected, found = item.expected_version, hot.state.seq
            details = {"expected": expected, "found": found}
            self.refuse(
                item, VersionMismatch(f"{item.run} is at version {found}, not {expected}", details=details)
            )
            return True
        if hot.state.ended and hot.machine.final and not isinstance(event, Retry):
            self.refuse(
                item, RunEnded(f"{item.run} is {hot.state.status}; it takes no {event.kind} any more")
            )
            return True
        return False

    def _start_again(self, hot: Hot, item: Item, event: Started) -> None:
        """The same id again: the same run if definition and input are the same."""
        first = self.store.record(hot.no, 1)
        was = first.record()["event"] if first is not None else None
        # Not committed yet: it was started a moment ago, in this very batch.
        same = was is None or (
            was["definition"] == event.definition and digest(was.get("input")) == digest(event.input)
        )
        if not same:
            message = f"a run {item.run!r} exists with another definition or input; choose another id"
            self.refuse(item, RunExists(message))
            return
        self.answer(item, {"run": item.run, "existing": True})

    def _failed_step(self, hot: Hot, item: Item, event: Event, error: Exception, at_ns: int) -> bool:
        """A machine raised: its state may be half changed, so it is reloaded. An event from outside
        is refused; something that has happened is recorded as a fault."""
        self.hot.drop(item.run)
        if hot.batch == self._batch_no:
            self._taken.pop()
            return False
        if isinstance(event, REFUSABLE):
            known = error if isinstance(error, TreadleError) else TreadleError.from_value(error_of(error))
            self.refuse(item, known)
            return True
        again = self.hot.get(item.run)
        assert again is not None, "the run was there a moment ago"
        self._record(again, fault(again.state, event, error_of(error), at_ns=at_ns), item)
        return True

    def _record(self, hot: Hot, step: Step, item: Item) -> None:
        """Puts an admitted step into the batch, with all that follows from it."""
        state, batch = hot.state, self.batch
        inner = item.event.events if type(item.event) is Receipt else []
        first_no = hot.event_no + 1
        hot.event_no += len(inner) + len(step.events)
        hot.batch = self._batch_no
        opens = join_ids([i.id for i in step.opened if i.id in state.open])
        closes = join_ids([i.id for i in (step.settled, *step.cancelled) if i is not None])
        batch.records.append((hot.no, step.seq, hot.event_no, opens, closes, step.digest, step.body))
        batch.bytes += len(step.body)
        effects.apply(self, hot, step, item)
        self._write_row(hot, step)
        if state.wants_snapshot() or (step.seq == 1 and "forked" in item.notes):
            body = snapshot(state)
            batch.snapshots.append((hot.no, step.seq, body))
            batch.bytes += len(body)
        if self._port.wants_news(state.id):
            events = numbered(inner + step.events, first_no, step.seq, step.at_ns)
            self._tell(hot, events)
        self.answer(item, {"run": state.id, "seq": step.seq, "status": step.status})
        if item.submission is not None:
            self._remember(item.submission, {"run": state.id, "seq": step.seq})
        self._owe(hot)

    def _owe(self, hot: Hot) -> None:
        """Events a run owes itself come before whatever else waits in its mailbox."""
        owed = hot.state.pending()
        if owed is not None:
            box = self._mail.get(hot.state.id)
            if not (box and box[0].derived and box[0].event == owed):
                self.post(Item(hot.state.id, owed, derived=True), front=True)

    def _write_row(self, hot: Hot, step: Step) -> None:
        state, row = hot.state, hot.row
        working = state.working
        if not (
            step.status_changed
            or row.working != working
            or row.reference != state.reference
            or row.definition != state.definition
        ):
            return
        row.status, row.working, row.reference = state.status, working, state.reference
        row.definition, row.version, row.seq, row.updated_ns = (
            state.definition,
            state.version,
            step.seq,
            step.at_ns,
        )
        row.ended_ns, row.error = state.ended_ns, state.error
        row.retain_ns = None
        if state.ended_ns is not None and hot.machine.final:
            row.retain_ns = state.ended_ns + hot.machine.retention_ns(hot.definition)
        if step.seq == 1:
            row.parent, row.parent_intent = state.parent, state.parent_intent
            row.continued_from, row.started_ns = state.continued_from, state.started_ns
            self.batch.runs_new[row.no] = row
            if pending := self.registry.pending.get(state.definition):
                self.batch.definitions.append(pending)
        elif row.no not in self.batch.runs_new:
            self.batch.runs_changed[row.no] = row

    # --- answers, refusals, diagnostics ---

    def answer(self, item: Item, value: Any) -> None:
        if item.ack is not None:
            self._answers.append((item.ack, value, None))
        if item.inbox is not None:
            self.batch.inbox_done.append(item.inbox)

    def refuse(self, item: Item, error: TreadleError) -> None:
        """Nothing changes; whoever asked is told, and a line stays in the diagnostics."""
        self.diagnose(
            item.run, "refused", {"event": item.event.kind if item.event else None, "error": error.to_value()}
        )
        if item.ack is not None:
            self._answers.append((item.ack, None, error))
        if item.inbox is not None:
            self.batch.inbox_done.append(item.inbox)
        if item.submission is not None:
            self._remember(item.submission, {"error": error.to_value()})
        effects.refused(self, item, error)

    def diagnose(self, run: str, code: str, body: dict[str, Any]) -> None:
        self.batch.diagnostics.append((run, self.clock.now_ns(), code, encode(body)))

    def note_stale(self, hot: Hot, item: Item, code: str, body: dict[str, Any]) -> None:
        self.diagnose(item.run, code, body)
        self.show(hot, {"type": "stale", "code": code, **body})
        self.answer(item, {"run": item.run, "seq": hot.state.seq, "status": hot.state.status, "stale": True})

    def show(self, hot: Hot, event: dict[str, Any]) -> None:
        """An event beside the journal: numbered and visible, decided on by nobody."""
        hot.event_no += 1
        now = self.clock.now_ns()
        self.batch.frames.append((hot.no, hot.event_no, now, encode(event)))
        if self._port.wants_news(hot.state.id):
            self._tell(hot, numbered([event], hot.event_no, hot.state.seq, now))

    def _tell(self, hot: Hot, events: list[dict[str, Any]]) -> None:
        state = hot.state
        news = self._news.get(state.id)
        earlier = news.events if news is not None else []
        self._news[state.id] = News(state.id, state.status, state.ended, earlier + events)

    def _quarantine(self, item: Item, error: TreadleError) -> bool:
        """A run that cannot be loaded is left as it is; its open work stays open."""
        if item.run not in self._unreadable:
            self._unreadable[item.run] = error
            self.diagnose(item.run, "run.unreadable", {"error": error.to_value()})
        if item.ack is not None:
            self._answers.append((item.ack, None, error))
        return True

    def readable(self, run: str) -> None:
        """Gives a run another chance, after what it needs was registered."""
        self._unreadable.pop(run, None)

    def _answered_before(self, item: Item) -> bool:
        assert item.submission is not None
        found = self._submitted.get(item.submission)
        if found is None:
            found = self.store.submission(*item.submission)
        if found is None:
            return False
        if "error" in found and item.ack is not None:
            self._answers.append((item.ack, None, TreadleError.from_value(found["error"])))
            if item.inbox is not None:
                self.batch.inbox_done.append(item.inbox)
        else:
            self.answer(item, {**found, "duplicate": True})
        return True

    def _remember(self, submission: tuple[str, str], body: Value) -> None:
        self._submitted[submission] = body
        self.batch.submissions.append((*submission, self.clock.now_ns(), encode(body)))

    # --- writes that are not events, progress ---

    def _write(self, write: Write) -> bool:
        if not self.batch.empty:
            # A change of its own may refuse itself halfway; nothing else shares its commit before it.
            self._writes.appendleft(write)
            return False
        try:
            value = write.change(self)
        except TreadleError as error:
            # Nothing of it is kept but what it left in the diagnostics (a refusal is audited).
            noted, read = self.batch.diagnostics, self.batch.inbox_done
            self._reset_batch()
            self.batch.diagnostics, self.batch.inbox_done = noted, read
            if write.ack is not None:
                self._answers.append((write.ack, None, error))
            return True
        if write.ack is not None and value is not HANDED_ON:
            self._answers.append((write.ack, value, None))
        self._taken_writes.append(write)
        return True

    def operate(self, item: Item) -> Any:
        """An operation that came as data, because its sender may be another process."""
        if item.inbox is not None:
            self.batch.inbox_done.append(item.inbox)
        return self.operations(self, item.notes["op"], item.ack)

    def adopt(self, hot: Hot, step: Step, *, notes: dict[str, Any]) -> None:
        """Takes in a run that was made by other means than an event (a fork)."""
        self.hot.add(hot)
        self._record(hot, step, Item(hot.state.id, None, notes=notes))

    def _note(self, progress: FrameSent | CheckpointSaved) -> None:
        """Frames and checkpoints are rows beside the journal, written behind with the next batch."""
        try:
            hot = self.hot.get(progress.run)
        except TreadleError:
            hot = None
        intent = hot.state.open.get(progress.intent) if hot is not None else None
        if hot is None or intent is None:
            if isinstance(progress, CheckpointSaved) and progress.ack is not None:
                self._answers.append((progress.ack, {"stale": True}, None))
            if hot is not None and isinstance(progress, FrameSent):
                self.diagnose(
                    progress.run, "stream.unknown_intent", {"intent": progress.intent, "seq": progress.seq}
                )
            return
        self._kept.append(progress)
        if isinstance(progress, FrameSent):
            if hot.machine.wants_frames(hot.definition):
                frame = Frame(
                    intent=progress.intent, seq=progress.seq, type=progress.type, value=progress.data
                )
                self.post(Item(progress.run, frame))
                return
            self.show(hot, {"type": progress.type, **progress.data})
            return
        for event in progress.events:
            self.show(hot, event)
        self.stage_blobs(hot, progress.blobs)
        self.batch.checkpoints[progress.intent] = (hot.no, encode(progress.body))
        hot.checkpoints.add(progress.intent)
        if progress.ack is not None:
            self._answers.append((progress.ack, {}, None))

    def stage_blobs(self, hot: Hot, blobs: dict[str, bytes]) -> None:
        for digest_, body in blobs.items():
            self.batch.blobs[digest_] = body
            self.blobs.staged[digest_] = body
            self.batch.blob_refs.append((hot.no, digest_))
            self.batch.bytes += len(body)

    # --- time, other processes, recovery ---

    def _fire_timers(self, now: int) -> None:
        if self._next_due_ns is None or now < self._next_due_ns:
            return
        rows = self.store.timers_due(now, TIMERS_PER_TURN_MAX + len(self._firing))
        for row in rows:
            if row.intent in self._firing:
                continue
            self._firing.add(row.intent)
            if row.fires:
                self.post(Item(row.run_id, Receipt(intent=row.intent)))
            else:
                effects.deadline(self, row)
        self._next_due_ns = now + 1 if rows else self.store.timer_next()

    def arm(self, due_ns: int) -> None:
        if self._next_due_ns is None or due_ns < self._next_due_ns:
            self._next_due_ns = due_ns

    def fired(self, intent: str) -> None:
        self._firing.discard(intent)

    def _read_inbox(self) -> None:
        if not self._inbox_dirty:
            return
        rows = [
            row
            for row in self.store.inbox(INBOX_PER_TURN_MAX + len(self._inbox_seen))
            if row[0] not in self._inbox_seen
        ]
        for key, body in rows:
            self._inbox_seen.add(key)
            try:
                self.post(item_from_bytes(body, key))
            except (TreadleError, KeyError, TypeError, ValueError) as error:
                self.diagnose("", "inbox.unreadable", {"key": key, "error": str(error)})
                self.batch.inbox_done.append(key)
        self._inbox_dirty = bool(rows)

    def _recover(self) -> None:
        """Finds runs with open work through an index and hands it out again under the same ids."""
        if self._recovered_no is None:
            return
        rows = self.store.working(after_no=self._recovered_no, limit=RECOVER_PER_TURN)
        for row in rows:
            if self.hot.peek(row.id) is not None:
                continue
            worked = False
            open_ = open_work(row, self.store)
            checkpoints = self.store.checkpoints(row.no)
            options = self._options(row)
            for intent in open_.values():
                if intent.kind not in ENGINE_KINDS:
                    worked = True
                    self.dispatched.append(
                        Work(
                            row.id,
                            row.workflow,
                            row.dialect,
                            row.definition,
                            options,
                            intent,
                            self._loaded(row.definition),
                            checkpoints.get(intent.id),
                        )
                    )
            if not worked:
                self.post(Item(row.id, None))
        self._recovered_no = rows[-1].no if len(rows) == RECOVER_PER_TURN else None

    def _loaded(self, definition: str) -> Any:
        try:
            return self.registry.load(definition).definition
        except TreadleError:
            return None

    def _options(self, row: RunRow) -> dict[str, Any]:
        first = self.store.record(row.no, 1)
        return dict(first.record()["event"].get("options", {})) if first is not None else {}

    # --- commit ---

    def _commit(self) -> None:
        self._post_leftovers()
        try:
            self.store.commit(self.batch)
        except (OwnershipLost, AppendConflict):
            self._rollback(None)
            raise
        except TreadleError as error:
            self._rollback(error)
            return
        except KernelBug:
            raise
        self._publish()

    def _post_leftovers(self) -> None:
        """Messages between runs that did not fit into this batch become inbox rows with it."""
        for box in self._mail.values():
            for item in box:
                if (
                    item.derived
                    and item.inbox is None
                    and item.event is not None
                    and item.notes.get("message")
                ):
                    item.inbox = str(item.notes["message"])
                    self.batch.inbox.append((item.inbox, item_to_bytes(item)))
                    self._inbox_seen.add(item.inbox)
                    item.derived = False

    def _publish(self) -> None:
        done = self.batch
        self._inbox_seen.difference_update(done.inbox_done)
        self._firing.difference_update(done.timers_done)
        answers, works, revoked, news = self._answers, self.dispatched, self.revoked, self._news
        for row in done.runs_new.values():
            self.registry.pending.pop(row.definition, None)
        self._reset_batch()
        if revoked:
            self._port.revoke(revoked)
        if works:
            self._port.dispatch(works)
        if news:
            self._port.publish_news(list(news.values()))
        if answers:
            self._port.answer(answers)
        self.hot.evict()

    def _reset_batch(self) -> None:
        self.batch = Batch()
        self.dispatched, self.revoked = [], []
        self._answers, self._news, self._taken, self._kept = [], {}, [], []
        self._taken_writes = []
        self._submitted.clear()
        self.blobs.staged.clear()
        self._batch_no += 1

    def _rollback(self, error: TreadleError | None) -> None:
        """The commit failed and left no trace: forget every touched run, put the events back in
        order. Callers from outside are told when the store has no room; what has happened is kept."""
        taken, kept, writes = self._taken, self._kept, self._taken_writes
        answers: list[tuple[Any, Any, TreadleError | None]] = []
        self.hot.drop_all()
        for box in self._mail.values():
            for item in [item for item in box if item.derived]:
                box.remove(item)
        for run in [run for run, box in self._mail.items() if not box]:
            del self._mail[run]
            self._ready.remove(run)
        for item in reversed(taken):
            if item.derived:
                continue
            if error is not None and item.ack is not None and isinstance(item.event, REFUSABLE):
                answers.append((item.ack, None, error))
            else:
                self.post(item, front=True)
        for write in writes:
            if write.ack is not None and error is not None:
                answers.append((write.ack, None, error))
        self._progress.extendleft(reversed(kept))
        self._inbox_dirty = True
        self._reset_batch()
        self.next_run_no = self.store.last_run_no() + 1
        self.next_task_no = self.store.last_task_no() + 1
        self._retry_at_ns = self.clock.now_ns() + RETRY_AFTER_NS
        if answers:
            self._port.answer(answers)


def _no_operations(core: Core, operation: dict[str, Any], ack: Any) -> Any:
    raise TreadleError(f"no operation {operation.get('name')!r} is known", code="UNSUPPORTED", cls="user")


def numbered(events: list[dict[str, Any]], first_no: int, seq: int, at_ns: int) -> list[dict[str, Any]]:
    """Events as people see them: their own number, the time, the record they stand in."""
    at = instant_text(at_ns)
    return [{"seq": first_no + i, "at": at, "record": seq, **event} for i, event in enumerate(events)]
