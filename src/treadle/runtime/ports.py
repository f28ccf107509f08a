"""What the core needs from outside, and what it hands out: small protocols, plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value


class Clock(Protocol):
    def now_ns(self) -> int: ...


class SystemClock:
    now_ns = staticmethod(time.time_ns)


# Called with the outcome of a command once it is durable: (value, None) or (None, error).
Ack = Callable[[object, TreadleError | None], None]
# Whom to tell what.
Answer = tuple[Ack, object, TreadleError | None]


class Work(msgspec.Struct, frozen=True, gc=False):
    """An opened intent for a worker, as data: a definition is named by its digest, a large payload by its
    reference, and a worker loads what it lacks. The same work may be handed out again after a crash."""

    run: str
    workflow: str
    dialect: str
    definition: str
    options: Mapping[str, Value]
    intent: OpenIntent
    checkpoint: Value = None
    # Of work that came from elsewhere: the attempt that it is, for those who trace it (W3C Trace Context).
    traceparent: str | None = None


class News(msgspec.Struct, frozen=True, gc=False):
    """What a commit changed about one run, for those who watch it."""

    run: str
    status: str
    ended: bool
    events: list[dict[str, Value]]
    # The run's number, which no other has: an id may be used again once its run is removed.
    no: int


class Audience(msgspec.Struct):
    """Whether anybody watches runs here at all; where nobody does, nobody is asked who."""

    anybody: bool = True


if TYPE_CHECKING:

    class Port(Protocol):
        """The outside, as the core sees it. Called on the core thread, after the commit."""

        @property
        def audience(self) -> Audience: ...
        def answer(self, answers: list[Answer]) -> None: ...
        def dispatch(self, works: list[Work]) -> None: ...
        def revoke(self, intents: list[str]) -> None: ...
        def publish_news(self, news: list[News]) -> None: ...
        def wants_news(self, run: str, ended: bool) -> bool: ...


class NewRun(msgspec.Struct, frozen=True, gc=False):
    """How to make a run that is not there yet."""

    dialect: str
    workflow: str
    version: str | None
    definition: str
    key: Value = None
