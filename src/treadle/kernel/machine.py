"""What a dialect is to the kernel: one pure machine.

A machine may change `state` in place (linear ownership): when a decision is refused or a commit
fails, the runtime throws the state away and reloads it. It must not keep anything between calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .errors import TreadleError
from .limits import STEP_BYTES_MAX, STEP_EVENTS_MAX
from .model import Cancel, Context, Decision, Event, OpenIntent, Receipt, Started
from .values import Value

RETENTION_NS = 30 * 86_400 * 10**9
# A lifetime without an end.
FOREVER_NS = 2**63 - 1


class Machine(ABC):
    """One per dialect. Deterministic, synchronous, free of I/O."""

    dialect: ClassVar[str]
    # Raised when behaviour changes; a run keeps the number it was started with (`ctx.machine`).
    version: ClassVar[int] = 1
    # The oldest version whose runs it still decides as they were decided.
    oldest: ClassVar[int] = 1
    # False where a completed run can be told more (a cell that is created anew).
    final: ClassVar[bool] = True
    # The most bytes one record may have. A dialect that counts its own output exactly raises it.
    record_bytes_max: ClassVar[int] = STEP_BYTES_MAX
    # The most events one record may show. A dialect that shows more than its authors emit raises it.
    record_events_max: ClassVar[int] = STEP_EVENTS_MAX

    # Whether an ended run's last event stays its last: what comes late is seen in the diagnostics only.
    last_event_closes: ClassVar[bool] = False
    # Whether `start` takes a reference for an input that is too large for the journal.
    large_input: ClassVar[bool] = False
    # Whether what people send in later (signals, answers to tasks, patches, retries) may be references too.
    large_data: ClassVar[bool] = False
    # Whether people are told of each record what came and what was asked for; else the machine tells in its own
    # events all that there is to tell.
    narrated: ClassVar[bool] = False
    # Whether receipts of workers count only with a valid signature of the node.
    signed: ClassVar[bool] = False
    # Whether it can take its decisions from records (`ctx.recorded`), so that looking at a run needs no code.
    reads: ClassVar[bool] = False
    # Whether changed content may take over a version that is deployed: each run finds out whether it can go on.
    retakes: ClassVar[bool] = False
    # Whether events alone bring a run to life: its id is its identity, so it is not started or forked by hand.
    by_events: ClassVar[bool] = False

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

    def receipt_problem(self, definition: Any, intent: OpenIntent, receipt: Receipt) -> dict[str, Any] | None:
        """The error of a receipt whose payload does not validate."""
        return None

    def takes_rejected(self, definition: Any) -> bool:
        """Whether `step` wants a `Rejected` event; otherwise such a receipt fails the run."""
        return False

    def retention_ns(self, definition: Any) -> int:
        """How long an ended run is kept before `gc` may remove it."""
        return RETENTION_NS

    def has_lifetimes(self, definition: Any) -> bool:
        """Whether payloads of its runs may live shorter or longer than the run (`lifetime_ns`)."""
        return False

    def lifetime_ns(self, reference: Mapping[str, Any]) -> int | None:
        """How long after the end of its run a payload is kept; None: as long as the run."""
        return None

    def wants_frames(self, definition: Any) -> bool:
        """Whether progress frames are events of the run; otherwise they are only shown."""
        return False

    def bars(self, run: str, status: str, event: Event) -> TreadleError | None:
        """Why a run with this status does not take an event, whatever its definition says."""
        return None

    def successor(self, definition: Any, state_of: Callable[[str], Value]) -> str | None:
        """The definition that a run at rest is steered under from now on, if that is another one.
        `state_of` gives the state of another run."""
        return None

    def moves_on(self, definition: Any, event: Event | None) -> str | None:
        """The definition under which a run takes this event, if that is another one: it is moved there first."""
        return None

    def unavailable(self, definition: Any) -> TreadleError | None:
        """Why a definition cannot be run here, though it could be loaded: its code is not at hand."""
        return None

    def forget(self, state: Value) -> None:  # noqa: B027 # most machines keep nothing
        """The runtime has dropped this state: what a machine keeps beside it can go."""

    def compatible(self, definition: Any, state: Value) -> str | None:
        """Why a state cannot go on under this definition (fork, apply); None if it can."""
        return None

    def view(self, definition: Any, state: Value) -> dict[str, Any]:
        """What people see of a state: `{"state": …}` and any further top-level fields of the run
        document (`results`, extra `waiting_for` entries, `stats`)."""
        return {"state": state}
