"""The contract between the engine and whatever performs an intent.

A performer is one `async def perform(job) -> Done`, registered for an intent kind. It gets a `Job`:
the intent, the last durable checkpoint, and ways to report progress. It may run several times for
one intent (at least once), so outside effects carry `job.idempotency_key`; what it returns is
admitted exactly once. It is cancelled like any coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from treadle.kernel.model import OpenIntent, ReceiptStatus
from treadle.kernel.stops import is_stop
from treadle.kernel.values import Value

if TYPE_CHECKING:
    from treadle.telemetry.tracer import WorkSpan


def is_revoked(error: BaseException) -> bool:
    """Whether the work at hand is being stopped from outside: its task is cancelled, its coroutine is closed,
    somebody presses Ctrl-C. A task that it had started and waits for may have been cancelled too, and code may raise
    the same exceptions itself: that is a failure like any other."""
    if not isinstance(error, asyncio.CancelledError):
        return is_stop(error)
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a plain function on a thread of its own: nobody can cancel it
        return False
    return task is not None and task.cancelling() > 0


class Done(msgspec.Struct, kw_only=True):
    """What becomes the receipt. `events` are the dialect's events that happened inside the work;
    they ride in the receipt, so short work writes nothing of its own."""

    value: Value = None
    status: ReceiptStatus = "ok"
    error: dict[str, Any] | None = None
    attempts: int = 1
    events: list[dict[str, Any]] = []
    # Who did it, where that is worth recording.
    by: str | None = None
    # The canonical bytes of `value`, from a performer that made the value and keeps nothing of it.
    body: bytes | None = None
    # Whether value and events are canonical, small, and changed by nobody: they are taken as they are.
    is_canonical: bool = False


class Job(Protocol):
    """One intent in a worker's hands."""

    run: str
    workflow: str
    definition: str
    intent: OpenIntent
    options: Mapping[str, Any]
    # The last checkpoint that was saved by an earlier attempt, or None.
    checkpoint: Value
    # Where it is traced here: what a trace says of it besides, a performer notes there. Names and counts, never values.
    span: WorkSpan | None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this intent."""
        ...

    def clean(self, text: str) -> str:
        """The text without the secrets that it quotes."""
        ...

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None:
        """A frame: shown to people and observers, never authoritative. It carries `value`, else the fields."""
        ...

    async def save(
        self, checkpoint: Value, *, durable: bool = False, events: list[dict[str, Any]] | None = None
    ) -> None:
        """Replaces the intent's checkpoint. With `durable`, returns only once it is on disk."""
        ...

    async def load_blob(self, reference: Mapping[str, Any]) -> Value: ...

    async def store_blob(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        """Stores a payload and gives its reference. Durable with the receipt or checkpoint."""
        ...

    async def load_definition(self) -> Any:
        """The run's definition, made ready by its machine."""
        ...

    async def definition_file(self) -> str | None:
        """The file that the run's definition came from, where that is known."""
        ...

    async def secret(self, name: str) -> str | dict[str, str]:
        """A secret's value, resolved now; it is redacted from whatever leaves the worker."""
        ...

    def late(self) -> None:
        """Says that work which was given up (cancelled, out of time) has come to its end all the same.
        It changes nothing; it is counted as a stale receipt."""
        ...


Performer = Callable[[Job], Awaitable[Done]]

# Whether work of this intent never suspends its coroutine (plain functions), so that a worker
# thread can run it without an event loop. Told the intent and the loaded definition.
Threaded = Callable[[OpenIntent, Any], bool]
# The same, told the options of its run besides.
AtOnce = Callable[[OpenIntent, Any, Mapping[str, Any]], bool]


class StaysOpen(Exception):
    """Raised by a performer that cannot do this work here: what it needs is not registered. The
    intent stays open, a diagnostic says why, and an engine that has it will do it."""
