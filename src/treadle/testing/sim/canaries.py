"""Bugs planted on purpose. A simulator that cannot fail proves nothing: it must find each of them.

Each canary breaks one promise in the production code for as long as its context lasts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import msgspec

from treadle.apps import barrier, snapshots
from treadle.dialects.reactive.app import App
from treadle.host.thread import Turning
from treadle.kernel import run as kernel_run
from treadle.kernel.model import Context, OpenIntent, Receipt
from treadle.runtime import admission
from treadle.runtime.admission import Admission
from treadle.runtime.ahead import Ahead
from treadle.runtime.changes import CoreDesk
from treadle.runtime.commands import CheckpointSaved, Deliver, Operate
from treadle.runtime.core import Core
from treadle.runtime.hot import Hot
from treadle.runtime.intake import Inbox, ProgressQueue
from treadle.runtime.lines import Lines, _Tally
from treadle.runtime.moving import Moves
from treadle.runtime.own_changes import HANDED_ON
from treadle.runtime.publication import Aside, Publication
from treadle.runtime.recovery import Recovery
from treadle.runtime.staging import Answers, Staged, Staging
from treadle.runtime.timers import Timers
from treadle.store import sql
from treadle.store.place_rows import Line
from treadle.store.rows import GUEST

from .call_canaries import CALL_CANARIES
from .disk import Disk
from .drill import Drill
from .drill_machine import DrillMachine
from .narrow import NarrowDrill
from .process import SimProcess
from .run_canaries import LONE_RUN_CANARIES, RUN_CANARIES, SHARED_RUN_CANARIES
from .store_canaries import FILE_CANARIES, STORE_CANARIES
from .sums import Sums
from .workload import Workload
from .world import LIVENESS_EVENTS_MAX, SimulationFailed, simulate

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk


Canary = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def append_ignores_expected_sequence() -> Iterator[None]:
    """Neither the epoch nor unique(run, seq) holds: a deposed owner overwrites its successor."""
    overwrite = sql.INSERT_RECORD.replace("INSERT INTO", "INSERT OR REPLACE INTO")
    with (
        patch.object(sql, "INSERT_RECORD", overwrite),
        patch.object(sql.SqlStore, "_check_epoch", lambda self, tx, shards: None),
    ):
        yield


@contextlib.contextmanager
def dispatch_before_commit() -> Iterator[None]:
    """Workers see intents that a failed commit will take back."""
    commit = Core._commit

    def early(core: Core) -> None:
        staged = core.staging.staged
        works, staged.dispatched = staged.dispatched, []
        if works:
            core._port.dispatch(works)
        commit(core)

    with patch.object(Core, "_commit", early):
        yield


@contextlib.contextmanager
def forgotten_places() -> Iterator[None]:
    """Whoever gives places away counts those that it gave itself: after a take-over the others hold none."""
    known: WeakKeyDictionary[Lines, dict[Line, _Tally]] = WeakKeyDictionary()

    def remembered(lines: Lines, line: Line) -> _Tally:
        tallies = known.setdefault(lines, {})
        if line not in tallies:
            tallies[line] = _Tally(0, lines._reads.crowd(line).waiting)
        return tallies[line]

    with patch.object(Lines, "_tally", remembered):
        yield


@contextlib.contextmanager
def lost_recovery() -> Iterator[None]:
    """After a restart nobody looks for open work."""

    def forget(recovery: Recovery) -> None:
        recovery.left.clear()

    with patch.object(Recovery, "go_on", forget):
        yield


@contextlib.contextmanager
def double_settle() -> Iterator[None]:
    """A second receipt for an intent is admitted like the first."""
    settled: dict[str, OpenIntent] = {}
    advance, counts = kernel_run.advance, Admission._counts

    def forgetful(run: Any, machine: Any, definition: Any, event: Any, **more: Any) -> Any:
        if isinstance(event, Receipt) and event.intent in settled:
            kernel_run.open_intent(run, settled[event.intent])
        step = advance(run, machine, definition, event, **more)
        if step.settled is not None:
            settled[step.settled.id] = step.settled
        return step

    def never_stale(self: Admission, hot: Any, item: Any, event: Any) -> bool:
        again = isinstance(event, Receipt) and event.intent in settled and not hot.state.ended
        return again or counts(self, hot, item, event)

    with patch.object(admission, "advance", forgetful), patch.object(Admission, "_counts", never_stale):
        yield


@contextlib.contextmanager
def skipped_fsync() -> Iterator[None]:
    """A commit returns before it is on disk."""
    make = Disk.__init__

    def lying(disk: Disk, *arguments: Any) -> None:
        make(disk, *arguments)
        disk.lies = True

    with patch.object(Disk, "__init__", lying):
        yield


@contextlib.contextmanager
def answer_before_its_commit() -> Iterator[None]:
    """A guest is told as soon as its message is read; what it asked for is decided afterwards."""
    take = Inbox._take

    def hasty(inbox: Inbox, command: Deliver | Operate) -> None:
        if command.inbox is not None and command.inbox.startswith(GUEST):
            home = command.home if isinstance(command, Operate) else command.run
            inbox._answers.dispose(command.inbox, {"run": home, "seq": 1, "status": "running"}, None)
            command = msgspec.structs.replace(command, inbox=None)
        take(inbox, command)

    with patch.object(Inbox, "_take", hasty):
        yield


@contextlib.contextmanager
def message_done_before_its_event() -> Iterator[None]:
    """An operation's message goes with its own commit, its event comes later: what 0.1.0 did."""

    def split(desk: CoreDesk, operate: Operate, item: Deliver) -> object:
        item.ack = operate.ack
        if operate.inbox is not None:
            desk.answers.dispose(operate.inbox, {"run": item.run, "seq": 1, "status": "running"}, None)
        desk.post(item)
        return HANDED_ON

    with patch.object(CoreDesk, "hand_on", split):
        yield


