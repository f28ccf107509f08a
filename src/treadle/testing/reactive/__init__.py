"""Tests of reactive applications: `rx.testing.World`, and a context for calling a step function directly."""

from __future__ import annotations

from hashlib import sha512
from typing import Any

from treadle.dialects.reactive.governance import ApplyBlocked
from treadle.dialects.reactive.step import Context

from .views import CellRow, Intent, Proposal, Record, Snapshot
from .world import START_NS, World


def context(
    *, now_ns: int = START_NS, seed: int = 0, key: Any = None, workflow: str = "", seq: int = 1
) -> Context:
    """What a step function is given, for transition tests: `order(state, event, context())`."""
    entropy = sha512(seed.to_bytes(8, "big") + seq.to_bytes(8, "big")).digest()
    return Context(
        now_ns=now_ns,
        entropy=entropy,
        seq=seq,
        manifest="",
        workflow=workflow,
        key=key,
        cell_mode=key is not None,
    )


__all__ = ["ApplyBlocked", "CellRow", "Intent", "Proposal", "Record", "Snapshot", "World", "context"]
