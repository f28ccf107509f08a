"""The world of one seed: a calendar, a network, clients, people, and the processes between them.

Everything that happens is an entry of one calendar, in order of simulated time; all chance comes
from one generator. So a seed is a history, and the same seed is the same history.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from treadle.kernel.errors import AppendConflict, OwnershipLost, StoreGone, StoreUnavailable, TreadleError
from treadle.kernel.limits import POOL_QUEUE_MAX, Limits
from treadle.kernel.model import TERMINAL
from treadle.kernel.values import encode
from treadle.runtime.deploys import row_of
from treadle.runtime.lines import LIMIT
from treadle.runtime.shards import home_on
from treadle.store.rows import Batch, Numbered, VersionRow
from treadle.store.sql import SqlStore

from .checks import Journals
from .clients import Clients, Network, People
from .disk import Broken, Died, Disk, SimDialect, SimPayloads
from .faults import CALM, Faults, small_limits
from .keeper import Keeper
from .outside import Outside
from .process import SimProcess
from .rivals import Rivals
from .rot import check_bytes
from .strangers import Strangers
from .ticks import Ticks
from .trail import Trail
from .turns import Turns
from .weather import MS, PAUSES, SECOND, SPELLS, SPELLS_ASKING, Weather
from .workload import Heeding, Housed, Limited, Passing, Workload

EPOCH_NS = 1_800_000_000 * 10**9
LIVENESS_EVENTS_MAX = 60_000
COLLECT_EVENTS_MAX = 100
# How much may happen while a process stands still in the middle of a turn; and where members are asked one after the
# other, which takes many turns of theirs.
HALT_EVENTS_MAX = 60
HALT_EVENTS_ASKING_MAX = 600
SHARDS = 6


class SimulationFailed(AssertionError):
    """A promise was broken; the text says which, and how to see it again."""


@dataclass(frozen=True, slots=True)
class SimOutcome:
    """What a seed did. Two runs of a seed have the same digest."""

    seed: int
    digest: str
    records: int
    runs: int
    deaths: int
    commits: int
    faults: Faults
    limits: Limits

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.runs} runs, {self.records} records, {self.commits} commits, "
            f"{self.deaths} deaths, digest {self.digest[:16]}\n  {self.faults}\n  {self.limits}"
        )


class SimWorld:
    def __init__(
        self, seed: int, workload: Workload, *, patience: int = LIVENESS_EVENTS_MAX, cores: int = 1
    ) -> None:
        self.rng = Random(seed)
        # How many processes share the store; with more than one it has shards, and they have leases.
        self.cores = cores
        self.seed = seed
        # How many events it may take, once the weather is fine, until all has come to its end.
        self._patience = patience
        self.workload = workload
        # How many runs of a workflow may be under way at once; looked at after every commit.
        self._concurrency: Mapping[str, int] = {}
        housed = isinstance(workload, Housed)
        self.faults = Faults.of(seed, self.rng, is_file=cores == 1 and not housed)
        if housed:
            # A member whose clock is far off may not close cells; an event that a rival is ahead of time and again is refused
            # in the end. What applies and snapshots must withstand is between what a member reads and what it writes.
            self.faults = replace(self.faults, clock_jump=0.0, conflict=0.0, halt=0.2)
        self.limits = small_limits(self.rng)
        self._spell = self.rng.choice(SPELLS_ASKING if housed else SPELLS)
        # How much of all work touches nothing outside, so that it may be begun before its commit: in every second world.
        self.pure_share = 0.0 if seed % 2 else 0.7
        # Without guests nobody looks for their messages: then nothing but a call wakes a core that sleeps.
        self.polls = cores > 1 or self.faults.guest > 0 or self.faults.replaced > 0
        # How much a process does at once by a worker of its own; 0: its work is done elsewhere, and brought back over a
        # network. How much may wait for it.
        self.places = 0 if housed else self.rng.choice((0, 0, 1, 2))
        self.queue_max = self.rng.choice((3, POOL_QUEUE_MAX)) if self.places else POOL_QUEUE_MAX
        # Whether large payloads are files beside the database.
        self.has_files = seed % 4 > 1
        self.disk = Disk(self.rng)
        self.disk.loses_power = self.faults.power_loss > 0
        self.journals = Journals(self.disk)
        self.trail = Trail(self.disk, self.journals)
        self.performed: dict[str, int] = {}
        self.outside = Outside()
        # The last numbers given to several processes, and the tables of which one of them has removed rows.
        self.numbers: dict[Numbered, int] = {}
        self.behind: set[str] = set()
        self.deaths = 0
        self._events = 0
        self._time_ns = 0
        self.offset_ns = EPOCH_NS
        self._calendar: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._trace = hashlib.sha256()
        self.weather = Weather(self)
        self._generation = 0
        self.owner: SimProcess | None = None
        # Whose thread it is that goes on; and who waits for a turn of theirs.
        self.acting: SimProcess | None = None
        self.turns = Turns()
        self._stands_still = False
        self._processes: list[SimProcess] = []
        # Who waits to take the store over.
        self._heir: SimProcess | None = None
        # A guest on the same disk, which never dies: the eyes of the checkers and of people.
        self.disk.clock = lambda: self._time_ns + self.weather.leases_ahead_ns
        self.store = self._eyes()
        if cores > 1:
            rows = [(shard,) for shard in range(1, SHARDS)]
            self.disk.live.executemany("INSERT INTO shards (shard, epoch) VALUES (?, 0)", rows)
            self.disk.image = self.disk.live.serialize()
            self.store = self._eyes()
        self.homes = [home_on(shard, SHARDS) for shard in range(SHARDS)] if cores > 1 else [""]
        self.network = Network(self)
        self.clients = Clients(self)
        self.people = People(self)
        self.keeper = Keeper(self)
        self.ticks = Ticks(self)
        self.others = (Strangers(self), Rivals(self))
        if isinstance(workload, Heeding):
            self.journals.on_record = workload.recorded
        if isinstance(workload, Passing):
            self.journals.kept_ns = workload.kept_ns
        if isinstance(workload, Limited):
            self._concurrency = workload.concurrency
        self.disk.on_commit = self._committed
        self._deploy()

    def _eyes(self) -> SqlStore:
        return SqlStore(SimDialect(self.disk), self.files())

    def files(self, point: Callable[[], None] | None = None) -> SimPayloads | None:
        return SimPayloads(self.disk, point) if self.has_files else None

    # --- time and chance ---

    def now_ns(self) -> int:
        now = self._time_ns + self.offset_ns
        self.journals.clock_max_ns = max(self.journals.clock_max_ns, now)
        return now

    def monotonic(self) -> float:
        return self._time_ns / 1e9

    def entropy(self, count: int) -> bytes:
        return self.rng.randbytes(count)

    def after(self, delay_ns: int, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._calendar, (self._time_ns + max(delay_ns, 0), self._order, do))

    def is_pure(self, intent: str) -> bool:
        """Its id says."""
        return int(intent[:2], 16) < self.pure_share * 256

    def chance(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    # --- the two phases ---

    def run(self) -> SimOutcome:
        self.boot()
        self.disk.faults = self.faults
        self.clients.begin()
        self.people.begin()
        self.keeper.begin()
        self.ticks.begin()
        for other in self.others:
            other.begin()
        if isinstance(self.workload, Housed):
            self.workload.begin(self)
        met = self.faults
        self.go(self._spell, self._done)
        self._heal()
        if not self.go(self._patience, self._done):
            raise AssertionError(f"nothing moves any more: {self._pending()}")
        self.journals.check(self)
        self.ticks.check()
        self.workload.check(self)
        check_bytes(self)
        outcome = self._outcome()
        self._collect(met)
        if met.replaced:
            self.weather.take_store_away(self._patience)
        return outcome

    def _done(self) -> bool:
        if isinstance(self.workload, Housed) and not (
            self.workload.idle
            and self.journals.settled_all
            and all(p.dead or p.house is None or p.house.loop.idle for p in self._processes)
        ):
            return False
        left = self.keeper.left or self.ticks.left or any(other.left for other in self.others)
        return self.clients.idle and not left and self._quiet()

    def _collect(self, weather: Faults) -> None:
        """The old weather again, while the store is collected; then it clears, and it must come to an end."""
        self.journals.closed = True
        self.faults = self.disk.faults = weather
        self.keeper.collect()
        self.go(COLLECT_EVENTS_MAX, lambda: self.keeper.collected)
        self._heal()
        if not self.go(self._patience, lambda: self.keeper.collected):
            raise AssertionError("the store is never collected to its end")
        self.journals.check_collected(self)

    def go(self, events_max: int, until: Callable[[], bool]) -> bool:
        for count in range(events_max):
            if count % 32 == 0 and until():
                return True
            self._next()
        return until()

    def _next(self) -> None:
        """What is next in the calendar; and whom that called."""
        self._time_ns, order, do = heapq.heappop(self._calendar)
        self._trace.update(order.to_bytes(8, "big"))
        do()
        for process in self._processes:
            if process.is_called and not (process.dead or process.busy):
                process.woken = True
                self._schedule(process, self.rng.randrange(MS))

    def go_on_without(self, process: SimProcess, pauses: Sequence[int] = PAUSES) -> None:
        """One stands still in the middle of a turn; one at a time, so that everybody is met by whole turns of others."""
        if self._stands_still:
            return
        self._stands_still = True
        until_ns = self._time_ns + self.rng.choice(pauses)
        for _ in range(HALT_EVENTS_ASKING_MAX if isinstance(self.workload, Housed) else HALT_EVENTS_MAX):
            if self._calendar[0][0] > until_ns:
                break
            try:
                self._next()
            except Exception as error:
                # Nothing that it has to do with: it would take that for what went wrong with its own command.
                raise Broken(f"{type(error).__name__}: {error}") from error
        self._stands_still = False

    def _heal(self) -> None:
        self.faults = self.disk.faults = CALM
        self.disk.full = False
        for process in self._processes:
            process.fuse = None
            process.forget_amid()
            if process is not self.owner and self.cores == 1:
                # It believes it owns the store, and with nothing to commit it would never learn.
                process.kill()
        if all(process.dead for process in self._processes):  # the owner was not missed beside that one
            self.after(0, self.boot)

    def close(self) -> None:
        """Ends whoever is left, with the work they had begun, and gives the disk back."""
        for process in self._processes:
            process.kill()
        self.disk.close()

    def _quiet(self) -> bool:
        marks = ", ".join("?" * len(TERMINAL))
        rows = self.disk.live.execute(
            f"SELECT DISTINCT workflow FROM runs WHERE status NOT IN ({marks})", sorted(TERMINAL)
        ).fetchall()
        if any(not self.workload.endless(row[0]) for row in rows):
            return False
        return self.disk.live.execute("SELECT 1 FROM inbox LIMIT 1").fetchone() is None

    def _pending(self) -> list[str]:
        found = [f"action {name}" for name in self.clients.waiting()]
        for process in self._processes:
            if process.house is not None and not process.dead:
                found += [
                    f"{process.name} has not answered {asked}" for asked in process.house.loop.waiting()
                ]
        for row in self.store.runs(limit=1_000):
            if row.status not in TERMINAL and not self.workload.endless(row.workflow):
                waits = [f"{i['kind']}:{i.get('ref', '')}" for i in self.journals.lives[row.no].open.values()]
                found.append(f"{row.id} ({row.status}) waits for {waits}")
        inbox = self.store.inbox(5)
        return [*found, *(f"inbox {key}" for key, _ in inbox)]

    def _outcome(self) -> SimOutcome:
        rows = self.disk.live.execute("SELECT run, seq, digest FROM journal ORDER BY rowid").fetchall()
        for run, seq, digest in rows:
            self._trace.update(f"{run}:{seq}:".encode() + digest)
        return SimOutcome(
            self.seed,
            self._trace.hexdigest(),
            len(rows),
            len(self.journals.all_lives()),
            self.deaths,
            self.disk.commits,
            self.faults,
            self.limits,
        )

    # --- processes ---

    def _deploy(self) -> None:
        self.store.own()
        batch = Batch()
        for definition in self.workload.definitions:
            version = definition.version or "1"
            batch.definitions.append(row_of(definition))
            batch.versions.append(VersionRow(name=definition.name, version=version, digest=definition.digest))
        for name, count in self._concurrency.items():
            batch.documents.append((LIMIT, name, 0, encode({"concurrency": count})))
        self.store.commit(batch)

    def _committed(self, claims: Mapping[int, int]) -> None:
        try:
            self._check_commit(claims)
        except AssertionError as error:
            raise Broken(str(error)) from error

    def _check_commit(self, claims: Mapping[int, int]) -> None:
        self.now_ns()
        if claims:
            epochs = self.disk.epochs()
            lost = [shard for shard, epoch in claims.items() if epochs[shard] != epoch]
            assert not lost, f"a commit was made for shards {lost} by who had lost them"
        decided = self.journals.advance()
        self.trail.committed()
        self.ticks.committed()
        for other in self.others:
            other.committed()
        if self.acting is not None:
            taken = (item.run for item in self.acting.core.staging.staged.taken)
            self.turns.committed(self.acting, decided, taken)
        for line, crowd in self.store.crowds().items() if self._concurrency else ():
            most = self._concurrency[line.workflow]
            assert crowd.held <= most, (
                f"{crowd.held} runs of {line.workflow} are under way, and {most} may be"
            )

    def boot(self) -> None:
        if sum(not process.dead for process in self._processes) >= self.cores:
            return
        self.disk.drop_transaction()
        self.journals.assert_recovered()
        self.start_process()
        if self.cores > 1:
            self.after(MS, self.boot)

    def reach(self) -> SimProcess | None:
        """Whom a message reaches: an owner, or one that believes it still is."""
        for process in self._processes:
            if process.dead:
                process.kill()  # it died in the middle of things, and its work with it
        self._processes = [process for process in self._processes if not process.dead]
        return self.rng.choice(self._processes) if self._processes else None

    def holder(self, run: str) -> SimProcess | None:
        """Who decides a run, or believes so."""
        if self.cores == 1:
            return self.reach()
        return next((p for p in self._processes if not p.dead and p.core.held.holds(run)), None)

    def alive(self) -> list[SimProcess]:
        return [process for process in self._processes if not process.dead]

    def start_process(self) -> None:
        """Where it makes a difference it has the store open for a while before it takes it over: it was a guest."""
        heir, self._heir = self._heir, None
        try:
            process = heir or self._opened()
            process.take_over()
            if self.faults.replaced:
                self._heir = self._opened()
        except TreadleError:
            self.after(100 * MS, self.boot)
            return
        self.owner = process
        self._processes.append(process)
        self._schedule(process, 0)
        self.after(SECOND, process.workers.expire)

    def _opened(self) -> SimProcess:
        self._generation += 1
        return SimProcess(self, f"p{self._generation}")

    def _schedule(self, process: SimProcess, delay_ns: int | None) -> None:
        """When the core's thread goes on; None: when it is called. What was planned before is forgotten."""
        process.plan += 1
        plan = process.plan
        if delay_ns is not None:
            self.after(delay_ns, lambda: self._turn(process) if process.plan == plan else None)

    def _turn(self, process: SimProcess) -> None:
        if process.busy:
            # It stands still, and so does whoever turns it: a turn's end says when the next one is, a worker's does not.
            self._schedule(process, MS)
            return
        pause = 0 if process.dead else self.weather.over(process)
        if pause or process.dead:
            process.woken = True
            self._schedule(process, pause if not process.dead else None)
            return
        self.step(process, lambda: self._schedule(process, process.turn()))

    def step(self, process: SimProcess, do: Callable[[], None]) -> None:
        """A step of one of a process's threads, with whatever that does to the process."""
        was_busy, process.busy = process.busy, True
        was_acting, self.acting = self.acting, process
        try:
            do()
        except Died:
            self._died(process)
        except (OwnershipLost, AppendConflict) as error:
            self._deposed(process, error)
        except StoreUnavailable:
            # The store failed it too often in a row: it stops by itself, and is started again.
            self._died(process)
        finally:
            process.busy = was_busy
            self.acting = was_acting

    def _deposed(self, process: SimProcess, error: TreadleError) -> None:
        if self.cores == 1 and process.file_number == self.disk.number:
            assert not isinstance(error, StoreGone), f"{process.name} has the store, and was told: {error}"
            newest = int(self.disk.live.execute("SELECT epoch FROM shards").fetchone()[0])
            assert process.epoch < newest, f"{process.name} owns the store, and was told: {error}"
        process.kill()
        self.after(0, self.boot)

    def _died(self, process: SimProcess) -> None:
        self.deaths += 1
        process.kill()
        self.disk.drop_transaction()
        self.after(self.rng.randrange(200 * MS), self.boot)

    def lose_power(self) -> None:
        self.disk.drop_transaction()
        for process in self._processes:
            self.deaths += not process.dead
            process.kill()
        self._processes.clear()
        self._heir = None
        self.disk.lose_power()
        self.journals.assert_recovered()
        self.after(self.rng.randrange(500 * MS), self.boot)


def simulate(
    seed: int,
    make: Callable[[Random], Workload] | None = None,
    *,
    patience: int = LIVENESS_EVENTS_MAX,
    cores: int = 1,
) -> SimOutcome:
    """Runs one seed to its end; raises SimulationFailed with the command that shows it again."""
    from .drill import Drill

    workload = (make or Drill)(Random(seed ^ 0x5EED))
    world = SimWorld(seed, workload, patience=patience, cores=cores)
    faults = world.faults
    options = " --limited" if isinstance(workload, Limited) else ""
    options += " --applications" if isinstance(workload, Housed) else ""
    options += f" --cores {cores}" if cores > 1 else ""
    try:
        outcome = world.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SimulationFailed(
            f"{type(error).__name__}: {error}\n  {faults}\n  {world.limits}\n"
            f"reproduce with: python -m treadle.testing.sim {seed}{options}"
        ) from error
    finally:
        world.close()
    return SimOutcome(
        **{name: getattr(outcome, name) for name in outcome.__slots__ if name != "faults"}, faults=faults
    )
