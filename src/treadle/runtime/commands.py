"""What can be asked of the core, from any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.kernel.values import Value

from .ports import Ack, Item

if TYPE_CHECKING:
    from .core import Core


class FrameSent(NamedTuple):
    """Progress of an intent, on its way to being shown."""

    run: str
    intent: str
    seq: int
    type: str
    data: Value


class CheckpointSaved(NamedTuple):
    """An intent's new checkpoint, with what happened since the last one."""

    run: str
    intent: str
    body: Value
    events: list[dict[str, Any]]
    blobs: dict[str, bytes]
    ack: Ack | None


class Write(NamedTuple):
    """A change that is not an event of a run: deploy, claim, comment, fork, collect."""

    change: Callable[[Core], Any]
    ack: Ack | None


# What a change returns when an event it posted answers in its place.
HANDED_ON = object()

Progress = FrameSent | CheckpointSaved
Command = Item | FrameSent | CheckpointSaved | Write
