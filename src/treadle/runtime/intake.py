"""What comes to the core, on the thread that turns it: commands, and what comes by itself.

A command goes to whoever decides it (`Entrance`), here or elsewhere: events to their run's mailbox, changes to theirs,
frames and checkpoints to `ProgressQueue`, which puts them into the store: rows beside the journal, written behind.

By itself comes (`Intake`) work left by a crash, other processes' messages (`Inbox`), due timers, schedules and places in
line. All are found through indexes, a page at a time, so that neither a million sleeping runs nor a long inbox costs memory
or delays the rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import Frame
from treadle.kernel.roles import StreamingMachine
from treadle.kernel.run import error_of
from treadle.kernel.values import encode
from treadle.store.rows import Message

from .changes import Changes
from .commands import (
    LATE,
    CheckpointSaved,
    Command,
    Deliver,
    FrameSent,
    Inspect,
    Operate,
    Progress,
    message_from_bytes,
)
from .fetching import Fetching, NotAtHand
from .hot import Hot, HotRuns
from .isolation import known
from .lines import Lines
from .mail import Mail, unusable
from .narrative import frame_event
from .ports import Answer
from .recovery import Recovery
from .schedules_due import SchedulesDue
from .shards import HOME, Held
from .staging import Answers, Staged, Staging
from .timers import Timers

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .commands import Elsewhere
    from .ports import Port


log = logging.getLogger("treadle.core")


class Entrance:
    """Where commands come in."""

    def __init__(
        self,
        port: Port,
        held: Held,
        elsewhere: Elsewhere,
        changes: Changes,
        progress: ProgressQueue,
        mail: Mail,
    ) -> None:
        self._port = port
        self._held = held
        self._elsewhere = elsewhere
        self._changes = changes
        self._progress = progress
        self._mail = mail

    def accept(self, command: Command | None) -> None:
        """Takes a command in."""
        if command is None:
            return
        try:
            if type(command) is Deliver or type(command) is Operate:
                if (refusal := unusable(command)) is not None:
                    if command.ack is not None:
                        self._port.answer([(command.ack, None, refusal)])
                elif self._held.several and not self.is_here(command):
                    self._elsewhere.forward([command])
                elif isinstance(command, Operate):
                    self._changes.add(command)
                else:
                    self._mail.post(command)
            elif type(command) is Inspect:
                self._changes.add(command)
            else:
                assert isinstance(command, FrameSent | CheckpointSaved)
                if self._held.several and not self.is_here(command):
                    self._port.answer(stale([command]))
                else:
                    self._progress.add(command)
        except Exception as error:
            # Nothing of it is anywhere.
            log.error("a command was turned away", exc_info=error)
            if not isinstance(command, FrameSent) and command.ack is not None:
                self._port.answer([(command.ack, None, known(error))])

    def is_here(self, command: Deliver | Operate | Progress) -> bool:
        """Whether something is decided here: it lives on a shard that is ours."""
        return not self._held.several or self._held.holds(
            command.home if isinstance(command, Operate) else command.run
        )


class ProgressQueue:
    """Frames and checkpoints on their way into the store."""

    def __init__(
        self, hot: HotRuns, staging: Staging, answers: Answers, mail: Mail, fetching: Fetching
    ) -> None:
        self._hot = hot
        self._staging = staging
        self._answers = answers
        self._mail = mail
        self._fetching = fetching
        self.waiting: deque[Progress] = deque()
        # Of runs that take nothing until their code is there.
        self._aside: list[Progress] = []

    def add(self, progress: Progress) -> None:
        hot = self._hot.peek(progress.run)
        if isinstance(progress, FrameSent) and progress.type != LATE and hot and _wants_frames(hot):
            # An event of the run like any other: it keeps its place before the receipt.
            self._mail.post(_as_event(progress))
        else:
            self.waiting.append(progress)

    def drop_foreign(self, held: Held) -> list[Answer]:
        """Shards were lost: what those are told who wait for a checkpoint there."""
        self.let_in()
        foreign = [progress for progress in self.waiting if not held.holds(progress.run)]
        self.waiting = deque(progress for progress in self.waiting if held.holds(progress.run))
        return stale(foreign)

    def let_in(self) -> None:
        """What was put aside came before all that waits."""
        self.put_back(self._aside)
        self._aside.clear()

    def put_back(self, progress: Sequence[Progress]) -> None:
        self.waiting.extendleft(reversed(progress))

    def stage_next(self) -> None:
        """Stages what an intent's work has come to; of an intent that is not open any more, nothing."""
        progress = self.waiting.popleft()
        self._staging.staged.progress.append(progress)
        self._staging.belongs(progress.run)
        try:
            hot = self._hot.get(progress.run)
        except NotAtHand as lacking:
            self._put_aside(progress, lacking)
            return
        except PASSING:
            raise
        except Exception:  # a run that cannot be loaded: its events say so, its progress can wait
            hot = None
        if hot is None or progress.intent not in hot.state.open:
            self._note_late(hot, progress)
        elif isinstance(progress, FrameSent):
            if progress.type == LATE:
                return  # its work is in other hands now, and that of these hands is no matter
            if _wants_frames(hot):
                self._mail.post_frame(_as_event(progress), progress.intent)
            else:
                self._staging.show(hot, frame_event(progress.type, progress.data))
        else:
            self._save(hot, progress)

    def _put_aside(self, progress: Progress, lacking: NotAtHand) -> None:
        """The receipt of its work waits with it."""
        self._staging.staged.progress.pop()
        self._aside.append(progress)
        lacking.run = progress.run
        self._fetching.wait_for(lacking)

    def _note_late(self, hot: Hot | None, progress: Progress) -> None:
        if isinstance(progress, CheckpointSaved):
            if progress.ack is not None:
                self._answers.tell(progress.ack, {"stale": True}, None)
        elif hot is not None and progress.type == LATE:
            self._answers.note_stale(hot, "receipt.stale", {"intent": progress.intent})
        elif hot is not None:
            about = {"intent": progress.intent, "seq": progress.seq}
            self._staging.diagnose(progress.run, "stream.unknown_intent", about)

    def _save(self, hot: Hot, saved: CheckpointSaved) -> None:
        for event in saved.events:
            self._staging.show(hot, event)
        self._staging.touch(hot)
        self._staging.hold(hot, saved.blobs)
        self._staging.batch.checkpoints[saved.intent] = (hot.no, encode(saved.body))
        hot.checkpoints |= {saved.intent}
        if saved.ack is not None:
            self._answers.tell(saved.ack, {}, None)


