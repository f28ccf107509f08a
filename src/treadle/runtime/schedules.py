"""Schedules: rows with a next time. A tick is one commit: it advances the row and starts the run `NAME@<instant>`, or
neither, so that a tick is one run however many servers see it and whenever they die.

All schedules are at home where what belongs to the whole store is decided, by whoever owns that. Here are the changes of
a schedule's row, made at the desk (`desk.py`); when it is time for one a core knows by itself (`schedules_due.py`).

What becomes of a tick: `started`, `skipped` (a run of before goes on, or the line is full), `queued` (it waits for
that run), `missed` (nobody was there, and it is not caught up with), `refused` (its workflow did not take it).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.errors import PASSING, TreadleError, Unsupported
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import TERMINAL, Cancel, Started
from treadle.kernel.roles import CellMachine
from treadle.kernel.run import error_of
from treadle.kernel.values import Value, encode
from treadle.lang.duration import instant_text
from treadle.lang.recurrence import instants, latest
from treadle.lang.schedules import Schedule, run_id, trigger_id
from treadle.store.rows import DefinitionRow

from .commands import SCHEDULE, Deliver, Operate
from .ports import NewRun

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk, Handing


KIND: Final = SCHEDULE
# How many ticks wait for a run of before to end.
QUEUE_MAX: Final = 100
NEXT_SHOWN: Final = 5
BY: Final = "treadle:schedule"


class ScheduleRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A schedule, and how far it has come."""

    schedule: Schedule
    # The first tick that nothing has become of yet; None: there is none any more.
    next_ns: int | None = None
    resumed_ns: int = 0
    # Runs of ticks that were not seen to have ended, and ticks that wait for them.
    going: list[str] = []
    waiting: list[int] = []
    last: dict[str, Value] | None = None
    # The workflow whose definition says so; None: somebody added it.
    origin: str | None = None

    @staticmethod
    def of(value: Value) -> ScheduleRow:
        return msgspec.convert(value, ScheduleRow, builtin_types=(bytes,))

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def due_ns(self) -> int | None:
        return None if self.next_ns is None else self.schedule.starts_ns(self.next_ns)

    def note(self, tick_ns: int, outcome: str, now_ns: int, **more: Value) -> None:
        self.last = {"tick": instant_text(tick_ns), "at": instant_text(now_ns), "outcome": outcome, **more}


# --- a tick ------------------------------------------------------------------------------------------


def advance(desk: Desk, *, name: str, since_ns: int) -> bool:
    """Does what is due of one schedule: at most one tick, and at most one that waited. False if nothing is."""
    row, now = _find(desk.store, name), desk.clock.now_ns()
    if row is None or row.schedule.paused:
        return False
    row.going = [run for run in row.going if _goes_on(desk.store, run)]
    waited = bool(row.waiting) and not row.going
    due = row.next_ns is not None and row.schedule.starts_ns(row.next_ns) <= now
    if waited:
        _start(desk, row, row.waiting.pop(0), now)
    if due:
        tick, missed = _chosen(row, now, max(since_ns, row.resumed_ns))
        row.next_ns = row.schedule.recurrence.after(tick)
        if missed:
            row.note(tick, "missed", now)
        else:
            _meet(desk, row, tick, now)
    if waited or due:
        _write(desk, row)
    return waited or due


def _chosen(row: ScheduleRow, now_ns: int, since_ns: int) -> tuple[int, bool]:
    """The tick whose turn it is, and whether it was missed and is left. Of several that are due by now, all but the
    latest were missed, and that one too if nobody was there when it was due."""
    schedule, tick = row.schedule, row.next_ns
    assert tick is not None
    if schedule.catch_up == "all":
        return tick, False
    tick = latest(schedule.recurrence, tick, now_ns)
    while schedule.starts_ns(tick) > now_ns:
        # The latest is still held back by its jitter; the one before it is due.
        tick = latest(schedule.recurrence, row.next_ns or tick, tick - 1)
    return tick, schedule.catch_up == "none" and schedule.starts_ns(tick) < since_ns


def _meet(desk: Desk, row: ScheduleRow, tick_ns: int, now_ns: int) -> None:
    """What becomes of a tick where runs of before may still go on."""
    going, overlap = row.going, row.schedule.overlap
    if overlap == "queue" and (going or row.waiting):
        if len(row.waiting) >= QUEUE_MAX:
            row.note(tick_ns, "skipped", now_ns, run=None, reason=f"{QUEUE_MAX} ticks wait already")
            return
        row.waiting.append(tick_ns)
        row.note(tick_ns, "queued", now_ns, run=run_id(row.name, tick_ns))
        return
    if overlap == "skip" and going:
        row.note(tick_ns, "skipped", now_ns, run=None, reason=f"{going[-1]} goes on")
        return
    if overlap == "cancel":
        for run in going:
            cancel = Cancel(reason=f"the next run of {row.name} is due", by=BY)
            desk.post(Deliver(run, cancel, derived=True, message=f"cancel:{run}:{tick_ns}"))
    _start(desk, row, tick_ns, now_ns)


