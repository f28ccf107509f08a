"""The traceback of the step that a run failed of, as its author has to see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LINES_MAX: Final = 12


def traceback_of(document: Mapping[str, Any]) -> str | None:
    """The traceback in a run's error, else in that of the step which the error names."""
    error = document.get("error") or {}
    state = document.get("state")
    steps = state.get("steps") if isinstance(state, Mapping) else None
    step = steps.get(error.get("where")) if isinstance(steps, Mapping) else None
    for found in (error, (step.get("error") or {}) if isinstance(step, Mapping) else {}):
        told = (found.get("details") or {}).get("traceback")
        if isinstance(told, str) and told.strip():
            return told.rstrip()
    return None


def shortened_trace(trace: str) -> list[str]:
    """The last lines of a traceback, where the cause stands."""
    lines = trace.splitlines()
    cut = len(lines) - LINES_MAX
    return lines if cut <= 0 else [f"… ({cut} lines; treadle show has them all)", *lines[cut:]]