def stale(progress: Sequence[Progress]) -> list[Answer]:
    """What those are told whose work is not wanted here any more."""
    saved = [one for one in progress if isinstance(one, CheckpointSaved)]
    return [(one.ack, {"stale": True}, None) for one in saved if one.ack is not None]


def _as_event(sent: FrameSent) -> Deliver:
    """For machines that decide on frames."""
    return Deliver(sent.run, Frame(intent=sent.intent, seq=sent.seq, type=sent.type, value=sent.data))


def _wants_frames(hot: Hot) -> bool:
    machine = hot.machine
    return isinstance(machine, StreamingMachine) and machine.wants_frames(hot.definition)


class Inbox:
    """Messages that others left for this core in the store, read a page at a time."""

    def __init__(
        self,
        reads: Reads,
        staging: Staging,
        answers: Answers,
        changes: Changes,
        mail: Mail,
        held: Held,
        limits: Limits,
    ) -> None:
        self._held = held
        self._reads = reads
        self._staging = staging
        self._answers = answers
        self._changes = changes
        self._mail = mail
        self._limits = limits
        # In a mailbox already; their rows go with the commit that decides them.
        self._reading: set[str] = set()
        # Whether there may be messages that nobody has read.
        self.dirty = True

    def read(self) -> None:
        """While it is dirty. What is being decided is read again with the rest: so a turn's worth of it comes first."""
        if self._has_enough():
            return
        found = self._reads.inbox(self._limits.inbox_per_turn + len(self._reading), self._held.chosen)
        rows = [row for row in found if row[0] not in self._reading]
        for key, body in rows:
            self._reading.add(key)
            try:
                command = message_from_bytes(body, key)
                if (unfit := unusable(command)) is not None:
                    raise unfit
            except TreadleError as error:
                about = {"key": key, "error": error_of(error)}
                self._staging.diagnose("", "inbox.unreadable", about)
                self._answers.dispose(key, None, error)
                continue
            home = command.home if isinstance(command, Operate) else command.run
            if not self._held.several or self._held.holds(home):
                self._take(command)
            else:
                self._pass_on(key, body, home)
        self.dirty = bool(rows)

    def _has_enough(self) -> bool:
        """Whether the next turn is full of messages as it is. What waits for its run's code, or until that is let in, is not
        counted: the others need not wait for that."""
        enough = self._limits.inbox_per_turn
        if len(self._reading) < enough:
            return False
        operations = (change for change in self._changes.waiting if isinstance(change, Operate))
        waiting: Iterator[Deliver | Operate] = chain(self._mail.next_ones(), operations)
        found = (asked for asked in waiting if asked.inbox is not None)
        return len(list(islice(found, enough))) == enough

    def _take(self, command: Deliver | Operate) -> None:
        if isinstance(command, Operate):
            self._changes.add(command)
        else:
            self._mail.post(command)

    def _pass_on(self, key: str, body: bytes, home: str) -> None:
        """It was written for another number of shards, or by who did not say for whom: it goes where it belongs."""
        self._staging.batch.inbox_done.append(key)
        self._staging.batch.inbox.append(Message(key, body, home))

    def forget(self, keys: Iterable[str | None]) -> None:
        """They are in no mailbox any more."""
        self._reading.difference_update(key for key in keys if key is not None)

    def committed(self, posted: Iterable[str], done: Iterable[str]) -> None:
        """`posted` are ours, in mailboxes or kept for later as well; `done` are gone."""
        self._reading.update(posted)
        self._reading.difference_update(done)

    def undo(self, staged: Staged) -> None:
        """Messages whose operation a failed commit held are read again; events are back in their
        mailboxes by themselves."""
        operated = {operate.inbox for operate, _ in staged.handed}
        operated |= {change.inbox for change in staged.writes if isinstance(change, Operate)}
        kept = {item.inbox for item in staged.taken} - operated
        again = operated | {key for key in staged.batch.inbox_done if key not in kept}
        self._reading.difference_update(key for key in again if key is not None)
        self.dirty = True


