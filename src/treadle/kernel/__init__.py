"""The kernel: pure, deterministic, without I/O, clock, randomness, threads or dialects.

Everything outside is an intent; everything that comes back is a receipt. A machine answers one
event with a decision; the kernel validates it whole, gives intents their identity, writes the
record and applies it. Replaying a journal is doing the same again and comparing bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import TreadleError
    from .history import replay
    from .machine import Machine
    from .model import Context, Decision, Intent, Receipt, Signal, Started
    from .run import Step, advance
    from .state import RunState
    from .values import Value, decode, digest, encode

__all__ = [
    "Context",
    "Decision",
    "Intent",
    "Machine",
    "Receipt",
    "RunState",
    "Signal",
    "Started",
    "Step",
    "TreadleError",
    "Value",
    "advance",
    "decode",
    "digest",
    "encode",
    "replay",
]

# Imported on first use (PEP 562): whoever needs only the errors pays for nothing else.
_HOMES = {
    "TreadleError": "errors",
    "replay": "history",
    "Machine": "machine",
    **dict.fromkeys(("Context", "Decision", "Intent", "Receipt", "Signal", "Started"), "model"),
    "RunState": "state",
    **dict.fromkeys(("Step", "advance"), "run"),
    **dict.fromkeys(("Value", "decode", "digest", "encode"), "values"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
