"""Effects: outside work that a workflow declares, asks for and is answered about.

An `Effect` is a name, the type of its params and the type of its receipt. Calling it makes an `Emission`,
plain data that a step returns; nothing happens until the step is durable. The other side is an executor,
an async function that gets a `Call` and never sees the workflow's state.

Built in: the timer, HTTP requests, blobs, and every tool of the other dialects. Not here: running executors
(`treadle.performers.reactive`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value, digest
from treadle.lang.pools import POOL_HINT, is_pool

from .names import HTTP_EFFECT, TIMER_EFFECT, check_name
from .shapes import BYTES, JSON, Misfit, Shape, time_ns
from .types import Nat, derive

P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Awaitable[object]])


@dataclass(frozen=True, slots=True)
class Emission:
    """One effect as a step asks for it. `ref` comes back with the receipt."""

    effect: str
    params: object = None
    ref: str | None = None
    idempotency_key: str | bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[P]):
    """What an executor is given. `idempotency_key` is the same for every attempt at this intent: the one
    the workflow asked for, else the intent's id."""

    params: P
    intent_id: str
    effect: str
    workflow: str
    key: Any
    ref: str | None
    idempotency_key: str
    _progress: Callable[..., Awaitable[None]]

    async def progress(self, kind: str, /, value: Value = None, **data: Value) -> None:
        """Sends a frame: shown to people, and delivered to workflows that declare frames=True. Its value is
        `value`, else the fields."""
        await self._progress(kind, data if value is None else value)


class Effect:
    """A declared kind of outside work; call it with params to ask for it."""

    def __init__(
        self, name: str, params: Shape, receipt: Shape, *, tool: str | None = None, pool: str | None = None
    ) -> None:
        self.name = check_name(name, "effect")
        self.params, self.receipt = params, receipt
        # The tool that performs it, where that is not an executor of the application.
        self.tool = tool
        # The workers that perform it; empty: those that serve no other pool.
        self.pool = pool or ""
        if pool is not None and not is_pool(pool):
            raise DefinitionError(f"{name}: {pool!r:.40} is no name of a pool; {POOL_HINT}", code="BAD_POOL")
        self.run: Callable[[Call[Any]], Awaitable[object]] | None = None

    def __call__(
        self, params: object = None, *, ref: str | None = None, idempotency_key: str | bytes | None = None
    ) -> Emission:
        return Emission(self.name, params, ref, idempotency_key)

    def executor(self, run: F) -> F:
        """Says which async function performs this effect. The last one given is used."""
        self.run = run
        return run

    @property
    def entrypoint(self) -> str | None:
        """Who performs it, as it is named in receipts."""
        if self.run is None:
            return None
        return f"{self.run.__module__}:{getattr(self.run, '__qualname__', type(self.run).__name__)}"

    def node(self) -> dict[str, Value]:
        return {
            "$kind": "defeffect",
            "name": self.name,
            "params": self.params.describe(),
            "receipt": self.receipt.describe(),
            **({"pool": self.pool} if self.pool else {}),
        }

    @property
    def digest(self) -> str:
        return digest(self.node())

    def __repr__(self) -> str:
        return f"<effect {self.name}>"


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The receipt of a timer: the instant that was asked for, whenever it was delivered, and the `key` that it
    was asked for with."""

    delivered_at_ns: int
    key: str | None = None


class TimerEffect:
    """The built-in `rx.timer`: `rx.timer(ctx.now + delay, ref="retry:1")`, or nanoseconds since 1970. `key` comes
    back in the receipt's `TimerFired`."""

    name: Final = TIMER_EFFECT

    def __call__(self, when: datetime | int, *, ref: str | None = None, key: str | None = None) -> Emission:
        try:
            at = time_ns(when) if isinstance(when, datetime) else when
        except Misfit as misfit:
            raise ValueError(f"rx.timer: {misfit.message}") from None
        return Emission(self.name, at if key is None else {"deliver_at_ns": at, "key": key}, ref)

    def __repr__(self) -> str:
        return f"<effect {self.name}>"


timer: Final = TimerEffect()


def effect(name: str, *, params: object, receipt: object, pool: str | None = None) -> Effect:
    """Declares an effect: `charge = rx.effect("payment/charge@1", params=…, receipt=…)`. `pool` names the workers that
    perform it."""
    if not isinstance(name, str):
        raise DefinitionError("an effect's name is text, as in pay/charge@1", code="BAD_NAME")
    if name.startswith("sys/"):
        raise DefinitionError(f"{name}: names under sys/ are built in; choose another", code="NAME_RESERVED")
    return Effect(name, derive(params, f"{name}.params"), derive(receipt, f"{name}.receipt"), pool=pool)


def tool(kind: str) -> Effect:
    """A tool of the worker as an effect, `tool/http@1`: its params are the tool's configuration, its receipt
    the tool's result."""
    return Effect(f"tool/{kind}@1", JSON, JSON, tool=kind)


@dataclass(frozen=True, slots=True)
class BlobStored:
    """Where bytes were put: `blob_ref` is their digest. To get them, the digest is enough."""

    blob_ref: str
    size: int = 0


blob_put: Final = Effect("sys/blob.put@1", BYTES, derive(BlobStored, "sys/blob.put@1.receipt"))
blob_get: Final = Effect("sys/blob.get@1", derive(BlobStored, "sys/blob.get@1.params"), BYTES)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What `rx.http_request` sends. `body_ref` is the digest of a body that was put with `rx.blob_put`, or came
    with another answer."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body_ref: str | None = None


@dataclass(frozen=True, slots=True)
class HttpTimings:
    start_ns: Nat
    end_ns: Nat


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back, whatever its status; `rx.blob_get(rx.BlobStored(body_ref))` gives the bytes of its body."""

    status: int
    headers: dict[str, str]
    body_ref: str | None
    timings: HttpTimings


http_request: Final = Effect(
    HTTP_EFFECT,
    derive(HttpRequest, f"{HTTP_EFFECT}.params"),
    derive(HttpAnswer, f"{HTTP_EFFECT}.receipt"),
)

# Those that a workflow may declare by name alone.
BUILT_IN: Final[dict[str, Effect | TimerEffect]] = {
    built_in.name: built_in for built_in in (timer, http_request, blob_put, blob_get)
}


def emit(
    name: str, params: object = None, *, ref: str | None = None, idempotency_key: str | bytes | None = None
) -> Emission:
    """Asks for an effect by its name. It must be declared all the same."""
    return Emission(name, params, ref, idempotency_key)