def _start(desk: Desk, row: ScheduleRow, tick_ns: int, now_ns: int) -> None:
    run = run_id(row.name, tick_ns)
    try:
        start(desk, row.schedule, run)
    except PASSING:
        raise
    except TreadleError as error:
        desk.diagnose(run, "schedule.refused", {"schedule": row.name, "error": error_of(error)})
        row.note(tick_ns, "refused", now_ns, run=None, error=error_of(error))
        return
    row.note(tick_ns, "started", now_ns, run=run)
    if row.schedule.overlap != "allow":
        row.going = [*row.going, run][-QUEUE_MAX:]


def start(desk: Desk, schedule: Schedule, run: str) -> bool:
    """Starts a run of a schedule with the commit at hand; False if it is there already."""
    if not _is_new(desk.store, run):
        return False
    item = _first(desk, schedule, run)
    item.derived, item.message = True, _message(run)
    desk.post(item)
    return True


def _first(desk: Desk, schedule: Schedule, run: str) -> Deliver:
    """The event with which a run of a schedule begins."""
    row = startable(desk, schedule.workflow)
    options: dict[str, Value] = {"base": str(Path(row.file).resolve().parent)} if row.file is not None else {}
    event = Started(
        definition=row.digest,
        input=desk.registry.prepare(row, schedule.input, options),
        seed=desk.entropy(16),
        machine=desk.registry.load(row.digest).machine.version,
        options=options,
    )
    return Deliver(run, event, create=NewRun(row.dialect, row.name, row.version, row.digest))


def startable(desk: Desk, workflow: str) -> DefinitionRow:
    row = desk.registry.resolve(workflow)
    if isinstance(desk.registry.load(row.digest).machine, CellMachine):
        raise Unsupported(f"events bring {workflow} to life; a schedule cannot start it")
    return row


def _message(run: str) -> str:
    return f"schedule:{run}"


def is_on_its_way(reads: Reads, run: str) -> bool:
    """Whether a run was asked for, and is not decided yet."""
    return reads.has_message(_message(run))


def _is_new(reads: Reads, run: str) -> bool:
    # In this order: a message that is gone was decided, and what it decided is there.
    return not reads.has_message(_message(run)) and reads.run(run) is None


def _goes_on(reads: Reads, run: str) -> bool:
    if reads.has_message(_message(run)):
        return True
    found = reads.run(run)
    return found is not None and found.status not in TERMINAL


# --- changes by people -------------------------------------------------------------------------------


def perform(desk: Handing, asked: Operate) -> object:
    """One operation on one schedule, as data. Raises a TreadleError that changes nothing."""
    body, name = asked.body, str(asked.body["name"])
    match body["do"]:
        case "add":
            return _add(desk, Schedule.read(body["schedule"]))
        case "change":
            return _change(desk, name, dict(body["fields"]))
        case "remove":
            there(desk.store, name)
            desk.belongs("")
            desk.batch.documents.append((KIND, name, desk.clock.now_ns(), None))
            return {"name": name, "removed": True}
        case "trigger":
            return _by_hand(desk, asked, there(desk.store, name).schedule, _unused_id(desk, name))
        case "fill":
            schedule, run = there(desk.store, name).schedule, run_id(name, int(body["tick_ns"]))
            if not _is_new(desk.store, run):
                return {"run": run, "existing": True}
            return _by_hand(desk, asked, schedule, run)
    raise Unsupported(f"{body['do']!r:.40} is not an operation on schedules")


def _by_hand(desk: Handing, asked: Operate, schedule: Schedule, run: str) -> object:
    """Starts a run because somebody wants it now: the answer is the start's own, once it is decided. One that is decided
    elsewhere is left there as a message."""
    if desk.held.holds(run):
        return desk.hand_on(asked, _first(desk, schedule, run))
    start(desk, schedule, run)
    return {"run": run}


def _unused_id(desk: Desk, name: str) -> str:
    """The id of a run that is started by hand now: of two within a millisecond the later one counts on."""
    now, under_way = desk.clock.now_ns(), {item.run for item in desk.queued()}
    while (id := trigger_id(name, now)) in under_way or not _is_new(desk.store, id):
        now += 1_000_000
    return id


def _add(desk: Desk, schedule: Schedule) -> dict[str, Value]:
    found = _find(desk.store, schedule.name)
    if found is not None:
        if found.schedule != schedule:
            raise Unsupported(
                f"there is a schedule {schedule.name!r} that says something else; change or remove it",
                code="SCHEDULE_EXISTS",
            )
        return {**shown(desk.store, found, desk.clock.now_ns()), "new": False}
    row = _checked(desk, ScheduleRow(schedule=schedule))
    _write(desk, row)
    return {**shown(desk.store, row, desk.clock.now_ns()), "new": True}


