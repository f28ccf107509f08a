"""Planted bugs of what runs are promised: an id is one run, a run keeps its definition, runs take turns, a message is decided
once, and what is collected is what nobody needs. See `canaries.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from treadle.bus.queues import WorkEntry, WorkLine, WorkQueues
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt, Started
from treadle.lang.schedules import Schedule
from treadle.runtime import admission, finding, schedules, staging
from treadle.runtime.commands import Deliver, reply_to_bytes
from treadle.runtime.effects import Records
from treadle.runtime.gate import Gate
from treadle.runtime.handover import Handover
from treadle.runtime.hot import Expected, Hot, HotRuns
from treadle.runtime.intake import Inbox
from treadle.runtime.mail import Mail
from treadle.runtime.registry import latest
from treadle.runtime.staging import Answers, Staged, Staging
from treadle.store import sql
from treadle.store.rows import GUEST
from treadle.store.sql import SqlStore

from .process import SimProcess

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk


@contextlib.contextmanager
def taken_id_is_free_again() -> Iterator[None]:
    """A start looks for its id among the runs in memory; one that is not there is begun anew, in place of what is there."""
    find = admission.Admission._find

    def forgetful(self: admission.Admission, item: Deliver) -> Hot | None:
        if isinstance(item.event, Started) and item.create is not None and item.event.parent is None:
            return self._create(item)
        return find(self, item)

    overwrite = sql.INSERT_RUN.replace("INSERT INTO", "INSERT OR REPLACE INTO")
    with patch.object(admission.Admission, "_find", forgetful), patch.object(sql, "INSERT_RUN", overwrite):
        yield


@contextlib.contextmanager
def taken_id_whatever_was_asked() -> Iterator[None]:
    """Whoever asks for an id that is taken is told that its run is there, also one who asks for another run."""

    def hasty(gate: Gate, hot: Hot, item: Deliver, event: Started) -> None:
        gate._answers.settle(item, {"run": item.run, "existing": True}, None)

    with patch.object(Gate, "start_again", hasty):
        yield


@contextlib.contextmanager
def runs_move_with_a_deploy() -> Iterator[None]:
    """A run that is loaded again goes on under what is deployed under its name by then."""
    get = HotRuns.get

    def newest(runs: HotRuns, id: str, known: Expected | None = None) -> Hot | None:
        cold, hot = runs.peek(id) is None, get(runs, id, known)
        if hot is not None and cold and (versions := runs._reads.versions(hot.state.workflow)):
            hot.definition = runs._registry.load(latest(versions).digest).definition
        return hot

    with patch.object(HotRuns, "get", newest):
        yield


@contextlib.contextmanager
def a_run_keeps_its_turn() -> Iterator[None]:
    """A run that has more to do goes to the beginning of the ring, and not to its end."""
    take = Mail.take

    def greedy(mail: Mail) -> Deliver:
        run = mail.ready[0]
        item = take(mail)
        if mail.ready and mail.ready[-1] == run:
            mail.ready.rotate(1)
        return item

    with patch.object(Mail, "take", greedy):
        yield


@contextlib.contextmanager
def message_gone_when_it_is_read() -> Iterator[None]:
    """The row of a message goes with the next commit after it was read, whether it is decided in that or not."""
    read = Inbox.read

    def hasty(inbox: Inbox) -> None:
        known = set(inbox._reading)
        read(inbox)
        inbox._staging.batch.inbox_done += sorted(
            key for key in inbox._reading - known if not key.startswith(GUEST)
        )

    with patch.object(Inbox, "read", hasty):
        yield


@contextlib.contextmanager
def message_gone_after_its_decision() -> Iterator[None]:
    """The row of a message goes with the commit after the one that decides it."""
    left: WeakKeyDictionary[Staging, list[str]] = WeakKeyDictionary()
    dispose, begin = Answers.dispose, Staging.begin

    def late(answers: Answers, key: str, value: Any, error: Any) -> None:
        if key.startswith(GUEST):
            dispose(answers, key, value, error)
        else:
            left.setdefault(answers._staging, []).append(key)

    def begins(staging: Staging) -> Staged:
        last = begin(staging)
        staging.batch.inbox_done += left.pop(staging, [])
        return last

    with patch.object(Answers, "dispose", late), patch.object(Staging, "begin", begins):
        yield


@contextlib.contextmanager
def kept_from_its_beginning() -> Iterator[None]:
    """How long a run is kept counts from its beginning: it has a date while it is under way."""
    write_row = Records._write_row

    def early(records: Records, hot: Hot, step: Any) -> None:
        write_row(records, hot, step)
        if hot.row.retain_ns is None and hot.machine.traits.final:
            kept_ns = records._registry.retention_ns(hot.state.definition, "completed")
            hot.row.retain_ns = hot.row.started_ns + kept_ns

    with patch.object(Records, "_write_row", early):
        yield


@contextlib.contextmanager
def payloads_of_whoever_made_them() -> Iterator[None]:
    """Nobody notes that a run refers to what another one handed to it."""
    with patch.object(admission, "handed_over", lambda event, settled: []):
        yield


@contextlib.contextmanager
def failed_runs_are_never_due() -> Iterator[None]:
    """A collection passes over runs that did not complete."""
    past_rows = finding.past_rows

    def choosy(*asked: Any, **more: Any) -> Any:
        return [row for row in past_rows(*asked, **more) if row.status == "completed"]

    with patch.object(finding, "past_rows", choosy):
        yield


@contextlib.contextmanager
def loose_as_it_was_found() -> Iterator[None]:
    """Nobody looks again whether a payload that was nobody's still is, before it is removed."""

    def trusting(store: SqlStore, digests: list[str], before_ns: int) -> tuple[int, list[str]]:
        with store._transaction() as tx:
            rows = [
                store._one("SELECT digest, body IS NULL FROM blobs WHERE digest = ?", one) for one in digests
            ]
            tx.executemany("DELETE FROM blobs WHERE digest = ?", [(one,) for one in digests])
        return len(rows), [row[0] for row in rows if row is not None and row[1]]

    with patch.object(SqlStore, "remove_loose", trusting):
        yield


