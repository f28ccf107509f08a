"""The core: mailbox, step, commit, next. One synchronous loop over one store.

It runs on the thread that owns the store's connection; the simulator calls `turn` by hand. It
promises: events of a run are admitted one at a time, in order; runs take turns, one event each; nothing is answered,
dispatched or shown before the commit that holds it; one that fails leaves no trace, and its events are tried again.

It knows no dialect, no tool, no asyncio. What it does is divided among the objects that it makes, each with its own
state: what comes, also by itself (`intake.py`), events (`mail.py`, `admission.py`, `gate.py`), what follows from them
(`effects.py`), changes (`changes.py`), the commit at hand (`staging.py`), its end (`publication.py`), and shards that come
and go (`handover.py`). Here is the loop, and what it does when the store does not take a commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from treadle.kernel.errors import (
    PASSING,
    AppendConflict,
    CommitUnknown,
    OwnershipLost,
    StoreUnavailable,
    TreadleError,
    ValueRefused,
)
from treadle.kernel.limits import LIMITS, Limits
from treadle.store.commits import UnderWay
from treadle.store.rows import TimerRow

from . import alerts
from .admission import Admission
from .ahead import Ahead, Nobody
from .alerts import AlertBell
from .board import Board
from .changes import Changes, CoreDesk
from .children import Children
from .commands import Command, Nowhere, View
from .effects import Effects, Records
from .fetching import Beside, Fetching, NotAtHand, at_once
from .gate import Gate, Verify
from .gathering import Gatherings
from .handover import Handover
from .hot import BlobCache, HotRuns
from .intake import Entrance, Inbox, Intake, ProgressQueue
from .isolation import Isolation, known
from .lines import Lines
from .mail import Mail
from .meter import CoreMeter
from .moving import Moves
from .own_changes import OwnChange
from .ports import Clock
from .publication import Aside, Publication
from .recovery import Recovery
from .registry import Registry
from .schedules_due import SchedulesDue
from .shards import Held
from .staging import Answers, Numbers, Staging
from .timers import Timers
from .undecided import Undecided

if TYPE_CHECKING:
    from treadle.store.protocol import Store

    from .ahead import Eager
    from .commands import Elsewhere
    from .desk import Operations
    from .ports import Port


RETRY_AFTER_NS = 200_000_000
FAILURES_MAX = 50
CONFLICTS_MAX = 3
# How many commits of one turn are made durable while the next one is decided; between turns there is none.
OVERLAPS_MAX = 8
# Whoever waits for the store is told at once, and every ten seconds from then on.
WARN_EVERY = 50

log = logging.getLogger("treadle.core")


class Trouble(msgspec.Struct):
    """What the store has not taken lately."""

    retry_at_ns: int = 0
    failures: int = 0
    conflicts: int = 0
    warned: bool = False
    # Whether the commit at hand turns a command away, which must not fail on its account.
    expelling: bool = False


class Core:
    # How many commands turns have taken in, also those that only woke.
    taken = 0

    def __init__(
        self,
        store: Store,
        registry: Registry,
        port: Port,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        operations: Operations,
        verify: Verify | None = None,
        limits: Limits = LIMITS,
        elsewhere: Elsewhere | None = None,
        eager: Eager | None = None,
        meter: CoreMeter | None = None,
        beside: Beside = at_once,
    ) -> None:
        self.store, self.limits, self._trouble = store, limits, Trouble()
        self._clock, self._port, self._meter = clock, port, meter or CoreMeter()
        self._elsewhere = Nowhere() if elsewhere is None else elsewhere
        self.held = held = Held.of(store)
        blobs = BlobCache(store, limits.blob_cache_bytes)
        self.hot = hot = HotRuns(store, registry, blobs, held, limit=limits.hot_runs)
        self.staging = staging = Staging(blobs, held, port, clock=clock, limits=limits)
        self._mail = mail = Mail(held, lambda: self._progress.let_in())
        self._fetching = fetching = Fetching(mail, beside, self.wake)
        numbers, answers = Numbers(store), Answers(staging, mail, store, clock=clock)
        self._timers = timers = Timers(store, mail, held, limits, self._is_late)
        board = Board(staging, store, numbers, clock=clock)
        children = Children(registry, staging, mail, blobs, entropy=entropy, limits=limits)
        self._ahead = ahead = Ahead(Nobody() if eager is None else eager, staging, limits)
        effects = Effects(staging, mail, timers, board, children, ahead)
        lines = Lines(store, registry, staging, mail, blobs, held, clock=clock)
        bell = AlertBell(registry, staging, mail, timers, entropy)
        undecided = Undecided(store, registry, staging, answers, mail, board, lines, clock=clock)
        records = Records(staging, answers, mail, effects, registry, bell, lines)
        moves = Moves(registry, hot, blobs, staging, mail, records, undecided, clock, entropy, limits)
        gate = Gate(staging, answers, store, verify, lambda asked: self._changes.recheck(asked))
        deciding = (hot, blobs, staging, answers, mail, gate, records, lines, moves, undecided, numbers)
        more = (fetching, clock, entropy, limits)
        self._admission = Admission(store, registry, *deciding, *more)
        found = (store, hot, staging, mail, undecided, held, limits)
        recovery = Recovery(*found, lambda lacking, own: self._changes.put_aside(lacking, own))
        self.desk = CoreDesk(
            *(store, registry, clock, entropy, hot, blobs, operations, port, staging, answers, mail, board),
            *(numbers, self._admission, undecided, recovery, lines, held),
            fetching,
            Gatherings(port, answers, mail, self.change),
        )
        view = View(store, self._is_busy, lambda: self._intake.wakes_ns(time_alone=True))
        self._changes = Changes(self.desk, view)
        self._progress = ProgressQueue(hot, staging, answers, mail, fetching)
        self._intake = self._intake_of(recovery, answers, lines)
        self._isolation = Isolation(staging, answers, undecided)
        self._publication = self._ends_of_commits(port, registry)
        beside_events = (self._changes, self._progress, self._intake)
        handover = Handover(store, self.desk, self._elsewhere, *beside_events, self._accept_all)
        self.gain, self.lose, self.settling = handover.gain, handover.lose, handover.settling
        entrance = Entrance(port, held, self._elsewhere, self._changes, self._progress, mail)
        self.accept, self.is_here = entrance.accept, entrance.is_here
        self._incoming: SimpleQueue[Command | None] = SimpleQueue()  # None only wakes whoever waits
        self.submit: Callable[[Command], None] = self._incoming.put

    def _intake_of(self, recovery: Recovery, answers: Answers, lines: Lines) -> Intake:
        inbox = Inbox(self.store, self.staging, answers, self._changes, self._mail, self.held, self.limits)
        schedules = SchedulesDue(self.store, self.held, self._changes, self._meter, clock=self._clock)
        return Intake(recovery, inbox, self._timers, schedules, lines, self._mail)

    def _ends_of_commits(self, port: Port, registry: Registry) -> Publication:
        return Publication(
            port,
            self._elsewhere,
            self.staging,
            self.hot,
            registry,
            self._mail,
            self._changes,
            self._progress,
            self._intake,
            self._ahead,
            self.desk.undecided,
        )

    def wake(self) -> None:
        self._incoming.put(None)

    @property
    def called(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._incoming.empty()

    def wait(self, timeout_s: float | None) -> Command | None:
        """Waits for a command; the core thread's way to sleep. None if none came."""
        try:
            return self._incoming.get_nowait() if timeout_s == 0 else self._incoming.get(timeout=timeout_s)
        except Empty:
            return None

    def change(self, change: OwnChange) -> None:
        """Takes in what the core asks of itself, between turns."""
        self._changes.add(change)
        self.wake()

    def _is_late(self, row: TimerRow) -> None:
        self._changes.add(OwnChange(partial(alerts.late, row=row)))

    # --- the loop ---

    def wait_ns(self) -> int | None:
        """How long nothing will happen by itself; None if for ever."""
        now = self._clock.now_ns()
        if self._mail.ready or self._changes.waiting or self._progress.waiting:
            return self._held_back_ns(now)
        due = self._intake.wakes_ns()
        wait = None if due is None else max(due - now, self._held_back_ns(now))
        if self.staging.staged.held:
            left = self._ahead.left_ns(now)
            return left if wait is None else min(left, wait)
        return wait

    def _is_busy(self) -> bool:
        return self.wait_ns() == 0 or self._fetching.busy

    @property
    def _has_work(self) -> bool:
        return bool(self._mail.ready or self._changes.waiting or self._progress.waiting)

    @property
    def held_open(self) -> int:
        """The number of the commit that waits for what was begun ahead of it, where there is nothing else to do; or 0."""
        staged = self.staging.staged
        return staged.number if staged.held and not (self._has_work or self._intake.busy) else 0

    def _held_back_ns(self, now: int) -> int:
        """How long a failed commit still holds us back; a clock that was set back does not."""
        left = self._trouble.retry_at_ns - now
        return left if 0 < left <= RETRY_AFTER_NS else 0

    def poll(self) -> None:
        """Looks whether another process has written messages for us."""
        if self.store.changed():
            self._intake.look()

    def turn(self, *, intake: bool = True) -> bool:
        """One batch: gather what is ready, commit it, publish it. False if there was nothing."""
        now = self._clock.now_ns()
        if not self._incoming.empty():
            self._accept_all()
        if self._fetching.came:
            self._changes.try_again()
        if self._trouble.retry_at_ns and self._held_back_ns(now):
            return False
        wakes = self._intake.wakes_ns() if intake else None
        due = wakes is not None and now >= wakes
        waits = self._mail.ready or self._changes.waiting or self._progress.waiting
        if not (waits or due or self.staging.staged.held):
            return False
        try:
            if due:
                self._intake.gather(now)
            self._fill()
        except Exception as error:
            self._stuck(error)
            return True
        if not self.staging.batch.records and self._is_empty():
            return False
        for overlaps in range(OVERLAPS_MAX + 1):
            staged = self.staging.staged
            if staged.eager:
                self._ahead.begin()
            if staged.ahead and intake and self._may_wait(now):
                return False
            if overlaps == OVERLAPS_MAX or not self._may_go_on():
                break
            if not self._commit_and_go_on() or self._is_empty():
                return True
        self._commit()
        return True

    def _is_empty(self) -> bool:
        if is_empty := self.staging.staged.empty:
            self.staging.begin()
        return is_empty

    def _accept_all(self) -> None:
        waiting, take, accept = self._incoming.qsize(), self._incoming.get_nowait, self.accept
        self.taken += waiting
        # Whoever waits on another thread may have taken some meanwhile, and accepts them.
        with suppress(Empty):
            for _ in range(waiting):
                accept(take())

    def _may_wait(self, now: int) -> bool:
        """Whether the commit at hand waits for work that was begun ahead of it."""
        return not (self._has_work or self._isolation.apart) and self._ahead.holds(now)

    def _fill(self) -> None:
        changes, staged = self._changes, self.staging.staged
        while changes.waiting and not self._is_full():
            if not changes.may_join(staged):
                # It has the next commit; events need not wait until no change does.
                break
            changes.perform_next()
            if (staged := self.staging.staged).handed:
                self._hear_and_admit()
                if self._mail.ready:
                    # The event to which one left its answer comes before the next.
                    return
        self._hear_and_admit()

    def _hear_and_admit(self) -> None:
        """No receipt is decided before what its work said."""
        while self._progress.waiting and not self._is_full():
            self._progress.stage_next()
        self._admit_ready(None)

    def _is_full(self) -> bool:
        """Whether the commit at hand takes no more."""
        return self.staging.staged.full(self.limits) or (self._isolation.apart > 0 and self._isolation.closes)

    def _admit_ready(self, before: UnderWay | None) -> None:
        """Decides events of runs that have any, in turn, while there is room; no longer than the commit before takes."""
        mail, staged, limits, isolation = self._mail, self.staging.staged, self.limits, self._isolation
        while mail.ready and not (staged.full(limits) or (isolation.apart and isolation.closes)):
            if before is not None and before.done:
                return
            item = mail.take()
            try:
                admitted = self._admission.admit(item)
            except BaseException as error:
                # Whatever raised may have left it half changed.
                self.hot.drop(item.run)
                if isinstance(error, NotAtHand):
                    error.run = item.run
                raise
            if not admitted:
                # The run must be reloaded, and part of it is not durable yet: commit first.
                mail.put_back(item)
                return

    # --- commit ---

    def _commit(self) -> None:
        if self._mail.made or self._mail.away:
            self._publication.post_leftovers()
        began = perf_counter()
        try:
            self.store.commit(self.staging.batch)
        except Exception as error:
            self._failed(error)
        else:
            self._committed(self._publication.set_aside(), began)

    def _may_go_on(self) -> bool:
        """Whether there is something to decide while the commit at hand is made durable."""
        return (
            (bool(self._mail.ready) or not self._incoming.empty())
            and self.store.overlaps
            and self.staging.staged.may_be_built_on
            and not self._isolation.apart
        )

    def _commit_and_go_on(self) -> bool:
        """Commits, and meanwhile decides the next events (no receipt before what its work said): the next commit. Nothing of
        them is told before that one, and if this one fails they are undone first. False if one of both failed."""
        self._publication.post_leftovers()
        began, stuck = perf_counter(), None
        try:
            commit = self.store.begin(self.staging.batch)
        except Exception as error:
            self._failed(error)
            return False
        aside = self._publication.build_on()
        try:
            self._accept_all()
            if not self._progress.waiting:
                self._admit_ready(commit)
        except Exception as error:
            stuck = error
        try:
            commit.finish()
        except CommitUnknown:
            raise
        except Exception as error:
            self._publication.take_back(aside, known(error))
            self._failed(error)
            return False
        self._committed(aside, began)
        if stuck is not None:
            self._stuck(stuck)
        return stuck is None

    def _committed(self, aside: Aside, began: float) -> None:
        trouble = self._trouble
        if trouble.warned:
            trouble.warned = False
            log.warning("the store takes commits again, after %d that it did not", trouble.failures)
        trouble.failures = trouble.conflicts = 0
        if self._isolation.apart:
            self._isolation.committed()
        self._meter.committed(aside.staged, perf_counter() - began)
        self._publication.publish(aside)

    def _stuck(self, error: Exception) -> None:
        """The commit at hand could not be made ready."""
        if isinstance(error, NotAtHand):
            self._publication.withdraw(error, told=False)
            self._fetching.wait_for(error)
        elif isinstance(error, PASSING):
            self._rollback(error)
        else:
            self._single_out(error)

    def _failed(self, error: Exception) -> None:
        """The store did not take the commit at hand."""
        if isinstance(error, CommitUnknown):
            # What would follow from it may be owed already: only who begins anew finds it.
            raise error
        if isinstance(error, OwnershipLost):
            self._lose(error)
        elif isinstance(error, AppendConflict):
            self._reload(error)
        elif isinstance(error, TreadleError) and not isinstance(error, ValueRefused):
            self._rollback(error)
        else:
            self._single_out(error)

    def _lose(self, error: OwnershipLost) -> None:
        """Somebody else took shards of ours. Nothing of this commit was written, and nothing more of theirs
        will be; the others go on. With the last one this core is over."""
        lost = self.store.lost() if self.store.shards > 1 else []
        if not lost:
            if self.staging.batch.shards <= self.store.held.keys():
                raise error
            # Something of it was never ours to decide.
            self._single_out(error)
            return
        log.warning("%s. The runs of shards %s go on elsewhere", error.message, sorted(lost))
        self._publication.withdraw(error, told=False)
        self.lose(lost)

    def _reload(self, error: AppendConflict) -> None:
        """Somebody else appended to a run of this commit: the loser reloads, and decides again. What goes on
        being in the way is no rival's record, and is singled out."""
        self._trouble.conflicts += 1
        if self._trouble.conflicts > CONFLICTS_MAX or self._trouble.expelling:
            self._single_out(error)
        else:
            self._publication.withdraw(error, told=False)

    def _rollback(self, error: TreadleError) -> None:
        """The store did not take the commit. Callers from outside are told; what has happened outside
        is kept and tried again."""
        self._publication.withdraw(error)
        self._meter.refused(error.code)
        self._trouble.retry_at_ns = self._clock.now_ns() + RETRY_AFTER_NS
        self._trouble.failures += 1
        if (self._mail.ready or self._progress.waiting) and (
            not self._trouble.warned or self._trouble.failures % WARN_EVERY == 0
        ):
            self._trouble.warned = True
            log.warning(
                "%s. What has happened is kept, and tried again until the store takes it", error.message
            )
        if isinstance(error, StoreUnavailable) and self._trouble.failures > FAILURES_MAX:
            # Room comes back and locks are freed, but this is something else: stop, and say what.
            raise error

    def _single_out(self, error: Exception) -> None:
        """Something that nobody foresaw, on account of one of those in this batch. Nothing of it is
        durable, so all go back and are tried one by one; the one that fails alone is turned away, and
        the others go on."""
        staged = self.staging.staged
        if self._trouble.expelling or staged.vacant:
            raise error
        alone = self._isolation.suspect()
        culprit, read = staged.release(), list(staged.batch.inbox_done)
        refused = known(error)
        self._publication.withdraw(refused, told=False, but=culprit)
        if alone:
            self._trouble.expelling = True
            self._isolation.expel(culprit, refused, read)
            try:
                self._commit()
            except ValueRefused:
                # Not even who asked, or for what, can be written down: who asks is told, and that is all.
                self.staging.staged.release()
                self._publication.withdraw(refused, told=False)
                self._isolation.dismiss(culprit, refused, read)
                self._commit()
            self._trouble.expelling = False
