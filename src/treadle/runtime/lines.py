"""Lines: who may begin, of workflows that are limited.

A run of such a workflow has a row from the commit that starts it to the one that ends it (`store/places.py`). Whoever
owns the first shard gives places away, and nobody else: a start that it decides itself and finds a place free for
begins at once; any other is recorded as queued, waits, and begins with the receipt for its place. So there is no
instant at which a place is counted twice or not at all: it is counted by reading rows, and each of them is written
and removed by a commit of its own run.

Others than the owner of the first shard tell it by a message that somebody came or went. What is given away is a
message too; the run that gets it looks at its row before it believes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from treadle.kernel.errors import QueueFull
from treadle.kernel.model import PLACE, Receipt, Retry, Started
from treadle.kernel.roles import CellMachine, has_role
from treadle.kernel.state import RunState
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.lang.quota import Quota
from treadle.store.place_rows import Line, PlaceRow
from treadle.store.rows import Message

from .commands import Operate, message_to_bytes
from .hot import BlobCache, Hot
from .mail import Mail
from .payloads import put_back, refers, started_with
from .ports import Clock
from .registry import Registry
from .shards import Held
from .staging import Staging

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


# The operation that says that somebody came to a line or left it.
LOOK: Final = "line"
# Documents: what operators said, by workflow; when those began that a rate counts, by line.
LIMIT, BEGUN = "limit", "line"
# How names of limits begin that are no workflow's.
POOL: Final = "pool:"
# So many are let in by one commit; the next one goes on.
GIVEN_PER_TURN: Final = 200
# How long a member may go by what operators said before, where another one decides that.
STALE_NS: Final = 1_000_000_000
NO_LIMIT: Final = 2**62
# For so long the log of a line counts that does not say it: an earlier version wrote it.
PACE_NS_MAX: Final = 366 * 86_400 * 10**9


class _Tally(msgspec.Struct):
    """A line as the commit at hand will leave it."""

    held: int
    waiting: int
    # When the last ones began, where a rate counts them; None: not read yet.
    begun: list[int] | None = None


class Lines:
    def __init__(
        self,
        reads: Reads,
        registry: Registry,
        staging: Staging,
        mail: Mail,
        blobs: BlobCache,
        held: Held,
        *,
        clock: Clock,
    ) -> None:
        self._reads = reads
        self._registry = registry
        self._staging = staging
        self._mail = mail
        self._blobs = blobs
        self._held = held
        self._clock = clock
        self._tallies: dict[Line, _Tally] = {}
        # The commit that they are of.
        self._batch = 0
        self._limits: dict[str, Quota] = {}
        self._limits_at_ns: int | None = None
        # Whether operators are known to have said nothing: then what definitions say is all there is to ask for.
        self.silent = False
        self._last_ns: int | None = None
        # Lines in which time lets somebody begin.
        self._due: dict[Line, int] = {}
        self._looked = False
        # None: nothing is due ever. 0: not known yet.
        self.next_due_ns: int | None = 0

    @property
    def _gives(self) -> bool:
        """Whether places are given away here."""
        return self._held.holds("")

    # --- what is limited ---

    def quota(self, workflow: str, definition: str) -> Quota | None:
        """The limits of a run that begins: what operators said, else what its definition says."""
        return self._overrides().get(workflow) or self._registry.orders(definition).limits

    def _overrides(self) -> Mapping[str, Quota]:
        now = self._clock.now_ns()
        stale = self._limits_at_ns is None or (
            not self._gives and not 0 <= now - self._limits_at_ns < STALE_NS
        )
        if stale:
            found = self._reads.documents(LIMIT)
            self._limits = {name: Quota.of(value) for name, value in found}
            self._limits_at_ns = now
            self.silent = not self._limits and not self._held.several
        return self._limits

    def override(self, workflow: str, quota: Quota | None) -> None:
        """Operators say otherwise, from this commit on. Where places are given away."""
        self._staging.belongs("")
        body = None if quota is None else encode(quota.to_value())
        self._staging.batch.documents.append((LIMIT, workflow, self._clock.now_ns(), body))
        limits = {name: item for name, item in self._overrides().items() if name != workflow}
        self._limits = limits if quota is None else {**limits, workflow: quota}
        self.silent = not self._limits and not self._held.several
        for line in self._reads.lines_waiting():
            if line.workflow == workflow:
                self._give(line)

    # --- coming ---

    def place_for(self, hot: Hot, event: Started | Retry, payloads: Mapping[str, bytes]) -> PlaceRow | None:
        """A place for a run that begins, or begins again, if its workflow is limited: one that is free, or one at
        the end of the line. Raises QueueFull where that is full."""
        state = hot.state
        begins = type(event) is Started or (state.ended and hot.machine.traits.final)
        if not begins or has_role(type(hot.machine), CellMachine):
            return None
        definition = event.definition or state.definition
        quota = self.quota(state.workflow, definition)
        if quota is None:
            return None
        if isinstance(event, Started):
            input, reference, priority = event.input, event.reference, event.priority
        else:
            input, reference, priority = started_with(self._reads, hot.no), state.reference, None
        if quota.per is not None and refers(input):
            input = put_back(lambda digest: self._payload(digest, payloads), input)
        lane = quota.key(input=input, reference=reference, run=state.id)
        row = self._row_for(state.id, Line(state.workflow, lane), quota, priority)
        tally = self._tally(row.line)
        if isinstance(event, Started) and not row.held and quota.queue is not None:
            # Whoever gives places away may not have come to those that are free.
            room = quota.queue + self._free(tally, row.line, quota)
            if tally.waiting >= room:
                raise _full(row.line, quota, tally.waiting)
        return row

    def place_for_fork(
        self, run: str, workflow: str, definition: str, source: RunState, input: Value
    ) -> PlaceRow | None:
        """A place at the end of the line for a run that goes on from another one's state."""
        quota = self.quota(workflow, definition)
        if quota is None and source.held is None:
            return None
        quota = quota or Quota()
        if refers(input):
            input = put_back(self._blobs, input)
        lane = quota.key(input=input, reference=source.reference, run=run)
        row = self._row_for(run, Line(workflow, lane), quota, None)
        row.held = False
        return row

    def _row_for(self, run: str, line: Line, quota: Quota, priority: int | None) -> PlaceRow:
        tally = self._tally(line)
        free = self._gives and tally.waiting == 0 and self._free(tally, line, quota) > 0
        return PlaceRow(
            run=run,
            workflow=line.workflow,
            lane=line.lane,
            held=free,
            priority=quota.priority if priority is None else priority,
            since_ns=self._now_ns(),
            quota=quota.to_value(),
        )

    def enter(self, row: PlaceRow) -> None:
        """The commit at hand starts a run with this place."""
        tally = self._tally(row.line)
        self._staging.batch.places_new[row.run] = row
        if row.held:
            tally.held += 1
            self._began(tally, row.line, Quota.of(row.quota))
            return
        tally.waiting += 1
        if self._gives:
            self._give(row.line)
        else:
            self._tell(row, "in")

    # --- going ---

    def leave(self, run: str) -> None:
        """The commit at hand ends a run that is in line."""
        row, batch = self._find(run), self._staging.batch
        if row is None:
            return
        tally = self._tally(row.line)
        if batch.places_new.pop(run, None) is None:
            batch.places_done.append(run)
        if run in batch.places_held:
            batch.places_held.remove(run)
        batch.places_resting.pop(run, None)
        if row.rests:
            return
        if row.held:
            tally.held -= 1
        else:
            tally.waiting -= 1
        if self._gives:
            self._give(row.line)
        else:
            self._tell(row, "out")

    def _tell(self, row: PlaceRow, what: str) -> None:
        """Whoever gives places away looks at this line."""
        body = message_to_bytes(Operate("", LOOK, {"workflow": row.workflow, "lane": row.lane}))
        self._staging.batch.inbox.append(Message(f"line:{what}:{row.run}:{row.since_ns}", body, ""))

    # --- resting ---

    def turned(self, run: str, seq: int, *, waits: bool) -> None:
        """A run that is in line waits from now on, or goes on: where the limit says so, it has its place only while it
        does not wait. Whoever goes on is not held up: it counts again, and nobody begins until there is room."""
        row, batch = self._find(run), self._staging.batch
        if row is None or not row.held or row.rests == waits:
            return
        quota = self._overrides().get(row.workflow) or Quota.of(row.quota)
        if waits and not quota.rests:
            return
        if run in batch.places_new:
            batch.places_new[run].rests = waits
        else:
            batch.places_resting[run] = waits
        self._tally(row.line).held += -1 if waits else 1
        if self._gives:
            self._give(row.line)
        elif waits:
            self._tell(row, f"rest:{seq}")

    # --- giving ---

    def perform(self, body: Mapping[str, Value]) -> None:
        """Somebody came or went elsewhere."""
        self._give(Line(str(body["workflow"]), str(body["lane"])))

    def receipt(self, state: RunState) -> Receipt | None:
        """The receipt for a run's place, if it waits for one and has it by now."""
        intent = next((intent for intent in state.open.values() if intent.kind == PLACE), None)
        row = None if intent is None else self._find(state.id)
        return Receipt(intent=intent.id) if intent is not None and row is not None and row.held else None

    def _give(self, line: Line) -> None:
        """Lets those in who wait and may begin, in their order."""
        tally, batch = self._tally(line), self._staging.batch
        for _ in range(GIVEN_PER_TURN):
            row = self._next(line)
            if row is None:
                return
            quota = self._overrides().get(line.workflow) or Quota.of(row.quota)
            if self._free(tally, line, quota) <= 0:
                self._wait(tally, line, quota)
                return
            if row.run in batch.places_new:
                row.held = True
            else:
                batch.places_held.append(row.run)
            self._staging.belongs("")
            tally.held += 1
            tally.waiting -= 1
            self._began(tally, line, quota)
            self._mail.send(row.run, Receipt(intent=PLACE), f"place:{row.run}:{row.since_ns}")
        self._arm(line, self._clock.now_ns())

    def _next(self, line: Line) -> PlaceRow | None:
        """Who is next in a line, as the commit at hand will leave it."""
        batch = self._staging.batch
        gone = {*batch.places_held, *batch.places_done}
        stored = self._reads.places_waiting(line, 1 + len(gone))
        new = [row for row in batch.places_new.values() if row.line == line and not row.held]
        return min((row for row in (*stored, *new) if row.run not in gone), key=_turn, default=None)

    def _free(self, tally: _Tally, line: Line, quota: Quota) -> int:
        """How many more may begin now."""
        free = NO_LIMIT if quota.concurrency is None else quota.concurrency - tally.held
        if (pace := quota.pace()) is not None:
            count, period_ns = pace
            since = self._clock.now_ns() - period_ns
            free = min(free, count - sum(at_ns > since for at_ns in self._log(tally, line)))
        return free

    # --- rates ---

    def _log(self, tally: _Tally, line: Line) -> list[int]:
        if tally.begun is None:
            tally.begun = list((self._reads.document(BEGUN, _name(line)) or {}).get("begun", ()))
        return tally.begun

    def _began(self, tally: _Tally, line: Line, quota: Quota) -> None:
        """Somebody has a place: fenced by the first shard, and counted where a rate does."""
        self._staging.belongs("")
        if (pace := quota.pace()) is None:
            return
        count, name, now = pace[0], _name(line), self._clock.now_ns()
        tally.begun = [*self._log(tally, line), now][-count:]
        documents = self._staging.batch.documents
        documents[:] = [row for row in documents if row[:2] != (BEGUN, name)]
        # After that nobody counts it any more.
        until_ns = now + pace[1]
        documents.append((BEGUN, name, now, encode({"begun": tally.begun, "until_ns": until_ns})))

    def _wait(self, tally: _Tally, line: Line, quota: Quota) -> None:
        """If it is the rate that lets nobody in, time will."""
        if (pace := quota.pace()) is None:
            return
        count, period_ns = pace
        log = self._log(tally, line)
        if len(log) >= count and (quota.concurrency is None or tally.held < quota.concurrency):
            self._arm(line, log[-count] + period_ns)

    # --- time ---

    def _arm(self, line: Line, due_ns: int) -> None:
        self._due[line] = due_ns
        self._rest()

    def _rest(self) -> None:
        self.next_due_ns = min(self._due.values(), default=None) if self._looked else 0

    def look(self) -> None:
        """Who waits may not be known here: another process gave places away, or a commit left no trace."""
        self._looked, self._limits_at_ns, self._last_ns, self.next_due_ns = False, None, None, 0
        self.silent = False
        self._due.clear()

    def fire(self, now_ns: int) -> None:
        """Once something is due, or may be."""
        if not self._gives:
            self._due.clear()
            self._looked, self.next_due_ns = False, None
            return
        due = [line for line, at_ns in self._due.items() if at_ns <= now_ns]
        lines = due if self._looked else self._reads.lines_waiting()
        self._looked = True
        for line in lines:
            self._due.pop(line, None)
            self._give(line)
        self._rest()

    # --- the commit at hand ---

    def _tally(self, line: Line) -> _Tally:
        if self._batch != self._staging.staged.number:
            self._batch = self._staging.staged.number
            self._tallies.clear()
        found = self._tallies.get(line)
        if found is None:
            crowd = self._reads.crowd(line)
            found = self._tallies[line] = _Tally(crowd.held, crowd.waiting)
        return found

    def _find(self, run: str) -> PlaceRow | None:
        """A run's place, as the commit at hand will leave it."""
        batch = self._staging.batch
        if run in batch.places_new:
            return batch.places_new[run]
        row = None if run in batch.places_done else self._reads.place(run)
        if row is not None and run in batch.places_held:
            row.held = True
        if row is not None and run in batch.places_resting:
            row.rests = batch.places_resting[run]
        return row

    def _payload(self, digest: str, payloads: Mapping[str, bytes]) -> Value:
        return decode_trusted(payloads[digest]) if digest in payloads else self._blobs(digest)

    def _now_ns(self) -> int:
        """When somebody comes: no two come at once, also where a clock stands still."""
        if self._last_ns is None:
            self._last_ns = self._reads.last_place_ns()
        self._last_ns = max(self._clock.now_ns(), self._last_ns + 1)
        return self._last_ns


def forget_old(desk: Desk, now_ns: int) -> None:
    """The logs of lines in which nobody began for as long as they count: with `per` there is one for each key."""
    for name, log in desk.store.documents(BEGUN):
        if log.get("until_ns", max(log["begun"], default=0) + PACE_NS_MAX) < now_ns:
            desk.batch.documents.append((BEGUN, name, 0, None))


def _turn(row: PlaceRow) -> tuple[int, int, str]:
    return row.turn


def _name(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False)


def _full(line: Line, quota: Quota, waiting: int) -> QueueFull:
    whose = f"of {line.workflow}" + (f" for {line.lane!r}" if line.lane else "")
    return QueueFull(
        f"the line {whose} is full: {waiting} wait, and {quota.queue} may; start it again later",
        where=line.workflow,
        details={"workflow": line.workflow, "key": line.lane, "waiting": waiting, "queue": quota.queue},
    )


def pool_caps(reads: Reads) -> dict[str, int]:
    """How much work of each pool that operators limited may be in hand at once."""
    return {
        name.removeprefix(POOL): int(value["concurrency"])
        for name, value in reads.documents(LIMIT)
        if name.startswith(POOL)
    }