@contextlib.contextmanager
def guests_are_told_less() -> Iterator[None]:
    """Whoever asks from another process is told that it is done, also where it came too late, or was done before."""
    told = reply_to_bytes

    def plain(value: Any, error: TreadleError | None) -> bytes:
        if isinstance(value, dict):
            value = {
                "seq": 1,
                **{k: v for k, v in value.items() if k not in ("stale", "duplicate", "existing")},
            }
        return told(value, error)

    with patch.object(staging, "reply_to_bytes", plain):
        yield


@contextlib.contextmanager
def work_as_it_came() -> Iterator[None]:
    """Work waits in one line, whosever it is: a run with much of it is given every place."""
    make = WorkLine.__init__

    def plain(line: WorkLine, entries: Iterable[WorkEntry] = (), *, fair: bool) -> None:
        make(line, entries, fair=False)

    with patch.object(WorkLine, "__init__", plain):
        yield


@contextlib.contextmanager
def work_beyond_the_bound_forgotten() -> Iterator[None]:
    """Work for which its pool has no room is not offered again when there is some."""
    with patch.object(WorkQueues, "_room", lambda queues, queue: {}):
        yield


@contextlib.contextmanager
def tick_without_its_run() -> Iterator[None]:
    """A schedule moves on, and the run of its tick is started when there is time for it: with this commit, or with another."""

    def apart(desk: Desk, schedule: Schedule, run: str) -> bool:
        desk.post(schedules._first(desk, schedule, run))
        return True

    with patch.object(schedules, "start", apart):
        yield


@contextlib.contextmanager
def tick_started_twice() -> Iterator[None]:
    """A schedule moves on one commit late, and no name says that a run of that tick is there already."""
    start = schedules._start
    begun: set[tuple[str, int]] = set()

    def again(desk: Desk, row: schedules.ScheduleRow, tick_ns: int, now_ns: int) -> None:
        start(desk, row, now_ns, now_ns)
        if (row.name, tick_ns) not in begun:
            begun.add((row.name, tick_ns))
            row.next_ns = tick_ns

    with patch.object(schedules, "_start", again):
        yield


@contextlib.contextmanager
def gives_away_what_is_not_decided() -> Iterator[None]:
    """Work is in hand until it is done, and its shard goes, whatever came of that."""
    hand_in = SimProcess.hand_in

    def lets_go(process: SimProcess, item: Deliver) -> None:
        assert isinstance(item.event, Receipt)
        process.workers.done(item.event.intent)
        hand_in(process, item)

    with (
        patch.object(SimProcess, "hand_in", lets_go),
        patch.object(Handover, "settling", lambda handover: set()),
    ):
        yield


# What breaks with one core and with several.
RUN_CANARIES = (
    taken_id_is_free_again,
    taken_id_whatever_was_asked,
    runs_move_with_a_deploy,
    a_run_keeps_its_turn,
    message_gone_after_its_decision,
    kept_from_its_beginning,
    payloads_of_whoever_made_them,
    failed_runs_are_never_due,
    guests_are_told_less,
    work_as_it_came,
    work_beyond_the_bound_forgotten,
    tick_without_its_run,
    tick_started_twice,
)
# What shows with one core only: of several each is asked in the course of a collection, and has read its messages by then.
LONE_RUN_CANARIES = (loose_as_it_was_found,)
# What shows only where messages wait in the store for another member, or shards go from one to another.
SHARED_RUN_CANARIES = (message_gone_when_it_is_read, gives_away_what_is_not_decided)