@contextlib.contextmanager
def lost_handover() -> Iterator[None]:
    """A worker's thread turns the core, and does not tell the core's own thread that there is more to do."""
    with patch.object(Turning, "_hand_over", lambda turning: None):
        yield


@contextlib.contextmanager
def impure_work_begun_ahead() -> Iterator[None]:
    """Work that touches the outside is begun before its commit, too."""
    with patch.object(SimProcess, "is_pure", lambda process, work, definition: True):
        yield


@contextlib.contextmanager
def held_and_forgotten() -> Iterator[None]:
    """A commit that waits for work begun ahead of it is not the one that goes on with its receipt."""
    holds = Ahead.holds

    def forgetful(ahead: Ahead, now: int) -> bool:
        if found := holds(ahead, now):
            ahead._staging.begin()
        return found

    with patch.object(Ahead, "holds", forgetful):
        yield


@contextlib.contextmanager
def held_back_answers() -> Iterator[None]:
    """Whoever is answered in a commit that waits is told before it is durable."""
    holds = Ahead.holds

    def telling(ahead: Ahead, now: int) -> bool:
        staged = ahead._staging.staged
        if staged.ahead and staged.answers:
            told, staged.answers = staged.answers, []
            for ack, value, error in told:
                ack(value, error)
        return holds(ahead, now)

    with patch.object(Ahead, "holds", telling):
        yield


@contextlib.contextmanager
def answer_with_the_commit_before() -> Iterator[None]:
    """What was decided on top of a commit is answered with it, and not with its own."""
    publish = Publication.publish

    def hasty(publication: Publication, aside: Aside) -> None:
        publish(publication, aside)
        at_hand = publication._staging.staged
        told, at_hand.answers = at_hand.answers, []
        for ack, value, error in told:
            ack(value, error)

    with patch.object(Publication, "publish", hasty):
        yield


@contextlib.contextmanager
def kept_without_the_commit_before() -> Iterator[None]:
    """What was decided on top of a commit that failed is committed all the same."""
    kept: list[Staged] = []
    failed = Core._failed

    def forgetful(publication: Publication, aside: Aside, error: Any) -> None:
        kept.append(publication._staging.staged)
        publication._mail.take_back(aside.made)
        publication._staging.go_back_to(aside.staged)

    def go_on(core: Core, error: Exception) -> None:
        failed(core, error)
        if kept:
            core.staging.go_back_to(kept.pop())

    with patch.object(Publication, "take_back", forgetful), patch.object(Core, "_failed", go_on):
        yield


