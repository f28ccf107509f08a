"""What some machines can do besides: each role is a few questions that only its machines are asked.

A machine takes a role on by being of its class; whoever asks looks for the role, never for a dialect.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeGuard

from .errors import TreadleError
from .machine import Machine
from .model import Event, OpenIntent, Receipt, Rejected
from .values import Value

# A lifetime without an end.
FOREVER_NS = 2**63 - 1


class JudgingMachine(Machine):
    """Looks at what comes back before it counts."""

    @abstractmethod
    def receipt_problem(self, definition: Any, intent: OpenIntent, receipt: Receipt) -> dict[str, Any] | None:
        """The error of a receipt whose payload does not validate."""

    @abstractmethod
    def takes_rejected(self, definition: Any) -> bool:
        """Whether `step` wants a `Rejected` event; otherwise such a receipt fails the run."""


class StreamingMachine(Machine):
    """May take the progress of its work as events."""

    @abstractmethod
    def wants_frames(self, definition: Any) -> bool:
        """Whether progress frames are events of the run; otherwise they are only shown."""


class KeepingMachine(Machine):
    """Its payloads may live shorter or longer than the run."""

    @abstractmethod
    def has_lifetimes(self, definition: Any) -> bool:
        """Whether a run of this definition can have such payloads at all."""

    @abstractmethod
    def lifetime_ns(self, reference: Mapping[str, Any]) -> int | None:
        """How long after the end of its run a payload is kept; None: as long as the run."""


class CellMachine(Machine):
    """Events alone bring its runs to life: a run's id is its identity, so it is not started or forked by hand."""

    @abstractmethod
    def bars(self, run: str, status: str, event: Event) -> TreadleError | None:
        """Why a run with this status does not take an event, whatever its definition says."""

    @abstractmethod
    def closed_until(self, definition: Any, state_of: Callable[[str], Value]) -> int:
        """Until when, in nanoseconds, runs of this definition take no events, because others are asked whether it may be
        replaced; 0 if they do."""

    @abstractmethod
    def successor(self, definition: Any, state_of: Callable[[str], Value]) -> str | None:
        """The definition that a run at rest is steered under from now on, if that is another one.
        `state_of` gives the state of another run."""


class CodeMachine(Machine):
    """Its definitions are people's code, which need not be at hand."""

    @abstractmethod
    def unavailable(self, definition: Any) -> TreadleError | None:
        """Why a definition cannot be run here, though it could be loaded."""


class PastMachine(CodeMachine):
    """Makes a run's past again with the code it has. So changed code may take over a version that is deployed: each
    run finds out whether it can go on. And it can take its decisions from records (`ctx.recorded`), so that
    looking at a run needs no code."""

    @abstractmethod
    def moves_on(self, definition: Any, event: Event | None) -> str | None:
        """The definition under which a run takes this event, if that is another one: it is moved there first."""

    @abstractmethod
    def forget(self, state: Value) -> None:
        """The runtime has dropped this state: what the machine keeps beside it can go."""


@cache
def has_role(machine: type[Machine], role: type[Machine]) -> bool:
    """`issubclass`. For abstract classes that is a walk through Python, and this is asked at every step."""
    return issubclass(machine, role)


def is_cell(machine: Machine) -> TypeGuard[CellMachine]:
    return has_role(type(machine), CellMachine)


def is_code(machine: Machine) -> TypeGuard[CodeMachine]:
    return has_role(type(machine), CodeMachine)


def is_past(machine: Machine) -> TypeGuard[PastMachine]:
    return has_role(type(machine), PastMachine)


def unavailable(machine: Machine, definition: Any) -> TreadleError | None:
    """Why a definition cannot be run here; what is no code is always at hand."""
    return machine.unavailable(definition) if is_code(machine) else None


def judged(machine: Machine, definition: Any, intent: OpenIntent, event: Receipt | Rejected) -> Event:
    """What a machine is told of a receipt: that it is rejected, where it does not hold."""
    if isinstance(event, Rejected) or not isinstance(machine, JudgingMachine):
        return event
    problem = machine.receipt_problem(definition, intent, event)
    if problem is None:
        return event
    if machine.takes_rejected(definition):
        return Rejected(intent=event.intent, status=event.status, payload=event.value, error=problem)
    raise TreadleError.from_value(problem)
