"""Changes that are no events of a run: deploy, claim, comment, fork, collect, a tick. Each has its commit to
itself, so that one which refuses itself halfway takes nothing else with it. Those that only hand an event on, or refuse, share one:
a thousand tasks are completed by a few commits.

What a change decides, the row of the message that asked for it and the answer are one commit. An operation
that is answered by an event (a task is completed by a receipt) leaves its message to that event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.kernel.errors import PASSING, TreadleError, Unsupported
from treadle.kernel.run import Step
from treadle.kernel.values import Value
from treadle.store.rows import Batch, TaskRow

from . import commands, lines, recovery
from .admission import Admission
from .board import Board
from .commands import Deliver, Inspect, Operate, View, only_hands_on
from .fetching import Fetching, NotAtHand
from .gathering import Combine, Gatherings
from .hot import BlobCache, Hot, HotRuns
from .isolation import known
from .lines import Lines
from .mail import Mail
from .own_changes import HANDED_ON, Change
from .ports import Clock
from .recovery import Recovery
from .registry import Registry
from .shards import Held
from .staging import Answers, Numbers, Staged, Staging
from .undecided import Undecided

if TYPE_CHECKING:
    from treadle.store.protocol import Store

    from .desk import Operations
    from .ports import Port


class CoreDesk(msgspec.Struct, frozen=True):
    """The desk (`desk.py`) at which a core lets changes be made."""

    store: Store
    registry: Registry
    clock: Clock
    entropy: Callable[[int], bytes]
    hot: HotRuns
    blobs: BlobCache
    operations: Operations
    port: Port
    staging: Staging
    answers: Answers
    mail: Mail
    board: Board
    numbers: Numbers
    admission: Admission
    undecided: Undecided
    recovery: Recovery
    lines: Lines
    held: Held
    fetching: Fetching
    gathering: Gatherings

    @property
    def batch(self) -> Batch:
        return self.staging.batch

    def belongs(self, run: str) -> None:
        self.staging.belongs(run)

    def post(self, item: Deliver) -> None:
        self.mail.post(item)

    def hand_on(self, asked: Operate, item: Deliver) -> object:
        item.ack, item.inbox, item.entry, item.asked = asked.ack, asked.inbox, asked.entry, asked
        item.changes = self.staging.changes
        self.staging.staged.handed.append((asked, item))
        self.mail.post(item)
        return HANDED_ON

    def share(self, asked: Operate, items: list[Deliver], combine: Combine) -> object:
        self.gathering.share(asked, items, self.entropy(16).hex(), combine)
        return HANDED_ON

    def queued(self) -> list[Deliver]:
        return [item for item in self.mail if not self.mail.is_barred(item.run)]

    def task(self, id: str) -> TaskRow | None:
        return self.board.find(id)

    def note(self, task: TaskRow, what: str, by: str | None, **more: Value) -> None:
        self.board.note(task, what, by, **more)

    def diagnose(self, run: str, code: str, body: dict[str, Value]) -> None:
        self.staging.diagnose(run, code, body)

    def remembered(self, submission: tuple[str, str]) -> Value:
        return self.answers.remembered(submission)

    def remember(self, submission: tuple[str, str], body: Value) -> None:
        self.answers.remember(submission, body)

    def stage_snapshot(self, hot: Hot) -> None:
        self.staging.snapshot(hot)

    def adopt(self, hot: Hot, step: Step) -> None:
        self.admission.adopt(hot, step)

    def next_run_no(self) -> int:
        return self.numbers.next_run()

    def next_task_no(self) -> int:
        return self.numbers.next_task()

    def readable(self) -> None:
        self.undecided.forget()

    def offer_again(self, runs: Sequence[str], intents: Collection[str] | None) -> None:
        self.recovery.offer_again(runs, intents)


class _Mark(NamedTuple):
    """What was in the commit at hand before a change: nothing more is left of one that is refused."""

    # What changes before it have sent.
    sent: set[int]
    answers: int
    dispatched: int
    revoked: int

    @classmethod
    def of(cls, desk: CoreDesk) -> _Mark:
        staged, mail = desk.staging.staged, desk.mail
        sent = {*mail.made, *map(id, mail.away)}
        return cls(sent, len(staged.answers), len(staged.dispatched), len(staged.revoked))

    def back_to(self, staged: Staged) -> None:
        del staged.answers[self.answers :], staged.dispatched[self.dispatched :]
        del staged.revoked[self.revoked :]


class Changes:
    """Changes that wait for their commit, and questions that wait for those before them."""

    def __init__(self, desk: CoreDesk, view: View) -> None:
        self._desk = desk
        self._view = view
        self.waiting: deque[Change | Inspect] = deque()
        # Those that wait for code, with its name.
        self._aside: list[tuple[str, Change]] = []
        # `tasks.py`, once somebody does something with a task.
        self._tasks: ModuleType | None = None

    def add(self, change: Change | Inspect) -> None:
        self.waiting.append(change)

    def may_join(self, staged: Staged) -> bool:
        """Whether the next one may be part of this commit. One that refuses itself halfway must not take with it what was
        there before; one that only hands on has nothing to leave halfway."""
        return staged.untouched or self._only_hands_on(self.waiting[0])

    def _only_hands_on(self, change: Change | Inspect) -> bool:
        return isinstance(change, Operate) and only_hands_on(change)

    def put_aside(self, lacking: NotAtHand, change: Change) -> None:
        """It waits for code, which is loaded meanwhile."""
        self._aside.append((lacking.what, change))
        self._desk.fetching.fetch(lacking)

    def put_back(self, changes: Sequence[Change]) -> None:
        self.waiting.extendleft(reversed(changes))

    def drop_foreign(self, held: Held) -> list[Operate]:
        """Shards were lost: operations that are not decided here any more."""
        everywhere = (*self.waiting, *(change for _, change in self._aside))
        foreign = [c for c in everywhere if isinstance(c, Operate) and not held.holds(c.home)]
        gone = {id(change) for change in foreign}
        self.waiting = deque(change for change in self.waiting if id(change) not in gone)
        self._aside = [(what, change) for what, change in self._aside if id(change) not in gone]
        return foreign + self._desk.gathering.drop_foreign(held)

    def try_again(self) -> None:
        """Code was loaded, or cannot be: what waited for it is performed."""
        came = self._desk.fetching.taken()
        for what, change in self._aside:
            if what in came:
                if isinstance(change, Operate):
                    change = replace(change, fetched=(*change.fetched, what))
                self.waiting.append(change)
        self._aside = [(what, change) for what, change in self._aside if what not in came]

    def perform_next(self) -> None:
        change = self.waiting.popleft()
        if isinstance(change, Inspect):
            self._look(change)
            return
        desk = self._desk
        before = _Mark.of(desk)
        try:
            if isinstance(change, Operate):
                desk.staging.belongs(change.home)
                value = self._perform(change)
            else:
                value = change.change(desk)
        except NotAtHand as lacking:
            if isinstance(change, Operate) and lacking.what in change.fetched:
                # It was tried, and is not there all the same: to try it without end would help nobody.
                missing = f"{lacking.what} cannot be loaded here; the log says why"
                self._refuse(change, Unsupported(missing, code="CODE_MISSING"), before)
                return
            self.put_aside(lacking, change)
            if not self._only_hands_on(change):
                # What it did until then is undone, with all that was taken in before it.
                raise
            return
        except PASSING:
            self.waiting.appendleft(change)
            raise
        except Exception as error:
            self._refuse(change, known(error), before)
            return
        staged = desk.staging.staged
        if value is HANDED_ON and staged.handed and staged.handed[-1][0] is change:
            return
        staged.writes.append(change)
        desk.staging.changes += 1
        if value is not HANDED_ON:
            desk.answers.settle(change, value, None)

    def _perform(self, asked: Operate) -> object:
        """The core's own operations, and those that were handed to it."""
        desk = self._desk
        match asked.name:
            case commands.TASK:
                return self._task_code().perform(desk, asked)
            case lines.LOOK:
                desk.lines.perform(asked.body)
            case recovery.OFFER:
                intents = asked.body.get("intents")
                desk.offer_again(
                    [str(run) for run in asked.body["runs"]],
                    None if intents is None else set(map(str, intents)),
                )
            case _:
                return desk.operations.perform(desk, asked)
        return None

    def recheck(self, asked: Operate) -> None:
        """An event that answers an operation has its turn: raises what that is refused with if it may not be any more."""
        self._task_code().recheck(self._desk, asked)

    def _task_code(self) -> ModuleType:
        if self._tasks is None:
            raise NotAtHand("the code of tasks", self._load_tasks)
        return self._tasks

    def _load_tasks(self) -> None:
        from . import tasks

        self._tasks = tasks

    def _look(self, asked: Inspect) -> None:
        """Answered at once: nothing follows from it."""
        try:
            value, error = asked.question(self._view), None
        except PASSING:
            self.waiting.appendleft(asked)
            raise
        except Exception as refused:
            value, error = None, known(refused)
        self._desk.port.answer([(asked.ack, value, error)])

    def _refuse(self, change: Change, error: TreadleError, mark: _Mark) -> None:
        """Nothing of it is kept but what it left in the diagnostics: a refusal is audited."""
        staging = self._desk.staging
        self._desk.mail.discard_made(but=mark.sent)
        mark.back_to(staging.staged)
        if self._only_hands_on(change):
            staging.staged.writes.append(change)
            self._desk.answers.settle(change, None, error)
            return
        before = staging.begin()
        if not before.untouched:
            self._desk.hot.drop_batch(before.number)
        now = staging.staged
        now.batch.diagnostics = before.batch.diagnostics
        now.handed, now.writes = before.handed, [*before.writes, change]
        now.answers, now.dispatched, now.revoked = before.answers, before.dispatched, before.revoked
        self._desk.answers.settle(change, None, error)
