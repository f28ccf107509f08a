"""What a store knows of a run, and what it is asked about many of them at once.

A core that takes shards over, or whose turn names many runs that are not in memory, asks for all of them together: a
handful of statements, however many runs. What is large or damaged is left out of such an answer. It is asked for by
itself, so that many large runs are never in memory at once, and damage is told of the one run that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from treadle.kernel.history import Stored
from treadle.kernel.values import Value


class RunRow(msgspec.Struct, kw_only=True, gc=False):
    no: int
    id: str
    dialect: str
    workflow: str
    version: str | None
    definition: str
    cell_key: Value = None
    parent: str | None = None
    parent_intent: str | None = None
    continued_from: str | None = None
    reference: str | None = None
    status: str = "running"
    working: bool = False
    started_ns: int = 0
    updated_ns: int = 0
    ended_ns: int | None = None
    retain_ns: int | None = None
    seq: int = 0
    error: dict[str, Any] | None = None


class RunsBegun(NamedTuple):
    """Runs that began in one stretch of time, counted from 0."""

    stretch: int
    workflow: str
    status: str
    runs: int
    # How long those that ended took, on average.
    took_ns: float | None


class ColdRun(NamedTuple):
    """All that a run is loaded from."""

    row: RunRow
    # The last snapshot, with the record at which it was taken; and the records after it.
    cut: tuple[int, bytes] | None
    tail: Sequence[Stored]
    # The number of its last event.
    event_no: int
    # The intents that have a checkpoint, if that was asked.
    checkpoints: frozenset[str] | None = None


class ManyRuns(Protocol):
    """Questions about many runs; each is a few statements."""

    def runs_named(self, ids: Sequence[str]) -> dict[str, RunRow]:
        """Those of them that are there."""
        ...

    def load_many(self, ids: Sequence[str]) -> dict[str, ColdRun | None]:
        """What these runs are loaded from; None for one that is not there. What is large or damaged is left out."""
        ...

    def snapshots_of(self, runs: Collection[int]) -> dict[int, tuple[int, bytes] | None]:
        """The last snapshot of each; None for one that has none. What is large or damaged is left out."""
        ...

    def open_ids_of(self, after: Mapping[int, int]) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
        """What the records of each run after one of them opened and closed, behind the run's number: in their order, one
        run after the other."""
        ...

    def records(self, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """Records by run and number. What is large is left out."""
        ...

    def checkpoints_of(self, runs: Collection[int]) -> dict[int, dict[str, bytes]]:
        """The checkpoints of each run that has any, as they are stored."""
        ...
