"""Everything that belongs to one commit: the rows it writes, and what may happen once it is durable.

`Staged` is that as a value; `Staging` is the one under way, and how rows of a run get into it. `Answers` is what those
are told who asked for something, with the commit that decides it: a caller in this process gets its answer after the
commit; one in another process finds it as a row of that same commit. A refusal changes nothing, and leaves a line in the
diagnostics. The answer of a submission id stays, with its run. `Numbers` are those of runs and tasks, taken from the
store in blocks: several cores on one store never give the same.

Nothing here decides anything about a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.history import snapshot
from treadle.kernel.limits import Limits
from treadle.kernel.model import TERMINAL, OpenIntent, Receipt, Signal
from treadle.kernel.run import error_of
from treadle.kernel.values import Value, encode
from treadle.store.rows import GUEST, Batch, DefinitionRow, Numbered, TaskRow, beside_records

from .commands import SHARED, AuditEntry, Deliver, Operate, Progress, audit_row, reply_to_bytes
from .hot import BlobCache, Expected, Hot
from .mail import Mail
from .narrative import numbered
from .own_changes import Change, OwnChange
from .ports import Ack, Answer, Clock, News, Work
from .shards import Held

if TYPE_CHECKING:
    from treadle.store.protocol import Reads, Store

    from .ports import Port


# A cell that has come to rest with a larger snapshot keeps it for a while.
REST_BYTES_MAX = 4096


class RunTurn(msgspec.Struct):
    """A run began, ended or stalled."""

    run: str
    workflow: str
    seq: int
    # How it ended, or that it stalled; None if it goes on.
    status: str | None
    # The trace that it was started with, as it was given.
    traceparent: str | None = None


class Closed(msgspec.Struct):
    """An intent is not open any more."""

    intent: OpenIntent
    status: str
    at_ns: int


class Staged(msgspec.Struct):
    number: int
    batch: Batch = msgspec.field(default_factory=Batch)
    # What the commit holds, to be put back if it fails.
    taken: list[Deliver] = []
    progress: list[Progress] = []
    writes: list[Change] = []
    # Operations that an event answers in their place, with that event.
    handed: list[tuple[Operate, Deliver]] = []
    # What follows from it, to be done if it does not.
    answers: list[Answer] = []
    # Messages to runs elsewhere whose answers somebody here waits for, by their keys.
    asked: list[tuple[str, Ack]] = []
    dispatched: list[Work] = []
    # Work that may be begun before the commit: what is to be handed out, and the intents of it that are open.
    eager: list[Work] = []
    ahead: set[str] = set()
    # Whether this commit waits for some of it.
    held: bool = False
    # Whether something has happened outside of which this commit tells.
    firm: bool = False
    revoked: list[str] = []
    news: dict[str, News] = {}
    # What is counted (`meter.py`).
    turns: list[RunTurn] = []
    closed: list[Closed] = []
    # Runs whose turn comes soon, read together; for as long as nothing of them is changed.
    expected: Expected = msgspec.field(default_factory=Expected)
    # What callers' definitions mean by names of workflows, looked up once; for as long as nothing of this commit is durable.
    named: dict[tuple[str, str], DefinitionRow] = {}
    # Definitions whose runs take no events while it is made.
    barring: set[str] = set()
    # Rows of tasks as they are with it, for those that it has asked for.
    tasks: dict[str, TaskRow] = {}
    # Runs that turned out not to be decidable, and what was kept for such: keys of messages.
    undecided: list[str] = []
    kept: list[str] = []
    # Submissions answered in this commit: (scope, id) -> answer.
    submitted: dict[tuple[str, str], Value] = {}

    @property
    def empty(self) -> bool:
        # Most have records, and the others most often answers: seen at once.
        seen = self.batch.records or self.answers or self.dispatched or self.revoked or self.writes
        return not seen and not any(beside_records(self.batch))

    @property
    def untouched(self) -> bool:
        """Whether nothing is in it that a change could leave halfway."""
        batch = self.batch
        return not (batch.records or self.handed or any(beside_records(batch)))

    def full(self, limits: Limits) -> bool:
        # Runs go in a commit to themselves: an event would bring one back into memory that is gone after it.
        return (
            len(self.batch.records) >= limits.batch_records
            or self.batch.bytes >= limits.batch_bytes
            or bool(self.batch.runs_removed)
        )

    @property
    def may_be_built_on(self) -> bool:
        """Whether events can be decided on top of it before it is durable: changes may have effects of their own."""
        return not (self.writes or self.handed or self.batch.runs_removed)

    def unchanged(self) -> Expected:
        """What was read of runs that it does not change: as good for a commit that is built on it."""
        expected = self.expected
        if expected.cold:
            for touched in (*self.taken, *self.progress):
                expected.cold.pop(touched.run, None)
        return expected

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for this commit, or something that follows from it."""
        return bool(
            self.firm
            or self.answers
            or self.asked
            or self.dispatched
            or self.revoked
            or (self.news and any(news.ended for news in self.news.values()))
        )

    @property
    def holds(self) -> int:
        """How many came from outside; what they made here does not count."""
        taken = sum(not item.derived for item in self.taken)
        return len(self.writes) + len(self.progress) + taken + len(self._not_taken())

    def _not_taken(self) -> list[Operate]:
        """Operations whose event has not had its turn."""
        taken = {id(item) for item in self.taken}
        return [operate for operate, item in self.handed if id(item) not in taken]

    @property
    def vacant(self) -> bool:
        """Whether nobody in this batch could be to blame for it."""
        return not (self.taken or self.progress or self.writes or self.handed or self.batch.inbox_done)

    def release(self) -> Deliver | Change | Progress | None:
        """The only one that this batch holds, taken out of it; None if it holds several, or none."""
        if self.holds != 1:
            return None
        if self.writes:
            return self.writes.pop()
        if self.progress:
            return self.progress.pop()
        if waiting := self._not_taken():
            return waiting[0]
        found = next(item for item in self.taken if not item.derived)
        self.taken = [item for item in self.taken if item is not found]
        return found


