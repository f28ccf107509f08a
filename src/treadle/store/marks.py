"""How far somebody has followed the journal of all runs, and what has moved since."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from treadle.kernel.history import Stored

# Asked with this, a store says how far its runs have moved by now, and of none that it has moved.
NOW: Final = (-1, -1)


class Mark(NamedTuple):
    """How far a follower of the journal is: it has seen everything up to this record of the run with this number."""

    place: int
    run: int = 0
    seq: int = 0


class FollowedRecord(msgspec.Struct, frozen=True):
    mark: Mark
    stored: Stored


class MovedRun(NamedTuple):
    """A run to which something happened."""

    id: str
    no: int
    status: str
    # Whether its first record is among what happened.
    new: bool
