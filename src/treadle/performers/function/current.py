"""`flow.current()`: what a step may know of its call, and tell of it, in whatever process it runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from treadle.dialects.function.shapes import plain
from treadle.kernel.errors import TreadleError, Unsupported
from treadle.kernel.values import Value


class StepRaised(TreadleError):
    """A step raised an exception."""

    cls = "transport"
    code = "STEP_FAILED"


class Hears(Protocol):
    """Who hears what a step tells."""

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None: ...

    async def keep(self, value: Value) -> None:
        """Returns when the value is durable."""


class Current(msgspec.Struct):
    run: str
    step: str
    attempt: int
    idempotency_key: str
    secrets: dict[str, str | dict[str, str]]
    saved: Value
    _told: Hears

    async def progress(self, type: str, value: Value = None, **data: Value) -> None:
        """Shows people how far the step is."""
        await self._told.progress(type, value, **data)

    async def save(self, value: Any) -> None:
        """Keeps a value for the next attempt at this very call: `flow.current().saved`, after a crash."""
        self.saved = plain(value)
        await self._told.keep(self.saved)


CURRENT: ContextVar[Current] = ContextVar("treadle_step")


def current() -> Current:
    """The step that is being performed."""
    found = CURRENT.get(None)
    if found is None:
        raise Unsupported("flow.current() is for steps, while they run")
    return found
