"""The ids of traces: derived, never drawn, so that whoever tells of a run, and however often, tells of the same spans.

A run belongs to the trace that it was started with (`options["traceparent"]`, W3C Trace Context), which its children
inherit; else to one made of the id of its family's root. Ids of spans are made of what they are about. All of them are
salted with something that only one store has: the same id of a run in two stores is two traces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .model import root_of

# The option of a run that names the trace it belongs to.
OPTION: Final = "traceparent"
_TEXT: Final = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
_RATIO_BITS: Final = 64


class TraceContext(msgspec.Struct, frozen=True):
    """A span as others refer to it; `trace` and `span` in hexadecimal."""

    trace: str
    span: str
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def parse_traceparent(text: object) -> TraceContext | None:
    """What a `traceparent` says; None if it is none, or says nothing."""
    found = re.fullmatch(_TEXT, text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not span.strip("0"):
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & 1))


class TraceIds:
    """The ids of one store's spans. `ratio` is the part of the traces that begin here which is told of at all."""

    def __init__(self, salt: bytes = b"", *, ratio: float = 1.0) -> None:
        self._salt = hashlib.sha256(b"treadle traces" + salt).digest()[:16]
        self._bound = round(ratio * 2**_RATIO_BITS)

    def origin(self, run: str, options: Mapping[str, Any]) -> TraceContext:
        """The trace of a run, and the span outside that it was started by ("" if there is none)."""
        given = parse_traceparent(options.get(OPTION))
        if given is not None:
            return given
        trace = self._hash("trace", root_of(run), 32)
        return TraceContext(trace, "", int(trace[16:], 16) < self._bound)

    def run(self, run: str, life: int = 1) -> str:
        """The span of a run; of one that went on after its end, from the record `life` on."""
        return self._hash("run", f"{run}#{life}", 16)

    def step(self, intent: str) -> str:
        """The span of a step, by the intent that began it."""
        return self._hash("step", intent, 16)

    def attempt(self, intent: str) -> str:
        """The span of one attempt at a step: each is an intent."""
        return self._hash("attempt", intent, 16)

    def context(self, run: str, options: Mapping[str, Any], intent: str) -> TraceContext:
        """What whoever performs an intent continues."""
        origin = self.origin(run, options)
        return TraceContext(origin.trace, self.attempt(intent), origin.sampled)

    def _hash(self, kind: str, name: str, chars: int) -> str:
        return hashlib.sha256(self._salt + f"{kind}:{name}".encode()).hexdigest()[:chars]
