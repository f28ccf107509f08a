"""What a store knows of a run, and what it is asked about many of them at once.

A core that takes shards over, or whose turn names many runs that are not in memory, asks for all of them together: a
handful of statements, however many runs. What is large or damaged is left out of such an answer. It is asked for by
itself, so that many large runs are never in memory at once, and damage is told of the one run that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