@contextlib.contextmanager
def keys_forgotten_with_their_process() -> Iterator[None]:
    """What was answered under a key is known to whoever answered it, and to nobody after it."""
    known: WeakKeyDictionary[Answers, dict[tuple[str, str], Any]] = WeakKeyDictionary()
    remember = Answers.remember

    def in_memory(answers: Answers, submission: tuple[str, str], body: Any) -> None:
        known.setdefault(answers, {})[submission] = body
        remember(answers, submission, body)

    def recall(answers: Answers, submission: tuple[str, str]) -> Any:
        return known.get(answers, {}).get(submission)

    with patch.object(Answers, "remember", in_memory), patch.object(Answers, "remembered", recall):
        yield


@contextlib.contextmanager
def timers_that_fire_early() -> Iterator[None]:
    """Whoever looks for what is due takes what is due within a second for it."""
    fire = Timers.fire

    def early(timers: Timers, now_ns: int) -> None:
        fire(timers, now_ns + 1_000_000_000)

    with patch.object(Timers, "fire", early):
        yield


@contextlib.contextmanager
def state_written_down_too_late() -> Iterator[None]:
    """The snapshot of a run is filed under the record before the one that it is of."""
    snapshot = Staging.snapshot

    def late(staging: Staging, hot: Hot) -> None:
        snapshot(staging, hot)
        no, seq, body = staging.batch.snapshots.pop()
        staging.batch.snapshots.append((no, max(seq - 1, 1), body))

    with patch.object(Staging, "snapshot", late):
        yield


@contextlib.contextmanager
def checkpoint_told_before_it_is_kept() -> Iterator[None]:
    """A worker is told that its progress is saved, and it is not."""
    save = ProgressQueue._save

    def forgetful(queue: ProgressQueue, hot: Hot, saved: CheckpointSaved) -> None:
        save(queue, hot, saved)
        queue._staging.batch.checkpoints.pop(saved.intent)

    with patch.object(ProgressQueue, "_save", forgetful):
        yield


@contextlib.contextmanager
def decided_by_what_is_not_recorded() -> Iterator[None]:
    """A decision goes by something else than is recorded: when it is decided again, it is another one."""
    advance, live = kernel_run.advance, False
    start, step = DrillMachine.start, DrillMachine.step

    def deciding(*arguments: Any, **more: Any) -> Any:
        nonlocal live
        live = True
        try:
            return advance(*arguments, **more)
        finally:
            live = False

    def seen(ctx: Context) -> Context:
        return msgspec.structs.replace(ctx, now_ns=ctx.now_ns + live)

    def starts(machine: DrillMachine, definition: Any, event: Any, ctx: Context) -> Any:
        return start(machine, definition, event, seen(ctx))

    def steps(machine: DrillMachine, definition: Any, state: Any, event: Any, ctx: Context) -> Any:
        return step(machine, definition, state, event, seen(ctx))

    with (
        patch.object(admission, "advance", deciding),
        patch.object(DrillMachine, "start", starts),
        patch.object(DrillMachine, "step", steps),
    ):
        yield


CANARIES: tuple[Canary, ...] = (
    append_ignores_expected_sequence,
    dispatch_before_commit,
    lost_recovery,
    double_settle,
    skipped_fsync,
    answer_before_its_commit,
    message_done_before_its_event,
    lost_handover,
    impure_work_begun_ahead,
    held_and_forgotten,
    held_back_answers,
    answer_with_the_commit_before,
    kept_without_the_commit_before,
    timers_that_fire_early,
    state_written_down_too_late,
    decided_by_what_is_not_recorded,
)
# The same, for those who have the time: they show late in a history, or in few of them.
LATE_CANARIES: tuple[Canary, ...] = (
    keys_forgotten_with_their_process,
    checkpoint_told_before_it_is_kept,
)


@contextlib.contextmanager
def commit_without_the_epoch_check() -> Iterator[None]:
    """A member that lost a shard goes on committing for its runs."""
    with patch.object(sql.SqlStore, "_check_epoch", lambda self, tx, shards: None):
        yield


@contextlib.contextmanager
def gained_and_not_recovered() -> Iterator[None]:
    """Whoever takes a shard over does not look what was left open there."""
    with patch.object(Recovery, "gain", lambda recovery, shards: None):
        yield


@contextlib.contextmanager
def hand_over_without_draining() -> Iterator[None]:
    """A shard is given away with its messages still in the giver's hands, which takes them for read later."""
    with patch.object(Inbox, "forget", lambda inbox, keys: None):
        yield


