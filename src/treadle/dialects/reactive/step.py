"""What a step function is given and what it gives back: context, continuations, output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

# A generator that is seeded from recorded entropy; nothing here draws from the machine's own.
from random import Random
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from treadle.kernel.values import Value, encode

from .effects import Emission
from .names import RECEIPT_SCHEMA
from .shapes import moment_of

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Output(Generic[S]):
    """All that a step can want: its next state (None: none), events to others, effects, remarks."""

    state: S | None
    events: Sequence[object] = ()
    effects: Sequence[Emission] = ()
    annotations: object = None


def delete(
    *, events: Sequence[object] = (), effects: Sequence[Emission] = (), annotations: object = None
) -> Output[Any]:
    """Ends a cell: its state is removed and its open effects are cancelled."""
    return Output(None, events, effects, annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """How an effect of this instance settled. `value` is the receipt type, None unless status is ok;
    `error` is {class, message, details} otherwise. `seq` is the record that asked for the effect."""

    ref: str | None
    status: Literal["ok", "error", "timeout", "cancelled"]
    value: Any = None
    error: dict[str, Value] | None = None
    effect: str
    intent_id: str
    workflow: str
    key: Any = None
    seq: int
    payload: bytes = b""
    executor: str | None = None
    signature: bytes = b""

    def envelope(self) -> dict[str, Value]:
        """The same as sys/EffectReceiptEnvelope@1, for those who handle all effects alike."""
        value: dict[str, Value] = {
            "schema": RECEIPT_SCHEMA,
            "origin_workflow": self.workflow,
            "intent_id": self.intent_id,
            "effect": self.effect,
            "receipt_payload": self.payload,
            "status": self.status,
            "emitted_at_seq": self.seq,
            "signature": self.signature,
        }
        optional = (
            ("origin_instance_key", None if self.key is None else encode(self.key)),
            ("executor_entrypoint", self.executor),
            ("issuer_ref", self.ref),
        )
        return value | {name: item for name, item in optional if item is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A receipt came whose payload does not fit the effect's receipt type. The effect is settled."""

    ref: str | None
    intent_id: str
    effect: str
    code: str
    message: str = ""
    payload_digest: str
    payload_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Progress of an effect, before its receipt. Only with frames=True."""

    ref: str | None
    intent_id: str
    effect: str
    seq: int
    kind: str
    value: Value


class StepRandom(Random):
    """The generator behind `ctx.random()`; strict steps know it by its class."""


@dataclass(slots=True, kw_only=True)
class Context:
    """Recorded time and entropy, and who is running. A replay sees the same."""

    now_ns: int
    entropy: bytes
    seq: int
    manifest: str
    workflow: str
    key: Any = None
    cell_mode: bool = False
    _drawn: int = field(default=0, repr=False)
    _random: StepRandom | None = field(default=None, repr=False)

    @property
    def now(self) -> datetime:
        """The recorded time in UTC, truncated to microseconds; `now_ns` is exact."""
        return moment_of(self.now_ns)

    def uuid(self) -> UUID:
        """A UUID of its own at each call, the same ones on replay."""
        self._drawn += 1
        drawn = sha256(self.entropy + b"uuid" + self._drawn.to_bytes(8, "big")).digest()[:16]
        return UUID(bytes=drawn, version=4)

    def random(self) -> Random:
        """The step's generator: one for the whole step, so that repeated calls go on drawing."""
        if self._random is None:
            self._random = StepRandom(int.from_bytes(sha256(self.entropy + b"random").digest(), "big"))
        return self._random
