"""What a function waits for, what that is resolved with, and what one decision of it makes and is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

import msgspec

from treadle.kernel.model import Intent
from treadle.kernel.values import Value

from .errors import Dropped
from .loop import FlowFuture

EXPIRED: Final = "expired"


class Await(msgspec.Struct, eq=False, gc=False):
    """Something of ours that the function waits for. The collector need not look at it: its life holds it, and lets
    go of it at the end."""

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


class Settled(msgspec.Struct, gc=False):
    """What an await is resolved with."""

    status: str
    value: Value
    error: dict[str, Any] | None
    # The record that brought it.
    record: int


class Made(msgspec.Struct, gc=False):
    """What one decision made, apart from the outcome."""

    awaits: list[list[Value]] = msgspec.field(default_factory=list)
    intents: list[Intent] = msgspec.field(default_factory=list)
    cancel: list[str] = msgspec.field(default_factory=list)
    events: list[dict[str, Any]] = msgspec.field(default_factory=list)
    patches: dict[str, bool] = msgspec.field(default_factory=dict)
    # How large an event is, by its index, where it may be large.
    sizes: dict[int, int] | None = None


# Between decisions, for all who wait: whoever told something there would be heard of.
NOTHING: Final = Made(*cast("Any", ((), (), (), (), MappingProxyType({}))))


class Decided(Protocol):
    """What a life asks of the decision that it is told for."""

    def blob(self, reference: Mapping[str, Any]) -> Value: ...

    def store(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]: ...


class AtRest:
    """Nothing is being decided."""

    def blob(self, reference: Mapping[str, Any]) -> Value:
        raise Dropped

    def store(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        raise Dropped


AT_REST: Final = AtRest()
