"""The kernel: pure, deterministic, without I/O, clock, randomness, threads or dialects.

Everything outside is an intent; everything that comes back is a receipt. A machine answers one
event with a decision; the kernel validates it whole, gives intents their identity, writes the
record and applies it. Replaying a journal is doing the same again and comparing bytes.
"""

from __future__ import annotations

from .errors import TreadleError
from .history import replay
from .machine import Machine
from .model import (
    Apply,
    Cancel,
    Context,
    Continue,
    Decision,
    Domain,
    Event,
    Frame,
    Intent,
    OpenIntent,
    Patch,
    Receipt,
    Rejected,
    Reset,
    Retry,
    Signal,
    Started,
)
from .run import RunState, Step, advance
from .values import Value, decode, digest, encode

__all__ = [
    "Apply",
    "Cancel",
    "Context",
    "Continue",
    "Decision",
    "Domain",
    "Event",
    "Frame",
    "Intent",
    "Machine",
    "OpenIntent",
    "Patch",
    "Receipt",
    "Rejected",
    "Reset",
    "Retry",
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
