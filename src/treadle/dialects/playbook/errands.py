"""What a `step` intent asks of a worker, read in this one place.

All of them are of one kind, because a kind is seen from outside: in journals, in `waiting_for`, by whoever
performs it. New runs ask for step-runs, leases and proofs only; the others are of runs that 0.1.0 began, whose
machine could store nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypedDict

import msgspec

from treadle.kernel.values import Value

KIND: Final = "step"


class LeaseParams(TypedDict, total=False):
    """Iterations for one worker: their items from `first` on, how many may run side by side, and what earlier
    ones wrote."""

    first: int
    items: list[Value]
    slots: int
    total: int
    writes: dict[str, Value]
    appends: dict[str, list[list[Value]]]


class StepRun(msgspec.Struct, frozen=True):
    """One pipeline: of a step-run or of one iteration of its loop."""

    step: str


class Lease(msgspec.Struct, frozen=True):
    """Many iterations of a loop with `exec: local`."""

    step: str
    lease: LeaseParams


class Prove(msgspec.Struct, frozen=True):
    """Every entry of the keychain resolves; no value comes back."""

    entries: list[str]


class Render(msgspec.Struct, frozen=True):
    """The arguments of one arc, which are too large for the journal (0.1.0)."""

    step: str
    arc: int


class Keep(msgspec.Struct, frozen=True):
    """A chunk of a loop's results (0.1.0)."""

    chunk: Value


Errand = StepRun | Lease | Prove | Render | Keep


# What tells the others from a step-run, which nearly all of them are.
_TELLING: Final = frozenset({"keep", "prove", "render", "lease"})


# Whether parameters are a step-run's: they name nothing that tells of another errand.
is_step_run: Final[Callable[[Mapping[str, Value]], bool]] = _TELLING.isdisjoint


def errand_of(params: Mapping[str, Value]) -> Errand:
    if is_step_run(params):
        return StepRun(params["step"])
    match params:
        case {"keep": chunk}:
            return Keep(chunk)
        case {"prove": entries}:
            return Prove(entries)
        case {"step": step, "render": arc}:
            return Render(step, arc)
        case {"step": step, "lease": lease}:
            return Lease(step, lease)
    return StepRun(params["step"])
