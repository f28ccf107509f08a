"""What passes between the core and whoever does its work, as data; its byte form is `messages.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from treadle.kernel.model import Receipt
from treadle.kernel.values import Value
from treadle.runtime.ports import Work

# The pool of work that asks for none.
DEFAULT_POOL: Final = "default"
# Nobody is handed more at once.
TAKE_MAX: Final = 1_000
NOT_HANDED_OUT: Final = "NOT_HANDED_OUT"
# What the worker in the owner's own process is called, and its lane for work that it leaves to all others.
RESIDENT: Final = "resident"
OTHERS: Final = ""


class Handed(msgspec.Struct, frozen=True):
    """Work in a worker's hands. `attempt` counts how often it was handed out; `lease` is what the worker shows
    for it, good for `lease_s` seconds unless renewed."""

    work: Work
    attempt: int
    lease: str
    lease_s: float


class Taken(msgspec.Struct, frozen=True):
    """What a worker got; and leases of its own whose work nobody wants any more."""

    items: list[Handed]
    revoked: list[str]


class Settling(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt on its way back. `lease` shows that the intent was handed to whoever sends it."""

    lease: str
    receipt: Receipt


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Progress of an intent: a frame to be shown, or a checkpoint to go on from, with what happened since the
    last one."""

    intent: str
    lease: str
    seq: int
    kind: Literal["frame", "checkpoint"]
    value: Value = None
    # Of a frame: what it is.
    type: str = "progress"
    events: list[dict[str, Value]] = []


class Refusal(msgspec.Struct, frozen=True):
    intent: str
    code: str


class Settled(msgspec.Struct, kw_only=True):
    """What became of a batch of receipts, after the commit: ids of intents."""

    settled: list[str] = []
    stale: list[str] = []
    refused: list[Refusal] = []


class Noted(msgspec.Struct, kw_only=True):
    """What became of a batch of progress: intents whose progress is on disk, and those that are lost."""

    durable: list[str] = []
    lost: list[str] = []


# Whether a worker has what a piece of work needs.
Can = Callable[[Work], bool]
