"""Those around the engine: a network without manners, clients who insist, people with tasks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING, OwnershipLost, TreadleError
from treadle.kernel.model import Started
from treadle.runtime import commands
from treadle.runtime.commands import AuditEntry, CheckpointSaved, Deliver, FrameSent, Operate
from treadle.runtime.tasks import OPEN, Actor, Operation
from treadle.store.rows import GUEST, Message
from treadle.store.sql import SqlStore

from .disk import Died, SimDialect
from .process import SimProcess
from .turns import Waiter
from .weather import MS
from .workload import Action

if TYPE_CHECKING:
    from .world import SimWorld

PATIENCE_NS = 3_000 * MS
# Whom an answer is told.
Told = Callable[[Any, TreadleError | None], None]


def is_passing(error: TreadleError | None) -> bool:
    """Whether it may go well the next time: also where code could not be loaded."""
    return isinstance(error, PASSING) or (error is not None and error.code == "CODE_MISSING")


class Network:
    """Carries what workers send to whoever owns the store by then: late, twice, or not at all."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def work_ns(self, lease_ms: int) -> int:
        """How long a piece of work takes; a stalled worker outlives its lease."""
        rng = self._world.rng
        if self._world.chance(self._world.faults.stalled):
            return (lease_ms + rng.randrange(2 * lease_ms)) * MS
        return rng.randrange(50 * MS)

    def send(self, command: Deliver | FrameSent | CheckpointSaved, worker: SimProcess | None = None) -> None:
        """`worker` is whose lease ends when the message reaches it; elsewhere the lease runs out."""
        world = self._world
        copies = 1
        if world.chance(world.faults.lost):
            copies = 0
        elif world.chance(world.faults.duplicated) and isinstance(command, Deliver):
            copies = 2
        for _ in range(copies):
            late = world.rng.randrange(5_000 * MS) if world.chance(world.faults.delayed) else 0
            world.after(late + world.rng.randrange(2 * MS), lambda: self._deliver(command, worker))

    def _deliver(self, command: Deliver | FrameSent | CheckpointSaved, worker: SimProcess | None) -> None:
        # Progress goes to whoever has the run, and nowhere else: it may get lost.
        owner = self._world.reach() if isinstance(command, Deliver) else self._world.holder(command.run)
        if owner is None:
            return
        if isinstance(command, Deliver):
            # A copy: two deliveries must not share what the core writes into an item.
            command = Deliver(command.run, command.event, blobs=dict(command.blobs))
        if worker is not owner or not isinstance(command, Deliver):
            owner.core.submit(command)
            return
        receipt = command
        self._world.step(owner, lambda: owner.hand_in(receipt))


@dataclass(slots=True)
class Asked:
    """One action and how each attempt at it went: sent (no answer yet), ok, stale, refused."""

    action: Action
    attempts: list[str] = field(default_factory=list)
    done: bool = False

    def count(self, outcome: str) -> int:
        return self.attempts.count(outcome)


