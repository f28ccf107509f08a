"""What the core asks of itself, and how an operation says that others answer in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from .commands import Operate
from .ports import Ack

if TYPE_CHECKING:
    from .desk import Desk

# What an operation returns when events that it posted answer in its place.
HANDED_ON = object()


class OwnChange(msgspec.Struct, frozen=True):
    """What the core asks of itself: a schedule ticks, a run is late. It has no byte form, is no command, and cannot be
    handed in."""

    change: Callable[[Desk], object]
    ack: Ack | None = None


Change = Operate | OwnChange
