"""Where a run stands: everything needed to take it one event further, and what it owes itself."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .model import ENGINE_KINDS, QUEUED, TERMINAL, Continue, Event, OpenIntent, Receipt, Status
from .values import Value, encode

GENESIS: Final = bytes(32)


class RunState(msgspec.Struct, kw_only=True, gc=False):
    """Everything needed to take a run one event further."""

    id: str
    dialect: str
    workflow: str
    version: str | None
    definition: str
    key: Value = None
    machine: int = 1
    seed: bytes = b""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    parent: str | None = None
    parent_intent: str | None = None
    continued_from: str | None = None
    depth: int = 0
    reference: str | None = None
    seq: int = 0
    digest: bytes = GENESIS
    status: Status = "running"
    state: Value = None
    result: Value = None
    error: dict[str, Any] | None = None
    started_ns: int = 0
    last_ns: int = 0
    ended_ns: int | None = None
    open: dict[str, OpenIntent] = msgspec.field(default_factory=dict)
    # Hardly any run has some, and thousands are in memory: replaced, never changed, so that those share one that is empty.
    signals: tuple[dict[str, Any], ...] = ()
    more: tuple[Value, ...] = ()
    retries: int = 0
    intents: int = 0
    # Whether it is in the line of a workflow that is limited; what it does once it has its place.
    placed: bool = False
    held: dict[str, Any] | None = None
    # Kept beside the run, not part of what is digested.
    tail_bytes: int = 0
    tail_records: int = 0
    snapshot_bytes: int = 0
    # What the ids of its intents are made of, once it has opened one.
    identity: bytes = b""
    # How many of the open intents somebody performs: asked with every step, and there may be thousands open.
    performed: int = 0

    def __post_init__(self) -> None:
        self.identity = b""
        opened = self.open  # a copy may have others open than the run it is of
        self.performed = sum(i.kind not in ENGINE_KINDS for i in opened.values()) if opened else 0

    def move(self, definition: str) -> None:
        """Pins the run to another definition; intents opened from now on are identified by it."""
        self.definition = definition
        self.identity = b""

    def identify(self) -> bytes:
        self.identity = encode([self.id, self.definition, self.key])
        return self.identity

    @property
    def shown(self) -> str:
        """Its status as people know it: the journal has no word for those who are held."""
        return self.status if self.held is None else QUEUED

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def working(self) -> bool:
        """Whether something will move this run on without time, people or other runs."""
        return (
            (bool(self.more) and self.held is None)
            or self.performed > 0
            or (bool(self.signals) and self.pending() is not None)
        )

    def pending(self) -> Event | None:
        """The event this run owes itself: a continuation, or a signal that came before its await."""
        if self.held is not None:
            # A fork owes itself what its original did, and waits for its place first.
            return None
        if self.more:
            return Continue(more=self.more[0])
        if self.signals:
            for intent in self.open.values():
                if intent.kind == "signal":
                    for signal in self.signals:
                        if signal["name"] == intent.params["name"]:
                            return Receipt(intent=intent.id, value=signal.get("data"), by=signal.get("by"))
        return None