class Guest:
    """A process beside the owner: it leaves messages and looks for their answers, on a connection of its
    own. It dies at any point of that; another one, with the same eyes, may find what it had asked for."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._fuse: int | None = None
        self.store = SqlStore(SimDialect(world.disk, self._point), None)
        self._seen: dict[str, bytes] = {}

    def _point(self) -> None:
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                raise Died("guest")

    def _lives(self, do: Callable[[], Any]) -> bool:
        """Whether it is still alive after that."""
        if self._world.chance(self._world.faults.crash):
            self._fuse = self._world.rng.randrange(5)
        try:
            do()
        except Died:
            self._world.disk.drop_transaction()
            self._world.deaths += 1
            return False
        finally:
            self._fuse = None
        return True

    def ask(self, key: str, command: Deliver | Operate, told: Told) -> None:
        """Posts a command; calls back with its answer, if it lives to see one. PASSING: nothing was sent."""
        home = command.home if isinstance(command, Operate) else command.run
        self.post(key, commands.message_to_bytes(command), home, told)

    def post(self, key: str, body: bytes, home: str, told: Told) -> None:
        if self._lives(lambda: self.store.post([Message(key, body, home)])):
            self._look(key, told)

    def _look(self, key: str, told: Told) -> None:
        found: dict[str, bytes] = {}

        def look() -> None:
            with suppress(*PASSING):
                found.update(self.store.replies([key]))

        if not self._lives(look):
            return
        if key not in found:
            self._world.after(50 * MS, lambda: self._look(key, told))
            return
        assert self._seen.setdefault(key, found[key]) == found[key], f"{key} is answered twice"
        told(*commands.reply_from_bytes(found[key]))
        if self._world.chance(self._world.faults.duplicated):
            self._world.after(50 * MS, lambda: self._look(key, told))
        elif not self._lives(lambda: self._forget(key)):
            # Whoever takes its place finds the answer again, or that it is gone.
            self._world.after(50 * MS, lambda: self._look_once(key))

    def _forget(self, key: str) -> None:
        with suppress(*PASSING):
            self.store.forget_replies([key])

    def _look_once(self, key: str) -> None:
        body = self._world.store.replies([key]).get(key)
        assert body in (None, self._seen[key]), f"{key} is answered twice"


class Clients:
    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.asked = [Asked(action) for action in world.workload.actions(world.rng)]
        self._by_name = {asked.action.name: asked for asked in self.asked}
        self._guest = Guest(world)
        self._left = len(self.asked)

    @property
    def idle(self) -> bool:
        return self._left == 0

    def waiting(self) -> list[str]:
        return [asked.action.name for asked in self.asked if not asked.done]

    def begin(self) -> None:
        for asked in self.asked:
            self._world.after(asked.action.at_ms * MS, partial(self._ask, asked))

    def _ask(self, asked: Asked) -> None:
        if asked.done:
            return
        world, action = self._world, asked.action
        # No answer in time means asking again.
        world.after(PATIENCE_NS + world.rng.randrange(PATIENCE_NS), lambda: self._ask(asked))
        owner = world.reach()
        if action.after is not None and not self._by_name[action.after].done:
            return
        if world.chance(world.faults.guest):
            self._post(asked)
        elif owner is not None:
            twice = action.submission is not None and world.chance(world.faults.duplicated)
            for _ in range(2 if twice else 1):
                item = self._item(action)
                item.ack = self._ack(asked, item.entry, world.turns.waits(owner, action.run))
                owner.core.submit(item)

    def _item(self, action: Action) -> Deliver:
        item = action.item()
        item.entry = self._world.trail.entry_of("client", action.run, action.event)
        return item

    def _ack(self, asked: Asked, entry: AuditEntry | None, waiter: Waiter) -> Told:
        number = len(asked.attempts)
        asked.attempts.append("sent")

        def ack(value: Any, error: TreadleError | None) -> None:
            self._world.turns.answered(waiter)
            assert not self._world.disk.live.in_transaction, (
                f"{asked.action.name} is answered before its commit"
            )
            self._answered(asked, number, entry, value, error)

        return ack

    def _answered(
        self, asked: Asked, number: int, entry: AuditEntry | None, value: Any, error: TreadleError | None
    ) -> None:
        action, journals = asked.action, self._world.journals
        if error is None:
            plain = not (value.get("stale") or value.get("duplicate") or value.get("existing"))
            asked.attempts[number] = "ok" if plain else "stale"
            if plain:
                journals.assert_recorded(action.run, value["seq"], action.event)
                self._world.trail.assert_told(entry)
        else:
            asked.attempts[number] = "refused"
        if isinstance(action.event, Started):
            self._check_start(action.run, action.event, value, error)
        if not isinstance(error, PASSING):
            self._finish(asked)

    def _check_start(self, run: str, event: Started, value: Any, error: TreadleError | None) -> None:
        """The same id is the same run: whoever asks for it has begun it, or it is there, or it is another one's."""
        journals = self._world.journals
        if error is None:
            if value.get("existing"):
                journals.assert_same(run, event)
        elif not isinstance(error, (*PASSING, OwnershipLost)):
            assert error.code == "RUN_EXISTS", f"a start of {run} is refused: {error}"
            journals.assert_taken(run, event)

    def _finish(self, asked: Asked) -> None:
        if not asked.done:
            asked.done = True
            self._left -= 1
            if asked.action.submission is not None:
                self._world.after(self._world.rng.randrange(2 * PATIENCE_NS), lambda: self._repeat(asked))

    def _repeat(self, asked: Asked) -> None:
        """Whoever was answered asks once more, under its key: of whoever decides it by then."""
        world = self._world
        if not world.journals.closed and (owner := world.reach()) is not None:
            item = self._item(asked.action)
            item.ack = self._ack(asked, item.entry, world.turns.waits(owner, asked.action.run))
            owner.core.submit(item)

    def _post(self, asked: Asked) -> None:
        """Through another process: a row for the owner, and a row for the answer."""
        number = len(asked.attempts)
        asked.attempts.append("sent")
        try:
            key = f"{GUEST}{asked.action.name}:{number}"
            item = self._item(asked.action)
            self._guest.ask(key, item, partial(self._answered, asked, number, item.entry))
        except PASSING:
            asked.attempts[number] = "refused"


class People:
    """They look at the open tasks now and then, and complete them; sometimes two do the same one."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._busy: dict[str, int] = {}
        self._guest = Guest(world)
        self._number = 0
        # (task, person) of completions that were acknowledged as the one that counts.
        self.told: list[tuple[str, str]] = []

    def begin(self) -> None:
        self._world.after(100 * MS, self._look)

    def _look(self) -> None:
        world = self._world
        for task in world.store.tasks(status=OPEN, limit=100):
            if self._busy.get(task.id, -1) < world.journals.clock_max_ns:
                self._busy[task.id] = world.journals.clock_max_ns + 2_000 * MS
                for person in ("ann", "bob")[: 2 if world.chance(world.faults.duplicated) else 1]:
                    delay = world.rng.randrange(500 * MS)
                    world.after(delay, partial(self._complete, task.id, task.run_id, person))
        world.after(1_000 * MS, self._look)

    def _complete(self, id: str, run: str, person: str) -> None:
        world = self._world
        operation = Operation(name="complete", task=id, actor=Actor(person, ("admin",)), data={"by": person})
        entry = world.trail.entry(person, run, partial(_completes, id, person))
        told = partial(self._answered, id, person, entry)
        command = Operate(run, "task", operation.to_value(), told, entry=entry)
        if world.chance(world.faults.guest):
            self._number += 1
            with suppress(*PASSING):
                self._guest.ask(f"{GUEST}task:{self._number}", command, told)
        elif (owner := world.reach()) is not None:
            owner.core.submit(command)

    def _answered(
        self, id: str, person: str, entry: AuditEntry, value: Any, error: TreadleError | None
    ) -> None:
        assert not self._world.disk.live.in_transaction, f"{id} is answered before its commit"
        if error is None and not value.get("stale"):
            self._world.journals.assert_settled(id, {"by": person})
            self._world.trail.assert_told(entry)
            self.told.append((id, person))


def _completes(task: str, person: str, record: dict[str, Any]) -> bool:
    event = record["event"]
    return bool(event.get("intent") == task and event.get("value") == {"by": person})


@dataclass(slots=True)
class Once:
    """Whether something was answered, among all who ask for it."""

    done: bool = False
