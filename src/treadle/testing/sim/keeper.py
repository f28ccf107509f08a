"""Who keeps house: forks runs and deploys while all goes on, and collects the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.apps.snapshots import PINS
from treadle.kernel.errors import PASSING, TreadleError
from treadle.lang.definition import Definition
from treadle.runtime import collecting, commands, deploys, keeping
from treadle.runtime.commands import Operate
from treadle.runtime.registry import DefinitionFamily, Registry
from treadle.store.protocol import Reads
from treadle.store.rows import GUEST

from .clients import PATIENCE_NS, Guest, Once, is_passing
from .process import SimProcess
from .weather import MS
from .workload import Deploying, Forking, ForkWanted, Passing

if TYPE_CHECKING:
    from .world import SimWorld

# How often the store is tidied while all goes on.
TIDY_NS = 2_000 * MS
TIDIED_MAX = 15
# How long one may take, with several members, until it is given up.
TIDYING_NS_MAX = 8_000 * MS
# How old what a collection has read may be when it is made use of.
READ_NS = 300 * MS
# Later than any run is kept.
FAR_NS = 2**62


class Keeper:
    """Forks runs while all goes on; collects the store when all is quiet. It asks the owner itself."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.left = 0
        self.forked: list[ForkWanted] = []
        self.collected = False
        self._guest = Guest(world)
        self._number = 0
        self._tidied = 0
        # What each version was said to be.
        self._deployed: dict[tuple[str, str], str] = {}

    def begin(self) -> None:
        workload = self._world.workload
        for fork in workload.forks() if isinstance(workload, Forking) else ():
            self.left += 1
            self._world.after(fork.at_ms * MS, partial(self._fork, fork, Once()))
        for deployed in workload.deploys() if isinstance(workload, Deploying) else ():
            self.left += 1
            self._world.after(deployed.at_ms * MS, partial(self._deploy, deployed.definition, Once()))
        if isinstance(workload, Passing):
            self._world.after(TIDY_NS, self._tidy)

    def _deploy(self, definition: Definition, once: Once) -> None:
        """Through the owner, or as a guest; until it is answered."""
        if once.done:
            return
        world = self._world
        world.after(PATIENCE_NS, lambda: self._deploy(definition, once))

        def told(value: Any, error: TreadleError | None) -> None:
            if is_passing(error) or once.done:
                return
            once.done = True
            self.left -= 1
            if error is None:
                self._deployed[definition.name, str(definition.version)] = definition.digest
            else:
                assert error.code == "VERSION_TAKEN", f"a deploy is refused: {error}"
            self.check_versions()

        row = deploys.row_of(definition)
        body = deploys.Deploy(row, [], [], True, DefinitionFamily([row], {})).to_value()
        if world.chance(world.faults.guest):
            self._number += 1
            with suppress(*PASSING):
                self._guest.ask(f"{GUEST}deploy:{self._number}", Operate("", "deploy", body), told)
        elif (owner := world.reach()) is not None:
            owner.core.submit(Operate("", "deploy", body, told))

    def check_versions(self) -> None:
        """What was said to be deployed is, and stays so."""
        for (name, version), digest in self._deployed.items():
            found = [row.digest for row in self._world.store.versions(name) if row.version == version]
            assert found == [digest], f"{name}@{version} is not what was deployed"

    def _tidy(self) -> None:
        """Collects what is past its date while all goes on; whoever does it may die over it."""
        self._tidied += 1
        if self._world.journals.closed or self._tidied > TIDIED_MAX:
            return
        self._world.after(TIDY_NS, self._tidy)
        if (owner := self._world.reach()) is not None:
            self._drive(owner, self._collection(None), None, once := Once())
            # The next one begins anew; with several members meanwhile, because a step takes as long as a look at the store.
            patience_ns = TIDY_NS if self._world.cores == 1 else TIDYING_NS_MAX
            self._world.after(patience_ns, partial(setattr, once, "done", True))

    def _fork(self, fork: ForkWanted, once: Once) -> None:
        if once.done:
            return
        world = self._world
        world.after(PATIENCE_NS, lambda: self._fork(fork, once))

        def told(value: Any, error: TreadleError | None) -> None:
            if is_passing(error) or once.done:
                return
            once.done = True
            self.left -= 1
            if error is None or error.code == "RUN_EXISTS":
                world.journals.assert_there(fork.new_id)
                self.forked.append(fork)

        asked = keeping.fork_asked(fork.run, at=None, definition=None, new_id=fork.new_id, by=None)
        if (owner := world.reach()) is not None:
            entry = world.trail.entry("keeper", fork.new_id, lambda record: "forked_from" in record["event"])
            owner.core.submit(Operate(fork.new_id, commands.FORK, asked, told, entry=entry))

    def collect(self) -> None:
        """From the beginning, until it comes to the end in one life of the owner."""
        if self.collected or (owner := self._world.reach()) is None:
            if not self.collected:
                self._world.after(PATIENCE_NS, self.collect)
            return
        once = Once()
        self._drive(owner, self._collection(FAR_NS), None, once, self._all_is_collected)
        self._world.after(3 * PATIENCE_NS, lambda: self._again(once))

    def _collection(self, now_ns: int | None) -> Coroutine[Any, Any, Any]:
        world = self._world
        return collecting.Collection(
            _ask_for, _read, world.homes, clock=world.now_ns, now_ns=now_ns, pins=lambda: PINS
        ).collect()

    def _again(self, once: Once) -> None:
        if not once.done:
            once.done = True
            self.collect()

    def _all_is_collected(self) -> None:
        self.collected = True

    def _drive(
        self,
        owner: SimProcess,
        work: Coroutine[Any, Any, Any],
        value: Any,
        once: Once,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """One step of a collection: what it asks for is a change on the core, or is read beside it. It is `once.done` when
        it is given up."""
        world = self._world
        if once.done:
            work.close()
            return
        try:
            asked = work.send(value)
        except StopIteration:
            once.done = True
            ended()
            return
        if callable(asked):
            # Others go on between what is read and what is made of it.
            found = asked(world.store, owner.registry_of(world.store))
            world.after(world.rng.randrange(READ_NS), lambda: self._drive(owner, work, found, once, ended))
            return
        home, body = asked

        def told(value: Any, error: TreadleError | None) -> None:
            if error is None:
                world.after(MS, lambda: self._drive(owner, work, value, once, ended))

        owner.core.submit(Operate(home, commands.COLLECT, body, told))


class _Asking:
    def __init__(self, asked: Any) -> None:
        self._asked = asked

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._asked)


def _ask_for(name: str, body: dict[str, Any], *, home: str = "") -> Awaitable[Any]:
    return _Asking((home, body))


def _read(question: Callable[[Reads, Registry], Any]) -> Awaitable[Any]:
    return _Asking(question)