class Intake:
    """What comes by itself."""

    def __init__(
        self,
        recovery: Recovery,
        inbox: Inbox,
        timers: Timers,
        schedules: SchedulesDue,
        lines: Lines,
        mail: Mail,
    ) -> None:
        self._recovery = recovery
        self._inbox = inbox
        self._timers = timers
        self._schedules = schedules
        self._lines = lines
        self._mail = mail

    @property
    def busy(self) -> bool:
        return self._inbox.dirty or bool(self._recovery.left)

    def wakes_ns(self, *, time_alone: bool = False) -> int | None:
        """When `gather` finds something; 0 if at once, None if never. With `time_alone`, what time brings."""
        if (self._inbox.dirty or self._recovery.left) and not time_alone:
            return 0
        wakes = self._timers.next_due_ns
        # Asked twice a turn, and nearly always there is none of these.
        if (other := self._schedules.next_due_ns) is not None and (wakes is None or other < wakes):
            wakes = other
        if (other := self._lines.next_due_ns) is not None and (wakes is None or other < wakes):
            wakes = other
        if (other := self._mail.look_again_ns) is not None and (wakes is None or other < wakes):
            wakes = other
        return wakes

    def look(self) -> None:
        """Somebody may have left messages."""
        self._inbox.dirty = True

    def gain(self, shards: Collection[int]) -> None:
        """Shards came, with all that waits there."""
        self._recovery.gain(shards)
        self._inbox.dirty = True
        self._timers.look()
        if HOME in shards:
            self._schedules.gain()
        self._lines.look()

    def drop_foreign(self, shards: Iterable[int], asked: Iterable[Deliver | Operate]) -> None:
        """Shards went; `asked` waited for their runs."""
        self._recovery.drop_foreign(shards)
        self._inbox.forget(one.inbox for one in asked)
        self._timers.drop_foreign()
        if self._schedules.awaited:
            self._schedules.look()

    def gather(self, now_ns: int) -> None:
        """Has those look who may find something; nearly always that is one."""
        if self._recovery.left:
            self._recovery.go_on()
        if self._inbox.dirty:
            self._inbox.read()
        if _is_due(self._timers.next_due_ns, now_ns):
            self._timers.fire(now_ns)
        if _is_due(self._schedules.next_due_ns, now_ns):
            self._schedules.fire(now_ns)
        if _is_due(self._lines.next_due_ns, now_ns):
            self._lines.fire(now_ns)
        if _is_due(self._mail.look_again_ns, now_ns):
            self._mail.unbar_all()

    def committed(self, staged: Staged, posted: Collection[str]) -> None:
        batch = staged.batch
        if posted or batch.inbox_done or staged.kept:
            self._inbox.committed((*posted, *staged.kept), batch.inbox_done)
        if batch.timers_done:
            self._timers.committed(batch.timers_done)
        if batch.documents or (batch.runs_changed and self._schedules.awaited):
            self._schedules.committed(staged)
        if self._recovery.cares:
            self._recovery.committed(staged.dispatched)

    def undo(self, staged: Staged) -> None:
        self._recovery.undo()
        self._inbox.undo(staged)
        self._lines.look()


def _is_due(at_ns: int | None, now_ns: int) -> bool:
    return at_ns is not None and now_ns >= at_ns
