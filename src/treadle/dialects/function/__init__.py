"""Durable functions: `async def` as a workflow.

    @flow.workflow ─ workflow ─► definition (name, version, digest of the source)
    event ─ machine ─► life (the function on a loop of ours) ─► awaits become intents
    receipt ─ machine ─► an entry of the past, an await that is resolved

`loop` is the event loop, `life` one run's function, `past` what the state holds of it, `guard` the watch over it.
"""

from __future__ import annotations

from .dialect import DIALECT, FunctionDialect

__all__ = ["DIALECT", "FunctionDialect"]
