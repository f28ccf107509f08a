"""What a test sees of a `World`: plain, frozen rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Intent:
    """An open effect, as a test sees it."""

    id: str
    effect: str
    params: Any
    ref: str | None
    workflow: str
    key: Any
    seq: int
    due_ns: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class CellRow:
    key: Any
    status: str
    size: int
    last_active_ns: int


@dataclass(frozen=True, slots=True)
class Record:
    """One journal record. `digest` chains over the run's records; `state_digest` proves its state."""

    seq: int
    kind: str
    workflow: str
    key: Any
    event: dict[str, Any]
    events: list[dict[str, Any]]
    opened: list[Intent]
    cancelled: list[str]
    status: str
    digest: str
    state_digest: str | None
    at_ns: int
    manifest: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    roots: dict[str, str]
    number: int
    manifest: str


@dataclass(frozen=True, slots=True)
class Proposal:
    id: int
    status: str
    manifest: str
