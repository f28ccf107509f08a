"""Those around the engine: a network without manners, clients who insist, people with tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.model import Receipt
from treadle.runtime.commands import CheckpointSaved, FrameSent, Operate
from treadle.runtime.messages import GUEST, message_to_bytes, reply_from_bytes
from treadle.runtime.ports import Item
from treadle.runtime.tasks import OPEN, Actor, Operation
from treadle.store.sql import SqlStore

from .disk import SimDialect
from .process import MS, SimProcess
from .workload import Action

if TYPE_CHECKING:
    from .world import World

PATIENCE_NS = 3_000 * MS


class Network:
    """Carries what workers send to whoever owns the store by then: late, twice, or not at all."""

    def __init__(self, world: World) -> None:
        self._world = world

    def work_ns(self, lease_ms: int) -> int:
        """How long a piece of work takes; a stalled worker outlives its lease."""
        rng = self._world.rng
        if self._world.chance(self._world.faults.stalled):
            return (lease_ms + rng.randrange(2 * lease_ms)) * MS
        return rng.randrange(50 * MS)

    def send(self, command: Item | FrameSent | CheckpointSaved, worker: SimProcess | None = None) -> None:
        """`worker` is whose lease ends when the message reaches it; elsewhere the lease runs out."""
        world = self._world
        copies = 1
        if world.chance(world.faults.lost):
            copies = 0
        elif world.chance(world.faults.duplicated) and isinstance(command, Item):
            copies = 2
        for _ in range(copies):
            late = world.rng.randrange(5_000 * MS) if world.chance(world.faults.delayed) else 0
            world.after(late + world.rng.randrange(2 * MS), lambda: self._deliver(command, worker))

    def _deliver(self, command: Item | FrameSent | CheckpointSaved, worker: SimProcess | None) -> None:
        owner = self._world.reach()
        if owner is None:
            return
        if isinstance(command, Item):
            # A copy: two deliveries must not share what the core writes into an item.
            command = Item(command.run, command.event, blobs=dict(command.blobs))
        owner.core.submit(command)
        if worker is owner and isinstance(command, Item) and isinstance(command.event, Receipt):
            owner.bus.done(command.event.intent)


@dataclass(slots=True)
class Asked:
    """One action and how each attempt at it went: sent (no answer yet), ok, stale, refused."""

    action: Action
    attempts: list[str] = field(default_factory=list)
    done: bool = False

    def count(self, outcome: str) -> int:
        return self.attempts.count(outcome)


class Clients:
    def __init__(self, world: World) -> None:
        self._world = world
        self.asked = [Asked(action) for action in world.workload.actions(world.rng)]
        self._by_name = {asked.action.name: asked for asked in self.asked}
        self._guest = SqlStore(SimDialect(world.disk, lambda: None), None)
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
            item = action.item()
            item.ack = self._ack(asked)
            owner.core.submit(item)
            if action.submission is not None and world.chance(world.faults.duplicated):
                again = action.item()
                again.ack = self._ack(asked)
                owner.core.submit(again)

    def _ack(self, asked: Asked) -> Callable[[Any, TreadleError | None], None]:
        number = len(asked.attempts)
        asked.attempts.append("sent")

        def ack(value: Any, error: TreadleError | None) -> None:
            assert not self._world.disk.live.in_transaction, (
                f"{asked.action.name} is answered before its commit"
            )
            self._answered(asked, number, value, error)

        return ack

    def _answered(self, asked: Asked, number: int, value: Any, error: TreadleError | None) -> None:
        if error is None:
            plain = not (value.get("stale") or value.get("duplicate") or value.get("existing"))
            asked.attempts[number] = "ok" if plain else "stale"
        else:
            asked.attempts[number] = "refused"
        if not isinstance(error, PASSING):
            self._finish(asked)

    def _finish(self, asked: Asked) -> None:
        if not asked.done:
            asked.done = True
            self._left -= 1

    def _post(self, asked: Asked) -> None:
        """Through another process: a row for the owner, and a row for the answer."""
        number = len(asked.attempts)
        key = f"{GUEST}{asked.action.name}:{number}"
        asked.attempts.append("sent")
        try:
            self._guest.post([(key, message_to_bytes(asked.action.item()))])
        except PASSING:
            asked.attempts[number] = "refused"
            return
        self._watch(asked, number, key)

    def _watch(self, asked: Asked, number: int, key: str) -> None:
        """Looks for the answer until it is there; some askers die before they have it, or before they
        have taken it away."""
        world = self._world
        if world.chance(world.faults.crash):
            return
        body = world.store.replies([key]).get(key)
        if body is None:
            world.after(50 * MS, lambda: self._watch(asked, number, key))
            return
        self._answered(asked, number, *reply_from_bytes(body))
        if not world.chance(world.faults.crash):
            world.store.forget_replies([key])


class People:
    """They look at the open tasks now and then, and complete them; sometimes two do the same one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._busy: dict[str, int] = {}

    def begin(self) -> None:
        self._world.after(100 * MS, self._look)

    def _look(self) -> None:
        world = self._world
        for task in world.store.tasks(status=OPEN, limit=100):
            if self._busy.get(task.id, -1) < world.journals.clock_max_ns:
                self._busy[task.id] = world.journals.clock_max_ns + 2_000 * MS
                for person in ("ann", "bob")[: 2 if world.chance(world.faults.duplicated) else 1]:
                    delay = world.rng.randrange(500 * MS)
                    world.after(delay, partial(self._complete, task.id, person))
        world.after(1_000 * MS, self._look)

    def _complete(self, id: str, person: str) -> None:
        owner = self._world.reach()
        if owner is None:
            return
        operation = Operation(name="complete", task=id, actor=Actor(person, ("admin",)), data={"by": person})
        owner.core.submit(Operate(id, "task", operation.to_value(), lambda value, error: None))
