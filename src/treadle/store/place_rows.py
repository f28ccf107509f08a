"""Rows of the lines in which runs of limited workflows wait."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class Line(NamedTuple):
    """One line of a workflow: with `lane` "" its only one, else one of those that a key divides it into."""

    workflow: str
    lane: str


class PlaceRow(msgspec.Struct, kw_only=True):
    run: str
    workflow: str
    lane: str = ""
    held: bool = False
    # It has one, and does without it while it waits.
    rests: bool = False
    priority: int = 0
    since_ns: int = 0
    # The limits that its definition stated when it came.
    quota: dict[str, Any] = {}

    @property
    def line(self) -> Line:
        return Line(self.workflow, self.lane)

    @property
    def turn(self) -> tuple[int, int, str]:
        """What orders those who wait: the more urgent first, then who came first."""
        return -self.priority, self.since_ns, self.run


class Crowd(NamedTuple):
    """How many are in a line."""

    held: int
    waiting: int
