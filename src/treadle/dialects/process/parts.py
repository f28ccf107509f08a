"""What is a process's own about its data: the mark of a large payload, the roots of an expression."""

from __future__ import annotations

from typing import Final

from treadle.kernel.model import is_reference
from treadle.kernel.values import Value

# People who look at a run see what is behind a reference with this mark.
HINT: Final = "process"

ROOTS: Final = ("start", "state", "payload", "result", "error", "run")
RUN_FIELDS: Final = ("id", "workflow", "version", "reference", "started_at")


def ours(value: Value) -> Value:
    """A payload that came from outside by reference, marked as business data of a process."""
    return {**value, "schema_hint": HINT} if is_reference(value) else value
