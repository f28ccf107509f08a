"""What happens to processes, and to the disk under them, at the rates of the world's faults."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from treadle.store.members import LEASE_NS
from treadle.store.rows import Batch

from .disk import Died
from .workload import Housed

if TYPE_CHECKING:
    from .process import SimProcess
    from .world import SimWorld

MS: Final = 1_000_000
SECOND: Final = 1_000 * MS
# How long anything may fail. The next fault may mend what the last one broke: so the weather clears early in some worlds.
SPELLS: Final = (150, 500, 1_500, 3_000)
# Applies are asked for one after the other: where there are some, they have to meet it.
SPELLS_ASKING: Final = (1_500, 3_000, 6_000)
# For how long a process stands still in the middle of a turn.
PAUSES: Final = (MS, 50 * MS, SECOND, 12 * SECOND)
# In how many points of a turn something happens in the middle of it.
POINTS: Final = 60
# How long one stands still before it writes.
HESITATIONS: Final = (50 * MS, 300 * MS, SECOND, 2 * SECOND)
# How long after its store went a process may begin another turn.
GONE_NS_MAX: Final = SECOND


class Weather:
    def __init__(self, world: SimWorld) -> None:
        self._world = world
        # How far the store's clock, by which leases go, was set forward.
        self.leases_ahead_ns = 0

    def over(self, process: SimProcess) -> int:
        """What happens to a process before its turn; how long it is paused."""
        world = self._world
        rng, faults = world.rng, world.faults
        if world.chance(faults.crash):
            process.fuse = rng.randrange(POINTS)
        if world.chance(faults.halt):
            process.amid(rng.randrange(POINTS), partial(world.go_on_without, process))
        if world.chance(faults.power_loss):
            world.lose_power()
        if world.chance(faults.usurp):
            if world.cores > 1:
                process.amid(rng.randrange(POINTS), self._end_leases)
            elif world.owner is process:
                world.after(0, self._usurp)
        if world.chance(faults.regain) and world.cores > 1:
            process.amid(rng.randrange(POINTS), self._take_and_give_back)
        if world.chance(faults.replaced):
            process.amid(rng.randrange(POINTS), self.replace)
        if world.chance(faults.clock_jump):
            world.offset_ns += rng.choice((-1, 1)) * rng.randrange(60 * SECOND)
        if world.chance(faults.disk_full) and not world.disk.full:
            world.disk.full = True
            world.after(rng.randrange(5 * SECOND), self._make_room)
        # Several members have leases, which must run out now and then.
        longest = 3 * SECOND if world.cores == 1 else 12 * SECOND
        return rng.randrange(longest) if world.chance(faults.pause) else 0

    def over_commit(self, batch: Batch) -> None:
        """Where members have to agree, one of them stands still where that matters most: it has decided, and has not
        written. Shorter than its lease, or it could not write any more."""
        world, process = self._world, self._world.acting
        if process is None or not batch.records or not isinstance(world.workload, Housed):
            return
        if world.chance(world.workload.hesitates(process.core.held.holds)):
            world.go_on_without(process, HESITATIONS)
            if process.dead:
                raise Died(process.name)

    def _end_leases(self) -> None:
        """All leases run out at once, and whoever looks first takes what others hold, who live and do not know it yet."""
        self.leases_ahead_ns += LEASE_NS + 1

    def _take_and_give_back(self) -> None:
        """Somebody has taken every shard, and given it back: nobody else mends what its holder forgets of it."""
        disk = self._world.disk
        if not disk.live.in_transaction:
            disk.live.execute("UPDATE shards SET epoch = epoch + 1")
            disk.image = disk.live.serialize()

    def replace(self) -> None:
        """A copy takes the place of the store's file. Whoever has that open stops soon."""
        world = self._world
        world.disk.replace()
        until_s = world.monotonic() + GONE_NS_MAX / 1e9
        for process in world.alive():
            world.after(2 * GONE_NS_MAX, partial(self._expect_end, process, until_s))

    def take_store_away(self, events_max: int) -> None:
        """Nothing is left to commit: only who looks finds that its store is gone."""
        there = self._world.alive()
        self.replace()
        gone = self._world.go(events_max, lambda: all(process.dead for process in there))
        assert gone, "a store is gone, and whoever had it open goes on"

    def _expect_end(self, process: SimProcess, until_s: float) -> None:
        """Who is paused, or stands still, has its time yet."""
        if process.dead:
            return
        assert process.turned_s < until_s, f"{process.name} goes on, and its store is gone"
        self._world.after(GONE_NS_MAX, partial(self._expect_end, process, until_s))

    def _make_room(self) -> None:
        self._world.disk.full = False

    def _usurp(self) -> None:
        """A second process takes the store while the first one still believes it owns it."""
        if self._world.owner is not None and not self._world.owner.dead:
            self._world.start_process()