def _checked(desk: Desk, row: ScheduleRow) -> ScheduleRow:
    """A schedule that could tick: its workflow is there and takes its input. Its ticks count from now."""
    schedule, now = row.schedule, desk.clock.now_ns()
    if len(encode(schedule.input)) > PAYLOAD_INLINE_BYTES_MAX:
        raise Unsupported("the input of a schedule may have 64 KiB; name a file or a table in it instead")
    definition = startable(desk, schedule.workflow)
    desk.registry.prepare(definition, schedule.input, {})
    row.next_ns = schedule.recurrence.after(now)
    if row.next_ns is None:
        raise Unsupported(
            "at: this is past; a schedule starts what is to come", code="SCHEDULE_INVALID", where="at"
        )
    return row


def _change(desk: Desk, name: str, fields: dict[str, Value]) -> dict[str, Value]:
    row, now = there(desk.store, name), desk.clock.now_ns()
    before, value = row.schedule, row.schedule.to_value()
    if any(word in fields for word in ("cron", "every", "at")):
        value = {key: item for key, item in value.items() if key not in ("cron", "every", "at")}
    row.schedule = Schedule.read({**value, **fields, "name": name})
    if row.schedule.recurrence != before.recurrence or row.schedule.workflow != before.workflow:
        _checked(desk, row)
    elif row.schedule.input != before.input:
        desk.registry.prepare(startable(desk, row.schedule.workflow), row.schedule.input, {})
    if before.paused and not row.schedule.paused:
        row.resumed_ns = now
    _write(desk, row)
    return shown(desk.store, row, now)


def follow(desk: Desk, definition: DefinitionRow, said: Schedule | None) -> None:
    """A definition was deployed: its schedule is as it says. Whoever paused it keeps it paused."""
    found = [ScheduleRow.of(value) for _, value in desk.store.documents(KIND)]
    for row in found:
        if row.origin == definition.name and (said is None or row.name != said.name):
            desk.batch.documents.append((KIND, row.name, desk.clock.now_ns(), None))
    if said is None:
        return
    there_is = next((row for row in found if row.name == said.name), None)
    if there_is is not None and there_is.origin != definition.name:
        raise Unsupported(
            f"{definition.name} says its schedule, but {said.name!r} is one that somebody added; remove it, or "
            "name the definition's otherwise",
            code="SCHEDULE_EXISTS",
            where=definition.file,
        )
    if there_is is None:
        row = ScheduleRow(
            schedule=said, origin=definition.name, next_ns=said.recurrence.after(desk.clock.now_ns())
        )
    else:
        paused = there_is.schedule.paused or said.paused
        row = msgspec.structs.replace(there_is, schedule=msgspec.structs.replace(said, paused=paused))
        if row.schedule.recurrence != there_is.schedule.recurrence:
            row.next_ns = said.recurrence.after(desk.clock.now_ns())
        if row == there_is:
            return
    _write(desk, row)


def _write(desk: Desk, row: ScheduleRow) -> None:
    desk.belongs("")
    value = msgspec.to_builtins(row, builtin_types=(bytes,))
    desk.batch.documents.append((KIND, row.name, desk.clock.now_ns(), encode(value)))


# --- looking -----------------------------------------------------------------------------------------


def _find(reads: Reads, name: str) -> ScheduleRow | None:
    value = reads.document(KIND, name)
    return None if value is None else ScheduleRow.of(value)


def there(reads: Reads, name: str) -> ScheduleRow:
    row = _find(reads, name)
    if row is None:
        raise no_schedule(name)
    return row


def no_schedule(name: str) -> TreadleError:
    return Unsupported(
        f"there is no schedule {name!r:.80}; `treadle schedule list` shows what is there",
        code="SCHEDULE_NOT_FOUND",
    )


def listed(reads: Reads, now_ns: int) -> list[dict[str, Value]]:
    return [shown(reads, ScheduleRow.of(value), now_ns) for _, value in sorted(reads.documents(KIND))]


def shown(reads: Reads, row: ScheduleRow, now_ns: int) -> dict[str, Value]:
    """A schedule as people see it: what it says, its next five ticks, what became of the last one."""
    last = row.last
    if last is not None and last.get("run"):
        found = reads.run(last["run"])
        last = {**last, "status": found.status if found is not None else None}
    ahead = [] if row.next_ns is None else [row.next_ns]
    if ahead and not row.schedule.paused:
        for tick in instants(row.schedule.recurrence, ahead[0]):
            if len(ahead) >= NEXT_SHOWN:
                break
            ahead.append(tick)
    return {
        **row.schedule.shown(),
        "next": [] if row.schedule.paused else [instant_text(tick) for tick in ahead],
        "last": last,
        "going": row.going,
        "waiting": [run_id(row.name, tick) for tick in row.waiting],
        "origin": row.origin,
    }


def preview(schedule: Schedule, now_ns: int, count: int) -> list[str]:
    """The next ticks of a schedule that need not be there."""
    found: list[str] = []
    for tick in instants(schedule.recurrence, now_ns):
        if len(found) >= count:
            break
        found.append(instant_text(tick))
    return found
