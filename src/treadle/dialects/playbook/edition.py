"""Which rules a run was started under.

A run keeps the machine's version that its first record names, so that its journal replays as it was
decided. Where a version decides otherwise than one before it did, the code asks here. Workers ask too, but
outside a machine's turn the rules are always today's: what a worker gives is recorded, not decided again.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

CURRENT: Final = 3

# Set for the length of one turn of the machine.
edition: ContextVar[int] = ContextVar("treadle_playbook_edition", default=CURRENT)


def is_first() -> bool:
    """Whether the rules of version 1 (0.1.0) apply."""
    return edition.get() < 2
