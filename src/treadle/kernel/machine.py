"""What a dialect is to the kernel: one pure machine.

A machine may change `state` in place (linear ownership): when a decision is refused or a commit
fails, the runtime throws the state away and reloads it. It must not keep anything between calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from .limits import STEP_BYTES_MAX, STEP_EVENTS_MAX
from .model import Cancel, Context, Decision, Event, Started
from .values import Value

RETENTION_NS = 30 * 86_400 * 10**9


class Traits(msgspec.Struct, frozen=True):
    """What the runs of a dialect are like. Facts, so that nobody has to ask a machine for them."""

    # False where a completed run can be told more (a cell that is created anew).
    final: bool = True
    # The most bytes one record may have. A dialect that counts its own output exactly raises it.
    record_bytes_max: int = STEP_BYTES_MAX
    # The most events one record may show. A dialect that shows more than its authors emit raises it.
    record_events_max: int = STEP_EVENTS_MAX
    # Whether an ended run's last event stays its last: what comes late is seen in the diagnostics only.
    last_event_closes: bool = False
    # Whether `start` takes a reference for an input that is too large for the journal.
    large_input: bool = False
    # Whether what people send in later (signals, answers to tasks, patches, retries) may be references too.
    large_data: bool = False
    # What those references are marked with. By the usual word people are shown the value; a dialect that shows them the
    # reference, or wrote another word before there was a usual one, has its own (`runtime/payloads.py`).
    payload_hint: str = "payload"
    # Whether people are told of each record what came and what was asked for; else the machine tells in its own
    # events all that there is to tell.
    narrated: bool = False
    # Whether receipts of workers count only with a valid signature of the node.
    signed: bool = False


class Machine(ABC):
    """One per dialect. Deterministic, synchronous, free of I/O. What only some machines can do is in `roles`."""

    dialect: ClassVar[str]
    # Raised when behaviour changes; a run keeps the number it was started with (`ctx.machine`).
    version: ClassVar[int] = 1
    # The oldest version whose runs it still decides as they were decided.
    oldest: ClassVar[int] = 1
    traits: ClassVar[Traits] = Traits()

    @abstractmethod
    def load(self, body: Value) -> Any:
        """Makes a definition's canonical body ready to run. Cached by digest, so it may be slow."""

    @abstractmethod
    def start(self, definition: Any, event: Started, ctx: Context) -> Decision: ...

    @abstractmethod
    def step(self, definition: Any, state: Value, event: Event, ctx: Context) -> Decision:
        """Answers one event. Raises TreadleError to refuse an event from outside."""

    def cancel(self, definition: Any, state: Value, event: Cancel, ctx: Context) -> Decision:
        """By default a cancelled run ends at once, and the kernel cancels its open intents."""
        reason = event.reason or "cancelled"
        error: dict[str, Any] = {
            "class": "user",
            "code": "CANCELLED",
            "message": reason,
            "where": None,
            "details": {},
        }
        return Decision(state=state, status="cancelled", error=error)

    def kinds(self, definition: Any) -> frozenset[str] | None:
        """The intent kinds this definition declares; None leaves it to the engine's registry."""
        return None

    def retention_ns(self, definition: Any) -> int:
        """How long an ended run is kept before `gc` may remove it."""
        return RETENTION_NS

    def compatible(self, definition: Any, state: Value) -> str | None:
        """Why a state cannot go on under this definition (fork, apply); None if it can."""
        return None

    def view(self, definition: Any, state: Value) -> dict[str, Any]:
        """What people see of a state: `{"state": …}` and any further top-level fields of the run
        document (`results`, extra `waiting_for` entries, `stats`)."""
        return {"state": state}
