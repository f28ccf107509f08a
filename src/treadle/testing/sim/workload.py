"""What a simulated world is asked to do: the seam at which dialects plug in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from treadle.dialects.reactive.app import App
from treadle.kernel.machine import Machine
from treadle.kernel.model import Event
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.runtime.commands import Deliver
from treadle.runtime.ports import NewRun
from treadle.work.job import Performer

if TYPE_CHECKING:
    from .checks import RunLife
    from .world import SimWorld


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a client wants, and keeps asking for until it has an answer.

    `name` is unique in the world. `after` names an action that must have been answered before.
    With `submission` asking twice is asking once; without it, it may happen once for each time the
    client had no answer.
    """

    name: str
    at_ms: int
    run: str
    event: Event
    create: NewRun | None = None
    submission: tuple[str, str] | None = None
    after: str | None = None

    def item(self) -> Deliver:
        return Deliver(self.run, self.event, create=self.create, submission=self.submission)


@dataclass(frozen=True, slots=True)
class ForkWanted:
    """A run that somebody wants to go on from another one."""

    at_ms: int
    run: str
    new_id: str


@dataclass(frozen=True, slots=True)
class NextVersion:
    """Another version of a workflow, which somebody wants to deploy while all goes on."""

    at_ms: int
    definition: Definition


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule that somebody adds while all goes on, and pauses a while later. Each tick of it is a run: what was missed is caught
    up with, and what comes too early runs beside the one before, or waits for its end."""

    at_ms: int
    for_ms: int
    name: str
    workflow: str
    input: Value
    every_s: int
    overlap: Literal["allow", "queue"]

    def to_value(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "workflow": self.workflow,
            "input": self.input,
            "every": f"{self.every_s}s",
            "catch_up": "all",
            "overlap": self.overlap,
        }


class Workload(Protocol):
    """A dialect's part in a simulation. Made new for each seed."""

    machines: Mapping[str, Machine]
    definitions: list[Definition]
    performers: Mapping[str, Performer]

    def actions(self, rng: Random) -> list[Action]:
        """What clients do, in any order."""
        ...

    def endless(self, workflow: str) -> bool:
        """Whether runs of this workflow never end (cells)."""
        ...

    def check(self, world: SimWorld) -> None:
        """Called when all is quiet: asserts that every run ended as it should."""
        ...


@runtime_checkable
class Limited(Protocol):
    """A workload some of whose workflows are limited."""

    # How many runs of a workflow may be under way at once.
    concurrency: Mapping[str, int]


@runtime_checkable
class Forking(Protocol):
    """A workload some of whose runs are forked."""

    def forks(self) -> list[ForkWanted]:
        """Which, and when; asked after the actions."""
        ...


@runtime_checkable
class Deploying(Protocol):
    """A workload of whose workflows other versions come while runs are under way."""

    def deploys(self) -> list[NextVersion]: ...


@runtime_checkable
class Scheduling(Protocol):
    """A workload some of whose runs are started by the clock."""

    def schedules(self) -> list[Planned]: ...


@runtime_checkable
class Passing(Protocol):
    """A workload some of whose runs are kept for so short that they are collected while all goes on."""

    def kept_ns(self, definition: str) -> int:
        """How long a run of a definition is kept after its end."""
        ...


@runtime_checkable
class Heeding(Protocol):
    """A workload that has something to say about every record."""

    def recorded(self, life: RunLife, record: dict[str, Any]) -> None:
        """Called with each record, in the order of commits, and its run as it is with it."""
        ...


@runtime_checkable
class Housed(Protocol):
    """A workload that asks for what a whole engine does: its drivers live in a process, and die with it."""

    # Applications whose code every process has.
    code: Sequence[App]

    def begin(self, world: SimWorld) -> None:
        """Puts all that it will ask for into the calendar."""
        ...

    @property
    def idle(self) -> bool:
        """Whether all of it was answered."""
        ...

    def hesitates(self, decides: Callable[[str], bool]) -> float:
        """How likely somebody stands still now who has decided something and has not written it; `decides` tells which
        runs are theirs."""
        ...

    def agreed(self, world: SimWorld) -> AbstractContextManager[None]:
        """Everybody has agreed to an apply, and it is about to be decided."""
        ...

    @property
    def dawdles_ms(self) -> int:
        """How long whoever drives an operation over members waits at most before its next question."""
        ...
