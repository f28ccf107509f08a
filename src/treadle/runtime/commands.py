"""What can be asked of the core, from any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from treadle.kernel.errors import OwnershipLost, TreadleError
from treadle.kernel.values import Value

from .audit import AuditEntry
from .desk import Desk
from .ports import Ack, Item

# The frame by which a worker says that work which was given up has come to its end all the same.
LATE: Final = "work.late"


class FrameSent(msgspec.Struct, frozen=True):
    """Progress of an intent, on its way to being shown."""

    run: str
    intent: str
    seq: int
    type: str
    data: Value


class CheckpointSaved(msgspec.Struct, frozen=True):
    """An intent's new checkpoint, with what happened since the last one."""

    run: str
    intent: str
    body: Value
    events: list[dict[str, Value]]
    blobs: dict[str, bytes]
    ack: Ack | None


class Operate(msgspec.Struct, frozen=True):
    """An operation as data, so that it reaches the owner of the store from any process: claim, deploy,
    apply. `home` is the run at which it is decided (a task's, an application's), "" for what belongs to the
    whole store. `inbox` is the key of the message it came in, which is done when it is decided."""

    home: str
    name: str
    body: dict[str, Value]
    ack: Ack | None = None
    inbox: str | None = None
    entry: AuditEntry | None = None
    # What was loaded for it, or could not be (`fetching.py`): it has not to be tried again.
    fetched: tuple[str, ...] = ()


class Write(msgspec.Struct, frozen=True):
    """A change that only the process can ask for which owns the store: fork, collect. With an `action` it is
    one that somebody did."""

    change: Callable[[Desk], object]
    ack: Ack | None
    action: str = ""
    target: str = ""
    entry: AuditEntry | None = None


class Handing(Desk, Protocol):
    """The desk of an operation, which may leave its answer to an event."""

    def hand_on(self, asked: Operate, item: Item) -> object:
        """Lets an event answer in place of an operation; the operation's message is done with it."""
        ...


class Operations(Protocol):
    """What a core can be asked for besides events. The core knows none of it: it is handed in by whoever composes
    it."""

    def perform(self, desk: Handing, asked: Operate) -> object:
        """Performs an operation, on the core's thread, as a change of its own. Raises a TreadleError to refuse."""
        ...

    def only_hands_on(self, asked: Operate) -> bool:
        """Whether an operation changes nothing by itself: an event answers in its place, or it is refused."""
        ...


class NoOperations:
    """A core to which only events come."""

    def perform(self, desk: Handing, asked: Operate) -> object:
        raise TreadleError(f"no operation {asked.name!r} is known", code="UNSUPPORTED", cls="user")

    def only_hands_on(self, asked: Operate) -> bool:
        return False


# What a change returns when an event it posted answers in its place.
HANDED_ON = object()

Progress = FrameSent | CheckpointSaved
Change = Operate | Write
Command = Item | Operate | FrameSent | CheckpointSaved | Write


class Elsewhere(Protocol):
    """Those who hold the other shards, as the core sees them."""

    @property
    def asker(self) -> str:
        """Under which name the answers to messages from here are looked for; "" if that is no matter."""
        ...

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        """Messages with these keys are in the inboxes of others: somebody waits for their answers."""
        ...

    def forward(self, commands: list[Item | Operate]) -> None:
        """What is decided elsewhere: it is to be left there as a message."""
        ...


class Nowhere:
    """For a core that has all there is: what it has lost is decided by whoever took it."""

    asker = ""

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        raise AssertionError("nothing leaves a core that has all there is")

    def forward(self, commands: list[Item | Operate]) -> None:
        for command in commands:
            if command.ack is not None:
                command.ack(None, OwnershipLost("it is decided by another process now"))