class Staging:
    """The commit under way."""

    def __init__(self, blobs: BlobCache, held: Held, port: Port, *, clock: Clock, limits: Limits) -> None:
        self._blobs = blobs
        self.held = held
        self._clock = clock
        self._audience, self._wants_news = port.audience, port.wants_news
        self._limits = limits
        self.staged = Staged(1)
        self.batch = self.staged.batch
        # How many changes were made so far, of those that do more than hand an event on.
        self.changes = 0

    def begin(self) -> Staged:
        """Begins an empty commit; gives the last one back."""
        last = self.staged
        self.staged = Staged(last.number + 1)
        self.batch = self.staged.batch
        if self._blobs.staged:
            self._blobs.staged.clear()
        return last

    def go_back_to(self, staged: Staged) -> None:
        """A commit that was set aside is the one at hand again."""
        self.staged, self.batch = staged, staged.batch

    def touch(self, hot: Hot) -> None:
        """The commit changes this run: it holds only with the run's shard, and without it the run is loaded
        again."""
        hot.batch = self.staged.number
        if self.held.several:
            self.batch.shards.add(hot.shard)

    def belongs(self, run: str) -> None:
        """The commit decides something for a run, or, with "", for the whole store: it holds only with that
        shard. Where there is one shard, every commit does."""
        if self.held.several:
            self.batch.shards.add(self.held.shard_of(run))

    def diagnose(self, run: str, code: str, body: dict[str, Value]) -> None:
        self.batch.diagnostics.append((run, self._clock.now_ns(), code, encode(body)))

    def hold(self, hot: Hot, blobs: dict[str, bytes]) -> None:
        """Writes payloads that a run refers to from now on."""
        batch = self.batch
        for digest, body in blobs.items():
            batch.blobs[digest] = body
            self._blobs.staged[digest] = body
            batch.blob_refs.append((hot.no, digest))
            batch.bytes += len(body)

    def snapshot(self, hot: Hot) -> None:
        self.touch(hot)
        body = snapshot(hot.state)
        self.batch.snapshots.append((hot.no, hot.state.seq, body))
        self.batch.bytes += len(body)

    def rest(self, hot: Hot, *, moved: bool) -> None:
        """A cell that has come to rest is snapshotted, in place of its last snapshot, so that new code
        can be applied without the old one at hand. A large one only when it comes to rest."""
        state = hot.state
        if not moved and state.snapshot_bytes > REST_BYTES_MAX:
            return
        last = state.seq - state.tail_records
        self.snapshot(hot)
        if last > 1:
            self.batch.snapshots_done.append((hot.no, last))

    def show(self, hot: Hot, event: dict[str, Value]) -> None:
        """An event beside the journal: numbered and visible, decided on by nobody."""
        hot.event_no += 1
        self.touch(hot)
        now = self._clock.now_ns()
        self.batch.frames.append((hot.no, hot.event_no, now, encode(event)))
        self.tell(hot, [event], hot.event_no, hot.state.seq, now)

    def tell(self, hot: Hot, events: list[dict[str, Value]], first_no: int, seq: int, at_ns: int) -> None:
        """Events for those who watch the run."""
        state = hot.state
        ended = state.status in TERMINAL
        # An end is always told: somebody may begin to wait for it before it is durable.
        wanted = self._audience.anybody and self._wants_news(state.id, ended)
        if not wanted and not ended:
            return
        news = self.staged.news.get(state.id)
        told = numbered(events, first_no, seq, at_ns) if wanted else []
        earlier = news.events if news is not None else []
        self.staged.news[state.id] = News(
            state.id, state.status if ended else state.shown, ended, earlier + told, hot.no
        )


