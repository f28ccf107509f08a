"""Business processes: human tasks, timers, signals, sub-workflows.

    text or builder ─ normalise ─► canonical definition ─ program ─► blocks of operations
    event ─ machine ─► turn (run to wait) ─ waits ─► intents, and receipts back

`treadle.lang.expressions` is the expression language; `export` turns a canonical
definition back into what people write.
"""

from __future__ import annotations

from .dialect import DIALECT, ProcessDialect

__all__ = ["DIALECT", "ProcessDialect"]
