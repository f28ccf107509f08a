"""What a change works with: the store as the commit at hand will leave it, and the few things it may do.

Operations (claim, deploy, fork), and what the core asks of itself, are performed on the core's thread, each in a commit
to itself. They see this and nothing of the core behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.kernel.errors import TreadleError
from treadle.kernel.run import Step
from treadle.kernel.state import RunState
from treadle.kernel.values import Value
from treadle.lang.quota import Quota
from treadle.store.place_rows import PlaceRow
from treadle.store.rows import Batch, TaskRow

from .commands import Deliver, Operate
from .hot import BlobCache, Hot, HotRuns
from .ports import Clock
from .registry import Registry
from .shards import Held

if TYPE_CHECKING:
    from treadle.store.protocol import Store


class InLine(Protocol):
    """What a change may do with those who are in line (`lines.py`)."""

    def place_for_fork(
        self, run: str, workflow: str, definition: str, source: RunState, input: Value
    ) -> PlaceRow | None:
        """A place at the end of the line for a run that goes on from another one's state, if it needs one."""
        ...

    def enter(self, row: PlaceRow) -> None:
        """The commit at hand starts a run with this place."""
        ...

    def override(self, workflow: str, quota: Quota | None) -> None:
        """Operators say how a workflow is limited; None leaves that to its definition again."""
        ...


class Desk(Protocol):
    @property
    def store(self) -> Store: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def hot(self) -> HotRuns: ...
    @property
    def blobs(self) -> BlobCache: ...
    @property
    def batch(self) -> Batch:
        """The rows that the change writes."""
        ...

    @property
    def held(self) -> Held:
        """Which runs are decided here."""
        ...

    @property
    def lines(self) -> InLine:
        """Who is in line for a workflow that is limited."""
        ...

    def belongs(self, run: str) -> None:
        """Says for which run something is decided besides its events; "" for the whole store."""
        ...

    def entropy(self, count: int) -> bytes: ...

    def post(self, item: Deliver) -> None:
        """Puts an event into a run's mailbox: decided with this commit, or waiting in the inbox with it."""
        ...

    def queued(self) -> list[Deliver]:
        """What waits in mailboxes, for changes that need an empty queue; not what waits for such a change itself."""
        ...

    def task(self, id: str) -> TaskRow | None:
        """A task's row, to be changed in place and then noted."""
        ...

    def note(self, task: TaskRow, what: str, by: str | None, **more: Value) -> None:
        """Adds to a task's history, and writes its row."""
        ...

    def diagnose(self, run: str, code: str, body: dict[str, Value]) -> None: ...

    def remembered(self, submission: tuple[str, str]) -> Value:
        """The answer of a submission id, if it has one."""
        ...

    def remember(self, submission: tuple[str, str], body: Value) -> None:
        """The durable answer of a submission id, written with what it answers."""
        ...

    def stage_snapshot(self, hot: Hot) -> None: ...

    def adopt(self, hot: Hot, step: Step) -> None:
        """Takes in a run that was made by other means than an event: a fork."""
        ...

    def next_run_no(self) -> int: ...

    def next_task_no(self) -> int: ...

    def readable(self) -> None:
        """Gives runs that could not be decided another chance, after what they need was registered."""
        ...

    def offer_again(self, runs: Sequence[str], intents: Collection[str] | None) -> None:
        """Hands out these intents of these runs, where they are open and nobody has them: there was no room for them.
        None for all."""
        ...


class Handing(Desk, Protocol):
    """The desk of an operation, which may leave its answer to an event."""

    def hand_on(self, asked: Operate, item: Deliver) -> object:
        """Lets an event answer in place of an operation; the operation's message is done with it."""
        ...

    def share(
        self,
        asked: Operate,
        items: list[Deliver],
        combine: Callable[[Mapping[str, TreadleError | None]], tuple[object, TreadleError | None]],
    ) -> object:
        """Lets several events answer in place of an operation, once all are decided (`gathering.py`)."""
        ...


class Operations(Protocol):
    """What a core can be asked for besides events and what people do with tasks. The core knows none of it: it is handed in
    by whoever composes it."""

    def perform(self, desk: Handing, asked: Operate) -> object:
        """Performs an operation, on the core's thread, as a change of its own. Raises a TreadleError to refuse."""
        ...


class NoOperations:
    """A core to which only events come, and tasks."""

    def perform(self, desk: Handing, asked: Operate) -> object:
        raise TreadleError(f"no operation {asked.name!r} is known", code="UNSUPPORTED", cls="user")
