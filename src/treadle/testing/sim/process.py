"""One simulated engine process: the real core on the real store, and workers that are driven by hand.

Every clock reading, SQL statement and call to the outside is a point at which it may die; then its
memory, its mailboxes, its leases and its workers (`workers.py`) are gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.bus.local import LocalBus
from treadle.host.asking import Correspondence
from treadle.host.sharing import Sharing
from treadle.host.thread import AGAIN, Turning
from treadle.kernel.errors import CommitUnknown, ConnectionLost, TreadleError
from treadle.kernel.model import Receipt
from treadle.runtime import collecting, commands, deploys, keeping, schedules
from treadle.runtime.commands import Deliver, Operate
from treadle.runtime.core import Core
from treadle.runtime.desk import NoOperations
from treadle.runtime.fetching import at_once
from treadle.runtime.ports import Ack, Audience, News, Work
from treadle.runtime.recovery import offers
from treadle.runtime.registry import Registry, machines_of
from treadle.store.commits import UnderWay
from treadle.store.members import Membership
from treadle.store.rows import Batch, Numbered
from treadle.store.sql import SqlStore

from .disk import Died, SimDialect, SimPayloads, SimTransaction
from .house import SimHouse
from .late_code import LateCode
from .weather import MS
from .workers import LEASE_MS, SimWorkers
from .workload import Housed

if TYPE_CHECKING:
    from treadle.runtime.desk import Handing
    from treadle.store.commits import Transaction
    from treadle.store.protocol import Reads

    from .world import SimWorld

POLL_NS = 250 * MS


class SharedStore(SqlStore):
    """A store that several processes share, as a server keeps it: its numbers are given out in one place, and the
    answer to a commit may get lost on the way."""

    def __init__(self, dialect: SimDialect, files: SimPayloads | None, world: SimWorld) -> None:
        super().__init__(dialect, files)
        self._world = world
        # What one of them removes, all of them put new rows behind.
        self._behind = world.behind

    def reserve(self, kind: Numbered, count: int) -> range:
        numbers = self._world.numbers
        first = numbers.get(kind, 0) + 1
        numbers[kind] = first + count - 1
        return range(first, first + count)

    def commit(self, batch: Batch) -> None:
        self._world.weather.over_commit(batch)
        self._claim(batch)
        try:
            self._answered(partial(super().commit, batch), lambda: None)
        finally:
            self._connection.claims = {}

    def begin(self, batch: Batch) -> UnderWay:
        self._world.weather.over_commit(batch)
        self._claim(batch)
        try:
            return super().begin(batch)
        except BaseException:
            self._connection.claims = {}
            raise

    def _claim(self, batch: Batch) -> None:
        """What a commit says of itself: looked at when it is made."""
        self._connection.claims = {shard: self.held.get(shard, -1) for shard in batch.shards}

    def _finish(self, transaction: Transaction) -> None:
        over = isinstance(transaction, SimTransaction) and transaction.over
        try:
            self._answered(partial(super()._finish, transaction), None if over else transaction.undo)
        finally:
            self._connection.claims = {}

    def _answered(self, do: Callable[[], None], undo: Callable[[], None] | None) -> None:
        """What `PostgresStore` does: it asks what became of a commit whose answer was lost, and where nobody tells, it
        says that."""
        world = self._world
        if not world.chance(world.faults.unknown):
            do()
            return
        came_to_be = undo is None or world.rng.random() < 0.5
        if undo is None or came_to_be:
            do()
        else:
            undo()
        if world.rng.random() < 0.5:
            raise CommitUnknown("the answer to a commit was lost, and the store stays away (simulated)")
        if not came_to_be:
            raise ConnectionLost("the store went away before a commit (simulated)")


class SimProcess:
    """An engine process; also its own clock and port."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.fuse: int | None = None
        # What happens around it in the middle of things, and after how many points; and whether one of its threads is in
        # the middle of a step.
        self._amid: tuple[int, Callable[[], None]] | None = None
        self.busy = False
        self._door: list[Deliver] = []
        # What was done here: intents, each with its run, and the epoch at which its shard was held.
        self._done_here: dict[str, tuple[str, int]] = {}
        self.bus = LocalBus(world, lease_ms=LEASE_MS, queue_max=world.queue_max, again=self.offer_again)
        self.workers = SimWorkers(self)
        # Which of all files that had the store's name it has open.
        self.file_number = world.disk.number
        dialect = SimDialect(world.disk, self.point, follows=world.cores > 1)
        files = world.files(self.point)
        self._store = SqlStore(dialect, files) if world.cores == 1 else SharedStore(dialect, files, world)

    def take_over(self) -> None:
        """Takes the store over, or a part in it."""
        world, store = self.world, self._store
        self.epoch = 0 if world.cores > 1 else store.own()
        elsewhere = Correspondence(
            self, monotonic=world.monotonic, token=lambda size: world.entropy(size).hex()
        )
        workload = world.workload
        self.house = SimHouse(self, workload) if isinstance(workload, Housed) else None
        late = world.faults.late_code and self.house is None
        code = LateCode(self, machines_of(workload.machines)) if late else None
        self.core = Core(
            store,
            self.registry_of(store) if code is None else Registry(code.machine_of, store),
            self,
            clock=self,
            entropy=world.entropy,
            operations=SimOperations(self.house),
            limits=world.limits,
            elsewhere=elsewhere if world.cores > 1 else None,
            eager=self if world.cores == 1 and world.pure_share else None,
            beside=at_once if code is None else code.beside,
        )
        self.sharing: Sharing | None = None
        # The threads of this process: that of the core, as the steps of its life, and workers who come to its
        # door in the middle of them.
        poll_s = POLL_NS / 1e9 if world.polls else None
        if world.cores > 1:
            member = SimMembership(self, SimDialect(world.disk, self.point))
            self.sharing = sharing = Sharing(self.core, member, self.bus, monotonic=world.monotonic)
            sharing.look()
            beside = partial(elsewhere.go_on, store)
            self.turning = Turning(
                self.core, poll_s=poll_s, renew=sharing.renew, beside=beside, monotonic=world.monotonic
            )
        else:
            self.turning = Turning(self.core, poll_s=poll_s, monotonic=world.monotonic)
        self._steps = self.turning.steps()
        self._waits = False
        # The number of the calendar's entry for its next step.
        self.plan = 0
        # When its last step began.
        self.turned_s = -math.inf
        # Whether a call has been heard, and the step that follows is in the calendar.
        self.woken = False

    def registry_of(self, reads: Reads) -> Registry:
        """What readers and workers go by, beside the core: they load what they need themselves."""
        if self.house is None:
            return Registry(machines_of(self.world.workload.machines), reads)
        return self.house.library.registry(reads)

    def point(self) -> None:
        """Somewhere in the middle of things: a place to die, and for another thread to go on."""
        if self.dead:
            raise Died(self.name)
        if self._door and self.world.rng.random() < 0.3:
            self._come_in(self._door.pop(0))
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.dead = True
                raise Died(self.name)
        if self._amid is not None:
            self._meet(*self._amid)

    def amid(self, points: int, do: Callable[[], None]) -> None:
        """Something happens after so many points: between what it has read and what it writes, if it comes to that."""
        self._amid = (points, do)

    def forget_amid(self) -> None:
        self._amid = None

    def _meet(self, points: int, do: Callable[[], None]) -> None:
        if points > 0 or self.world.disk.live.in_transaction:
            # In a transaction it holds up all others: it happens after that.
            self._amid = (points - 1, do)
            return
        self._amid = None
        do()
        if self.dead:
            raise Died(self.name)

    def kill(self) -> None:
        self.dead = True
        self.workers.close()
        if self.house is not None:
            self.house.loop.close()

    def assert_nothing_left(self, shards: Collection[int]) -> None:
        """Of shards that it gives away: whoever has them next does nothing that was done here. What was done before it
        lost them, and has them again, may be on its way still."""
        shard_of, epochs = self.core.held.shard_of, self.world.disk.epochs()
        for intent, (run, epoch) in list(self._done_here.items()):
            if (shard := shard_of(run)) in shards:
                del self._done_here[intent]
                if epoch == epochs[shard]:
                    self.world.journals.assert_not_open(run, intent)

    def epoch_of(self, run: str) -> int:
        """The epoch at which it holds the shard of a run; -1 if it does not."""
        held = self.core.held
        return self.core.store.held.get(held.shard_of(run), -1) if held.holds(run) else -1

    def turn(self) -> int | None:
        """One step of the core's thread; in how many nanoseconds it wants the next one, None: when it is
        called."""
        self.woken, self.turned_s = False, self.world.monotonic()
        wait_s = self._steps.send(self.core.wait(0) if self._waits else None)
        self._waits = wait_s is not AGAIN
        if wait_s is None:
            return None
        return int(max(wait_s, 0) * 1e9) + self.world.rng.randrange(MS)

    @property
    def is_called(self) -> bool:
        """Whether the core's thread sleeps although something waits for it."""
        return self._waits and not self.woken and self.core.called

    def hand_in(self, item: Deliver) -> None:
        """A worker's thread comes with a receipt: at once, or in the middle of what another thread does."""
        assert isinstance(item.event, Receipt)
        self._done_here[item.event.intent] = (item.run, self.epoch_of(item.run))
        # Where shards are about to be given away, rather while that is looked at.
        is_giving = self.sharing is not None and self.sharing._leaving
        if self.world.rng.random() < (0.8 if is_giving else 0.3):
            self._door.append(item)
            self.world.after(self.world.rng.randrange(2 * POLL_NS if is_giving else MS), self._knock)
        else:
            self._come_in(item)

    def _knock(self) -> None:
        if self._door and not self.dead:
            self.world.step(self, lambda: self._come_in(self._door.pop(0)))

    def _come_in(self, item: Deliver) -> None:
        """What `Worker._serve` does in the end."""
        assert isinstance(item.event, Receipt)
        if not self.turning.turn_with(item):
            self.core.submit(item)
        self.workers.done(item.event.intent)
        if self.turning.failure is not None:
            raise self.turning.failure

    # --- the clock ---

    def now_ns(self) -> int:
        self.point()
        return self.world.now_ns()

    # --- the port: after a commit ---

    def answer(self, answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
        for ack, value, error in answers:
            self.point()
            ack(value, error)

    def dispatch(self, works: list[Work]) -> None:
        self.point()
        for work in works:
            self.world.journals.assert_durable(work, self._still_holds(work.run))
        self.bus.offer(works if self.sharing is None else self.sharing.withhold(works))
        self.world.after(self.world.rng.randrange(5 * MS), self.workers.pump)

    def _still_holds(self, run: str) -> bool:
        """Whether what this process believes of its shards is so: it may have stood still since its commit."""
        held, shard = self.core.held, self.core.held.shard_of(run)
        return not held.several or self.core.store.held.get(shard) == self.world.disk.epochs()[shard]

    def is_pure(self, work: Work, definition: Any) -> bool:
        """A part of all work touches nothing outside; which, its id says."""
        return self.world.is_pure(work.intent.id)

    def begin(self, works: list[Work]) -> None:
        """Before the commit."""
        self.point()
        self.bus.offer(works)
        self.world.after(self.world.rng.randrange(MS), self.workers.pump)

    def revoke(self, intents: list[str]) -> None:
        self.point()
        self.bus.revoke(intents)
        self.workers.drop(intents)

    def offer_again(self, intents: Mapping[str, str]) -> None:
        """The bus has room for what it could not take."""
        for asked in offers(intents, self.core.held):
            self.core.submit(asked)

    def publish_news(self, news: list[News]) -> None:
        self.point()

    @property
    def audience(self) -> Audience:
        return Audience()

    def wants_news(self, run: str, ended: bool = False) -> bool:
        return True


class SimMembership(Membership):
    def __init__(self, process: SimProcess, dialect: SimDialect) -> None:
        super().__init__(dialect, name=process.name)
        self._process = process

    def give(self, shards: Iterable[int]) -> None:
        given = set(shards)
        self._process.assert_nothing_left(given)
        super().give(given)


class SimOperations(NoOperations):
    """Forks, collecting and deploys; and what applications need, where there are some."""

    def __init__(self, house: SimHouse | None) -> None:
        self._house = house

    def perform(self, desk: Handing, asked: Operate) -> Any:
        match asked.name:
            case commands.COLLECT:
                return collecting.perform(desk, asked.body)
            case commands.FORK:
                return keeping.perform_fork(desk, asked.body)
            case commands.SCHEDULE:
                return schedules.perform(desk, asked)
            case "deploy":
                return deploys.perform(desk, deploys.Deploy.from_value(asked.body))
        if self._house is None:
            return super().perform(desk, asked)
        return self._house.applications.perform(desk, asked)
