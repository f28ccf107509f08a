"""What a function waits for, what that is resolved with, and what one decision of it makes."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.kernel.model import Intent
from treadle.kernel.values import Value

from .loop import FlowFuture

EXPIRED: Final = "expired"


class Await(msgspec.Struct, eq=False):
    """Something of ours that the function waits for."""

    number: int
    kind: str
    name: str
    params: dict[str, Any]
    due_ns: int | None
    key: str | None
    future: FlowFuture[Any] | None
    handle: asyncio.TimerHandle | None = None
    place: str | None = None
    opened: bool = False
    bytes: int = 0

    @property
    def is_expiry(self) -> bool:
        """Whether it is the run's own time limit: others may have that name."""
        return self.kind == "timer" and self.name == EXPIRED


class Settled(msgspec.Struct):
    """What an await is resolved with."""

    status: str
    value: Value
    error: dict[str, Any] | None
    # The record that brought it.
    record: int


class ToldEvent(msgspec.Struct, frozen=True):
    """An event, and its size where it may be large."""

    event: dict[str, Any]
    bytes: int = 0


class Made(msgspec.Struct):
    """What one decision made, apart from the outcome."""

    awaits: list[list[Value]] = msgspec.field(default_factory=list)
    intents: list[Intent] = msgspec.field(default_factory=list)
    cancel: list[str] = msgspec.field(default_factory=list)
    events: list[ToldEvent] = msgspec.field(default_factory=list)
    patches: dict[str, bool] = msgspec.field(default_factory=dict)
