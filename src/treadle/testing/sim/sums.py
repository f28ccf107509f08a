"""A workload of reactive applications: events, applies and snapshots, asked for at any member while shards move.

Three versions of one application do the same and say which they are. So what must hold can be read from the journals
in the order of their commits: each record of a cell is decided by the version that is active there and then; each
event is taken once; and a snapshot is of one moment, at which no sink has heard more than its source has told.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from treadle.apps import snapshots
from treadle.dialects.reactive.app import App
from treadle.dialects.reactive.effects import effect
from treadle.dialects.reactive.governance import ApplyBlocked
from treadle.dialects.reactive.index import EMPTY
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.dialects.reactive.step import Output
from treadle.dialects.reactive.types import schema
from treadle.dialects.reactive.workflow import workflow
from treadle.host.acting import Origin, acting
from treadle.kernel.errors import PASSING, EngineStopped, OwnershipLost
from treadle.kernel.machine import Machine
from treadle.kernel.values import decode_trusted
from treadle.lang.definition import Definition
from treadle.work.job import Done, Performer

from .workload import Action

if TYPE_CHECKING:
    from .checks import RunLife
    from .house import SimHouse
    from .world import SimWorld

MS = 1_000_000
PATIENCE_NS = 4_000 * MS
CELLS = 5
NOTES_SHARE = 0.6
# How many events come because everybody has agreed to an apply, and how many of them at once.
RUSH, RUSH_AT_ONCE = 80, 16
NAME = "sums"
SOURCE, SINK, LOG = "sums/source@1", "sums/sink@1", "sums/log@1"


@schema("sums/Add@1")
@dataclass(frozen=True, slots=True)
class Add:
    key: str
    # Whether its source has something done outside, which is in the way of an apply until it is.
    checked: bool


@schema("sums/Note@1")
@dataclass(frozen=True, slots=True)
class Note:
    """For one cell, which is told of it wherever it is decided; an `Add` is accepted where the application is."""

    key: str


@schema("sums/Passed@1")
@dataclass(frozen=True, slots=True)
class Passed:
    key: str


@schema("sums/Count@1")
@dataclass(frozen=True, slots=True)
class Count:
    n: int = 0


check = effect("sums/check@1", params=Passed, receipt=None)


async def perform(job: Any) -> Done:
    return Done(value=None)


def version(number: int) -> App:
    by, code = {"by": number}, str(number)

    @workflow(SOURCE, state=Count, events=[Add], key="key", effects=[check], version=code)
    def source(state: Count | None, event: Any) -> Output[Count]:
        had = state or Count()
        if not isinstance(event, Add):
            return Output(had, annotations=by)
        asked = [check(Passed(event.key), ref=str(had.n))] if event.checked else []
        return Output(Count(had.n + 1), events=[Passed(event.key)], effects=asked, annotations=by)

    @workflow(SINK, state=Count, events=[Passed], key="key", effects=[], version=code)
    def sink(state: Count | None, event: Any) -> Output[Count]:
        return Output(Count((state or Count()).n + 1), annotations=by)

    @workflow(LOG, state=Count, events=[Add, Note], key="key", effects=[], version=code)
    def log(state: Count | None, event: Any) -> Output[Count]:
        return Output(Count((state or Count()).n + 1), annotations=by)

    return App(NAME, [source, sink, log])


VERSIONS: tuple[App, ...] = tuple(version(number) for number in range(3))
_NUMBERS = {app.digest: number for number, app in enumerate(VERSIONS)}


@dataclass(slots=True)
class Wish:
    """Something that is asked for at any member, again and again, until it is answered."""

    at_ms: int
    ask: Callable[[SimHouse], Coroutine[Any, Any, Any]]
    # What holds once it is answered; `since` is how many applies there had been when it was first asked for.
    holds: Callable[[SimWorld, Any, int], None] = field(default=lambda world, value, since: None)
    after: Wish | None = None
    since: int | None = None
    done: bool = False


class Sums:
    def __init__(self, rng: Random) -> None:
        machine = ReactiveMachine()
        for app in VERSIONS:
            machine.attach(app)
        self.machines: Mapping[str, Machine] = {machine.dialect: machine}
        self.definitions: list[Definition] = []
        self.performers: Mapping[str, Performer] = {"sums/check@1": perform}
        self.code: Sequence[App] = VERSIONS
        # By cell: what was published to it; and what to its log alone.
        self._told: dict[str, list[str]] = {f"k{number}": [] for number in range(CELLS)}
        self._noted: dict[str, list[str]] = {f"k{number}": [] for number in range(CELLS)}
        events, self._moves, taken = self._events(rng), self._applies(rng), self._snapshots(rng)
        # Events for single cells that come when everybody has agreed to an apply, and it is not decided; or at last.
        self._rush = [self._event(8_000, Note(f"k{rng.randrange(CELLS)}"), f"r{n}") for n in range(RUSH)]
        for wish in self._rush:
            wish.after = self._moves[-1]
        self._wishes = [*events, *self._moves, *taken, *self._rush]
        # How many applies are so far.
        self._agreed = 0
        self._asked = 0
        # The versions that were active, one after the other, as the journals say.
        self._active: list[int] = []
        self.dawdles_ms = rng.choice((0, 0, 0, 500))

    # --- what is asked for ---

    def _events(self, rng: Random) -> list[Wish]:
        found = []
        for number in range(rng.randrange(30, 100)):
            event: Add | Note = Add(f"k{rng.randrange(CELLS)}", rng.random() < 0.15)
            if rng.random() < NOTES_SHARE:
                event = Note(event.key)
            found.append(self._event(rng.randrange(8_000), event, f"s{number}"))
        return found

    def _event(self, at_ms: int, event: Add | Note, submission: str) -> Wish:
        (self._told if isinstance(event, Add) else self._noted)[event.key].append(submission)
        return Wish(at_ms, partial(_publish, event, submission))

    def _applies(self, rng: Random) -> list[Wish]:
        found: list[Wish] = []
        for number in rng.choice(((1,), (1, 2), (2, 0), (1, 2, 0))):
            last = found[-1] if found else None
            holds = partial(self._is_applied, number)
            found.append(Wish(1_000 + rng.randrange(5_000), partial(_apply, number), holds, last))
        return found

    def _snapshots(self, rng: Random) -> list[Wish]:
        return [Wish(rng.randrange(8_000), _snapshot, _is_of_one_moment) for _ in range(rng.randrange(2, 9))]

    def begin(self, world: SimWorld) -> None:
        for wish in self._wishes:
            world.after(wish.at_ms * MS, partial(self._ask, world, wish))

    def _ask(self, world: SimWorld, wish: Wish) -> None:
        if wish.done:
            return
        world.after(PATIENCE_NS + world.rng.randrange(PATIENCE_NS), partial(self._ask, world, wish))
        process = world.reach()
        if process is None or process.house is None or (wish.after is not None and not wish.after.done):
            return
        wish.since = len(self._active) if wish.since is None else wish.since
        self._asked += 1
        with acting(Origin("client", request=str(self._asked))):
            process.house.loop.begin(wish.ask(process.house), partial(self._answered, world, wish))

    def _answered(self, world: SimWorld, wish: Wish, value: Any, error: BaseException | None) -> None:
        if isinstance(error, (*PASSING, ApplyBlocked, EngineStopped, OwnershipLost)):
            return  # it is asked for again
        if error is not None:
            raise error
        if not world.journals.closed:
            assert wish.since is not None
            wish.holds(world, value, wish.since)
        wish.done = True

    @property
    def idle(self) -> bool:
        return all(wish.done for wish in self._wishes)

    def hesitates(self, decides: Callable[[str], bool]) -> float:
        """While an apply is on its way; most of all once everybody has agreed, but for who decides it."""
        if self._agreed > 0:
            return 0.0 if decides(NAME) else 0.8
        return 0.2 if any(wish.since is not None and not wish.done for wish in self._moves) else 0.0

    @contextmanager
    def agreed(self, world: SimWorld) -> Iterator[None]:
        rush, self._rush = self._rush[:RUSH_AT_ONCE], self._rush[RUSH_AT_ONCE:]
        for wish in rush:
            wish.after = None
            world.after(world.rng.randrange(100 * MS), partial(self._ask, world, wish))
        self._agreed += 1
        try:
            yield
        finally:
            self._agreed -= 1

    # --- what must hold ---

    def recorded(self, life: RunLife, record: dict[str, Any]) -> None:
        """A record was committed."""
        run = life.id
        for event in record.get("events", ()):
            if run == NAME and event["type"] in ("manifest", "applied"):
                self._active.append(_NUMBERS[event["manifest"]])
            elif event["type"] == "annotation":
                by = event["value"]["by"]
                assert by == self._active[-1], (
                    f"{run}#{record['seq']} is decided by version {by}, and {self._active[-1]} is active"
                )

    def _is_applied(self, number: int, world: SimWorld, value: Any, since: int) -> None:
        seen = self._active[max(since - 1, 0) :]
        assert number in seen, f"version {number} is said to be applied, and there were {seen}"

    def endless(self, workflow: str) -> bool:
        return True

    def actions(self, rng: Random) -> list[Action]:
        return []

    def check(self, world: SimWorld) -> None:
        lives = {life.id: life for life in world.journals.lives.values()}
        for key, told in self._told.items():
            for cell, wanted in ((SOURCE, told), (LOG, told + self._noted[key])):
                life = lives.get(f"{cell}/{key}")
                taken = [] if life is None else list(filter(None, map(_submission, life.records)))
                assert sorted(taken) == sorted(wanted), f"{cell}/{key} was told {wanted}, and took {taken}"


async def _publish(event: Add | Note, submission: str, house: SimHouse) -> list[str]:
    return await house.applications.publish(event, None, key=None, submission_id=submission)


async def _apply(number: int, house: SimHouse) -> dict[str, Any]:
    return await house.applications.apply(VERSIONS[number], app=None, wait=True)


async def _snapshot(house: SimHouse) -> dict[str, Any]:
    return await house.applications.snapshot()


def _is_of_one_moment(world: SimWorld, taken: dict[str, Any], since: int) -> None:
    told, heard = (_counts(world, taken[NAME]["roots"][name]) for name in (SOURCE, SINK))
    for key, count in heard.items():
        assert count <= told.get(key, 0), (
            f"a snapshot has {key} told {told.get(key, 0)} times, and heard {count} times"
        )


def _counts(world: SimWorld, root: str) -> dict[str, int]:
    found = {}
    for entry in snapshots.differences(world.store, EMPTY, root):
        found[str(entry["key"])] = int(decode_trusted(world.store.blob(entry["after"]))["n"])
    return found


def _submission(record: dict[str, Any]) -> str | None:
    event = record["event"].get("input") if record["kind"] == "started" else record["event"]
    found: str | None = event.get("submission") if record["kind"] in ("started", "event") else None
    return found
