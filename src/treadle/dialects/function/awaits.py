"""What a function waits for, what that is resolved with, and what one decision of it makes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from treadle.kernel.model import Intent
from treadle.kernel.values import Value

from .loop import FlowFuture

EXPIRED: Final = "expired"


@dataclass(slots=True, eq=False)
class Await:
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


@dataclass(slots=True)
class Settled:
    """What an await is resolved with."""

    status: str
    value: Value
    error: dict[str, Any] | None
    # The record that brought it.
    record: int


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """An event, and its size where it may be large."""

    event: dict[str, Any]
    bytes: int = 0


@dataclass(slots=True)
class Made:
    """What one decision made, apart from the outcome."""

    awaits: list[list[Value]] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)
    events: list[ToldEvent] = field(default_factory=list)
    patches: dict[str, bool] = field(default_factory=dict)
