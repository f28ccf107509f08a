"""The end of a commit, either way: what may happen only once it is durable, or how it leaves no trace.

A commit that the store took is published: workers and callers hear of it, and the log says which runs began, ended or
stalled. One that it did not take is withdrawn: every touched run is forgotten, what it held goes back to where it came
from, in order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import TERMINAL
from treadle.kernel.tracing import parse_traceparent
from treadle.store.rows import GUEST, Message

from .ahead import Ahead
from .changes import Changes
from .commands import Deliver, message_to_bytes
from .hot import HotRuns
from .intake import Intake, ProgressQueue
from .mail import NOTHING, Leftovers, Mail
from .own_changes import OwnChange
from .ports import Answer
from .registry import Registry
from .staging import RunTurn, Staged, Staging
from .undecided import Undecided

if TYPE_CHECKING:
    from .commands import Elsewhere
    from .ports import Port


log = logging.getLogger("treadle.runs")


class Aside(msgspec.Struct, frozen=True):
    """A commit that is being made durable, while another one is at hand."""

    staged: Staged
    made: Leftovers


class Publication:
    def __init__(
        self,
        port: Port,
        elsewhere: Elsewhere,
        staging: Staging,
        hot: HotRuns,
        registry: Registry,
        mail: Mail,
        changes: Changes,
        progress: ProgressQueue,
        intake: Intake,
        ahead: Ahead,
        undecided: Undecided,
    ) -> None:
        self._port = port
        self._elsewhere = elsewhere
        self._staging = staging
        self._hot = hot
        self._registry = registry
        self._mail = mail
        self._changes = changes
        self._progress = progress
        self._intake = intake
        self._ahead = ahead
        self._undecided = undecided

    def post_leftovers(self) -> None:
        """Messages between runs that did not fit into this batch become inbox rows with it."""
        batch = self._staging.batch
        for item in self._mail.made.values():
            if item.message is not None and item.inbox is None:
                item.inbox = self._key_of(item, item.message)
                batch.inbox.append(Message(item.inbox, message_to_bytes(item), item.run))
        for item in self._mail.away:
            assert item.message is not None, "only messages leave"
            key = self._key_of(item, item.message)
            if item.ack is not None:
                self._staging.staged.asked.append((key, item.ack))
            batch.inbox.append(Message(key, message_to_bytes(item), item.run))

    def _key_of(self, item: Deliver, message: str) -> str:
        """Where somebody waits for the answer, whoever decides it answers as it answers a guest; that may be another
        core than this one also for what is ours now."""
        asker = self._elsewhere.asker
        return message if item.ack is None or not asker else f"{GUEST}{asker}:{message}"

    def set_aside(self) -> Aside:
        """The commit at hand is written: another one begins."""
        mail = self._mail
        return Aside(self._staging.begin(), mail.keep_made() if mail.made or mail.away else NOTHING)

    def build_on(self) -> Aside:
        """The commit at hand is being made durable: another one begins, which builds on it."""
        aside = self.set_aside()
        self._staging.staged.expected = aside.staged.unchanged()
        return aside

    def take_back(self, aside: Aside, error: TreadleError) -> None:
        """It was not made durable: what was built on it is undone, and it is the one at hand again."""
        self.withdraw(error, told=False)
        self._mail.take_back(aside.made)
        self._staging.go_back_to(aside.staged)

    def publish(self, aside: Aside) -> None:
        """It is durable."""
        staged = aside.staged
        if staged.turns:
            self._came_to_rest(staged.turns)
            if log.isEnabledFor(logging.INFO):
                _say(staged.turns)
        self._intake.committed(staged, aside.made.posted if aside.made.here else ())
        if staged.batch.definitions or staged.batch.versions:
            self._registry.committed(staged.batch.definitions, staged.batch.versions)
        if staged.revoked:
            self._port.revoke(staged.revoked)
            # What was opened, or found open, by this very commit is not begun: nobody would revoke it.
            revoked = {*staged.revoked}
            staged.dispatched = [work for work in staged.dispatched if work.intent.id not in revoked]
        if staged.news:
            # Before the work: an observer hears of a call before it is made.
            self._port.publish_news(list(staged.news.values()))
        if staged.dispatched:
            self._port.dispatch(staged.dispatched)
        if staged.asked:
            self._elsewhere.await_replies(staged.asked)
        if staged.answers:
            self._port.answer(staged.answers)
        if self._hot.crowded:
            self._hot.evict(self._staging.staged.number)

    def _came_to_rest(self, turns: Sequence[RunTurn]) -> None:
        """Who asks for the result of a run that has ended finds it in memory."""
        for turn in turns:
            if turn.status in TERMINAL:
                hot = self._hot.peek(turn.run)
                if hot is not None and hot.machine.traits.final:
                    hot.rested = turn.seq

    def withdraw(self, error: TreadleError, *, told: bool = True, but: object = None) -> None:
        """The batch left no trace: forget every touched run, put the events back in order. Callers are
        told the error, or go on waiting; `but` is left out."""
        staged = self._staging.begin()
        answers: list[Answer] = []
        # What a step or a change of this batch made is made again with it.
        self._ahead.withdrawn(staged.ahead)
        self._hot.drop_batch(staged.number)
        handed = {id(item) for _, item in staged.handed}
        self._mail.discard(lambda item: item.derived or id(item) in handed)
        for item in reversed(staged.taken):
            if item.derived or id(item) in handed:
                continue
            # What is a message is durable, and will be decided: who waits for that goes on waiting.
            if told and item.ack is not None and item.inbox is None:
                answers.append((item.ack, None, error))
            else:
                self._mail.post(item, front=True)
        answers += self._withdraw_changes(staged, error, told=told, but=but)
        self._progress.put_back(staged.progress)
        self._intake.undo(staged)
        self._undecided.undo(staged)
        if answers:
            self._port.answer(answers)

    def _withdraw_changes(
        self, staged: Staged, error: TreadleError, *, told: bool, but: object
    ) -> list[Answer]:
        performed = [*staged.writes, *(op for op, item in staged.handed if but not in (op, item))]
        # What came in a message is read again; what nobody waits for would be forgotten.
        again = [c for c in performed if isinstance(c, OwnChange) or c.inbox is None]
        self._changes.put_back([c for c in again if c.ack is None] if told else again)
        return [(c.ack, None, error) for c in performed if told and c.ack is not None]


def _say(turns: Sequence[RunTurn]) -> None:
    """That runs began, ended or stalled, said in the log."""
    for turn in turns:
        trace = parse_traceparent(turn.traceparent)
        words = ["started"] if turn.seq == 1 else []
        words += [turn.status] if turn.status is not None else []
        for word in words:
            about = {"run": turn.run, "workflow": turn.workflow, "status": word}
            if trace is not None:
                about["trace"] = trace.trace
            log.info("run %s", word, extra=about)
