"""What can be asked of the core, from any thread. All that changes something is data: an event for a run (`Deliver`), an
operation by its name (`Operate`), what work has come to (`FrameSent`, `CheckpointSaved`). No code travels, but for a
question (`Inspect`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from treadle.kernel.errors import OwnershipLost
from treadle.kernel.model import Event
from treadle.kernel.values import Value
from treadle.store.protocol import Reads

from .audit import AuditEntry
from .ports import Ack, NewRun

# The frame by which a worker says that work which was given up has come to its end all the same.
LATE: Final = "work.late"
# Names of operations: who only passes one on, or writes down who asked for it, does not need the code that performs it.
COLLECT: Final = "collect"
FORK: Final = "fork"
REMOVE: Final = "remove"
RETURN: Final = "return"
TASK: Final = "task"


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
    # It as a message, where whoever asked has written it: that it can be written is looked at in any case.
    written: bytes = b""


def only_hands_on(asked: Operate) -> bool:
    """Whether an operation changes no row itself: whoever completes a task sends a receipt, or is refused."""
    return asked.name == TASK and asked.body.get("name") == "complete"


class Sent(msgspec.Struct, kw_only=True):
    """An event, with all that is said of it beside it. This is what a message holds (`messages.py`), and all that it can."""

    run: str
    event: Event | None
    create: NewRun | None = None
    expected_version: int | None = None
    submission: tuple[str, str] | None = None
    # Where a start that fails reports.
    reply: tuple[str, str] | None = None
    # Payloads that the event refers to, by their digests.
    blobs: dict[str, bytes] = {}
    # Who asked for it, if somebody did: written down with the decision.
    entry: AuditEntry | None = None


class Deliver(Sent):
    """One event on its way to a run. What is here besides what is sent belongs to this process, and comes from no message.

    `derived` ones were made by a step of the batch at hand: if that commit fails they are made
    again by the retried step, so they are dropped. `inbox` is the key of the message it came in, which is done when it is
    decided.
    """

    # Named once more: these come by position, all else of what is sent by name.
    run: str
    event: Event | None
    ack: Ack | None = None
    inbox: str | None = None
    derived: bool = False
    # The key of the message that it becomes if it does not fit into the batch that made it.
    message: str | None = None
    # The operation that left its answer to this event: where the event would go elsewhere, it does. Whether it may still be is
    # asked again when the event has its turn.
    asked: Operate | None = None


class Own(Deliver):
    """What the core tells a run by itself: its time is up, look what you owe yourself. It has no byte
    form and cannot be handed in, so it needs nobody's signature."""


class View(msgspec.Struct, frozen=True):
    """What somebody may look at on the core's thread: the store as the last commit left it, and whether the core is at
    rest."""

    store: Reads
    # Whether something waits to be decided now.
    busy: Callable[[], bool]
    # When time brings something next: a timer, a tick; None if never.
    next_due_ns: Callable[[], int | None]


class Inspect(msgspec.Struct, frozen=True):
    """A question between two commits, where nobody else can read the store (`memory:`), or about the core itself. It
    changes nothing, is committed with nothing, and nobody is written down for it."""

    question: Callable[[View], object]
    ack: Ack


Progress = FrameSent | CheckpointSaved
Command = Deliver | Operate | FrameSent | CheckpointSaved | Inspect


class Elsewhere(Protocol):
    """Those who hold the other shards, as the core sees them."""

    @property
    def asker(self) -> str:
        """Under which name the answers to messages from here are looked for; "" if that is no matter."""
        ...

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        """Messages with these keys are in the inboxes of others: somebody waits for their answers."""
        ...

    def forward(self, commands: list[Deliver | Operate]) -> None:
        """What is decided elsewhere: it is to be left there as a message."""
        ...


class Nowhere:
    """For a core that has all there is: what it has lost is decided by whoever took it."""

    asker = ""

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        raise AssertionError("nothing leaves a core that has all there is")

    def forward(self, commands: list[Deliver | Operate]) -> None:
        for command in commands:
            if command.ack is not None:
                command.ack(None, OwnershipLost("it is decided by another process now"))