@contextlib.contextmanager
def unknown_commit_taken_for_failed() -> Iterator[None]:
    """A commit whose answer was lost is taken for one that failed: whoever asked is told so, and it is tried again."""

    class Never(Exception):
        """Nobody raises it."""

    with patch("treadle.runtime.core.CommitUnknown", Never):
        yield


# What breaks only where several processes share a store; and what breaks there, too.
SHARED_CANARIES: tuple[Canary, ...] = (
    commit_without_the_epoch_check,
    unknown_commit_taken_for_failed,
    gained_and_not_recovered,
    hand_over_without_draining,
    dispatch_before_commit,
    answer_before_its_commit,
    message_done_before_its_event,
    double_settle,
    keys_forgotten_with_their_process,
    state_written_down_too_late,
)


@contextlib.contextmanager
def apply_before_everybody_has_agreed() -> Iterator[None]:
    """One member is asked whether another manifest may be applied; what the others are deciding is not waited for."""

    async def ask_one(engine: barrier.BarrierHome, body: dict[str, Any]) -> None:
        await engine.operate(barrier.BARRIER, body, home=engine.homes()[0])

    with patch.object(barrier, "_everywhere", ask_one):
        yield


@contextlib.contextmanager
def cells_open_while_members_agree() -> Iterator[None]:
    """Events of cells are decided although their application is about to move."""
    with patch.object(Moves, "is_barred", lambda moves, hot, item, at_ns: False):
        yield


@contextlib.contextmanager
def snapshot_without_a_second_look() -> Iterator[None]:
    """What changed while the cells were read, page by page, is not read again: each page is of its own moment."""
    finish = snapshots.finish

    def hasty(desk: Desk, app: App, draft: dict[str, Any]) -> dict[str, Any]:
        with patch.object(sql.SqlStore, "moved", lambda store, since: (since, [])):
            return finish(desk, app, draft)

    with patch.object(snapshots, "finish", hasty):
        yield


@contextlib.contextmanager
def told_again_by_whoever_takes_over() -> Iterator[None]:
    """An operation that tells several is performed again, and who asked is written down again for those who were told before."""
    given_before, copied = Answers.given_before, partial(msgspec.structs.replace, derived=False)
    with patch.object(Answers, "given_before", lambda answers, item: given_before(answers, copied(item))):
        yield


# What breaks where an application has cells, whoever decides them; and only where several members do.
CELL_CANARIES: tuple[Canary, ...] = (snapshot_without_a_second_look,)
APPLICATION_CANARIES: tuple[Canary, ...] = (
    apply_before_everybody_has_agreed,
    cells_open_while_members_agree,
    told_again_by_whoever_takes_over,
)


def hunted(cores: int) -> list[tuple[Canary, Callable[[Random], Workload]]]:
    """Every planted bug that must be found with so many cores, and where it is looked for."""
    if cores == 1:
        return [
            *((canary, Drill) for canary in (*CANARIES, *RUN_CANARIES, *LONE_RUN_CANARIES, *LATE_CANARIES)),
            *((canary, Drill) for canary in (*CALL_CANARIES, *STORE_CANARIES, *FILE_CANARIES)),
            *((canary, Sums) for canary in CELL_CANARIES),
            (forgotten_places, NarrowDrill),
        ]
    return [
        *((canary, Drill) for canary in (*SHARED_CANARIES, *RUN_CANARIES, *SHARED_RUN_CANARIES)),
        *((canary, Drill) for canary in (*CALL_CANARIES, *STORE_CANARIES)),
        *((canary, Sums) for canary in (*CELL_CANARIES, *APPLICATION_CANARIES)),
        (forgotten_places, NarrowDrill),
    ]


def seeds_to_find(
    canary: Canary,
    make: Callable[[Random], Workload] = Drill,
    *,
    seeds_max: int,
    cores: int = 1,
    patience: int = LIVENESS_EVENTS_MAX,
) -> tuple[int, SimulationFailed] | None:
    """How many seeds it takes to find a planted bug, and how it shows; None if it is not found."""
    with canary():
        for seed in range(seeds_max):
            try:
                simulate(seed, make, cores=cores, patience=patience)
            except SimulationFailed as failure:
                return seed + 1, failure
    return None