class Answers:
    """What those are told who asked for something."""

    def __init__(self, staging: Staging, mail: Mail, reads: Reads, *, clock: Clock) -> None:
        self._staging = staging
        self._mail = mail
        self._reads = reads
        self._clock = clock

    def settle(self, asked: Deliver | Change, value: object, error: TreadleError | None) -> None:
        """Answers a command with the commit at hand, which also says who did it."""
        if isinstance(asked, OwnChange):
            if asked.ack is not None:
                self.tell(asked.ack, value, error)
            return
        if asked.entry is not None:
            self.write_down(asked.entry, value, error)
        message = asked.inbox
        if asked.ack is not None:
            self.tell(asked.ack, value, error)
            if message is not None:
                # Who waits for its answer is here, and needs no row.
                self._staging.batch.inbox_done.append(message)
        elif message is not None:
            self.dispose(message, value, error)

    def write_down(self, entry: AuditEntry, value: object, error: TreadleError | None) -> None:
        self._staging.batch.audit.append(audit_row(entry, self._clock.now_ns(), value, error))

    def tell(self, ack: Ack, value: object, error: TreadleError | None) -> None:
        self._staging.staged.answers.append((ack, value, error))

    def dispose(self, key: str, value: object, error: TreadleError | None) -> None:
        """A message is done with, and answered if somebody waits for that in another process."""
        batch = self._staging.batch
        batch.inbox_done.append(key)
        if key.startswith(GUEST):
            batch.replies.append((key, self._clock.now_ns(), reply_to_bytes(value, error)))

    def refuse(self, item: Deliver, error: TreadleError) -> None:
        """Nothing changes; whoever asked is told, be it the run that wanted a child."""
        kind = item.event.kind if item.event is not None else None
        value = error_of(error)
        self._staging.diagnose(item.run, "refused", {"event": kind, "error": value})
        self.settle(item, None, error)
        # A signal that was refused was none: under its key it is judged anew, when its run is there or has come that far.
        if item.submission is not None and not isinstance(item.event, Signal):
            self.remember(item.submission, {"error": value})
        if item.reply is not None:
            run, intent = item.reply
            receipt = Receipt(intent=intent, status="error", error=value)
            self._mail.send(run, receipt, f"refused:{intent}")

    def stale(self, hot: Hot, item: Deliver, code: str, body: dict[str, Value]) -> None:
        """It came too late, or twice: noted, shown, and answered with where the run is."""
        state = hot.state
        self.note_stale(hot, code, body)
        value = {"run": item.run, "seq": state.seq, "status": state.status, "stale": True}
        self.settle(item, value, None)

    def note_stale(self, hot: Hot, code: str, body: dict[str, Value]) -> None:
        """Kept among the diagnostics, which are counted, and shown among the run's events."""
        state = hot.state
        self._staging.diagnose(state.id, code, body)
        if not (state.ended and hot.machine.traits.last_event_closes):
            self._staging.show(hot, {"type": "stale", "code": code, **body})

    def given_before(self, item: Deliver) -> bool:
        """Answers a submission that was answered before; False if it is new."""
        assert item.submission is not None
        found = self.remembered(item.submission)
        if found is None:
            return False
        if item.derived or (item.inbox is not None and SHARED in item.inbox):
            # An operation that told several runs is performed again by whoever takes over: who asked was written down then.
            item.entry = None
        if "error" in found:
            self.settle(item, None, TreadleError.from_value(found["error"]))
        else:
            self.settle(item, {**found, "duplicate": True}, None)
        return True

    def remembered(self, submission: tuple[str, str]) -> Value:
        """The answer of a submission id, if it has one."""
        submitted = self._staging.staged.submitted
        return answer_of(lambda *id: submitted.get(id) or self._reads.submission(*id), *submission)

    def remember(self, submission: tuple[str, str], body: Value) -> None:
        """The durable answer of a submission id, written with what it answers."""
        self._staging.staged.submitted[submission] = body
        self._staging.batch.submissions.append((*submission, self._clock.now_ns(), encode(body)))


def answer_of(find: Callable[[str, str], Value], scope: str, id: str) -> Value:
    """The durable answer of a submission id. One that went to several runs has a refusal for its answer
    if one of them refused it."""
    found = find(scope, id)
    each = {run: (find(f"run:{run}", id) or {}).get("error") for run in (found or {}).get("runs", ())}
    refusal = refusal_of(each)
    return found if refusal is None else {"error": refusal}


def refusal_of(each: Mapping[str, dict[str, Value] | None]) -> dict[str, Value] | None:
    """The error of an event that went to several runs: the first refusal, with what each of them answered
    (None: it took the event) in `details["deliveries"]`. None if nobody refused it."""
    first = next((error for error in each.values() if error is not None), None)
    if first is None or len(each) == 1:
        return first
    told = [{"run": run, "error": error} for run, error in each.items()]
    return {**first, "details": {**first["details"], "deliveries": told}}


BLOCK: Final = 64


class Numbers:
    """The numbers of new runs and tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: Iterator[int] = iter(())
        self._tasks: Iterator[int] = iter(())

    def next_run(self) -> int:
        if (number := next(self._runs, None)) is None:
            self._runs = self._block("run")
            number = next(self._runs)
        return number

    def next_task(self) -> int:
        if (number := next(self._tasks, None)) is None:
            self._tasks = self._block("task")
            number = next(self._tasks)
        return number

    def _block(self, kind: Numbered) -> Iterator[int]:
        return iter(self._store.reserve(kind, BLOCK))
