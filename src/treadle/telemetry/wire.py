"""Spans as OTLP writes them: protobuf, by hand.

OTLP's form of a trace is frozen (opentelemetry-proto 1.x), small, and all that is needed of it is below; tests read it
back with the standard's own classes. Made with those classes and OpenTelemetry's encoder a span costs ten times as much
(docs/decisions.md), on the same cores as the runs that it tells of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import pack
from typing import Final

from .spans import Attribute, Span, SpanEvent

# Field numbers of opentelemetry/proto/trace/v1/trace.proto, as keys: number << 3 | wire type.
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_KINDS: Final = {"internal": 1, "client": 3, "consumer": 5}
_FAILED: Final = 2
_SAMPLED: Final = 1
_U64: Final = 2**64


def request(resource: Mapping[str, Attribute], spans: Iterable[Span]) -> bytes:
    """An `ExportTraceServiceRequest`: one resource, one scope, these spans."""
    scope = _part(1, _part(1, b"treadle"))
    told = b"".join(_part(2, _span(span)) for span in spans)
    about = b"".join(_attribute(1, key, value) for key, value in resource.items())
    return _part(1, _part(1, about) + _part(2, scope + told))


def _span(span: Span) -> bytes:
    parts = [
        _part(1, bytes.fromhex(span.trace)),
        _part(2, bytes.fromhex(span.id)),
        _part(4, bytes.fromhex(span.parent)) if span.parent else b"",
        _part(5, span.name.encode()),
        _number(6, _KINDS[span.kind]),
        _fixed64(7, span.start_ns),
        _fixed64(8, max(span.start_ns, span.end_ns)),
        *[_attribute(9, key, value) for key, value in span.attributes.items()],
        *[_part(11, _event(event)) for event in span.events],
        _part(15, _part(2, span.error.encode()) + _number(3, _FAILED)) if span.error else b"",
        _FLAGS,
    ]
    return b"".join(parts)


def _event(event: SpanEvent) -> bytes:
    about = b"".join(_attribute(3, key, value) for key, value in event.attributes.items())
    return _fixed64(1, event.at_ns) + _part(2, event.name.encode()) + about


@lru_cache(maxsize=8_192, typed=True)
def _attribute(number: int, key: str, value: Attribute) -> bytes:
    """Most attributes are those of the span before: the same run, workflow, step."""
    if isinstance(value, bool):
        held = _number(2, int(value))
    elif isinstance(value, int):
        held = _number(3, value)
    elif isinstance(value, float):
        held = _DOUBLE + pack("<d", value)
    else:
        held = _part(1, value.encode())
    return _part(number, _part(1, key.encode()) + _part(2, held))


def _part(number: int, body: bytes) -> bytes:
    """A field that has a length: text, bytes, a message."""
    return _varint(number << 3 | _BYTES) + _varint(len(body)) + body


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value % _U64)


def _fixed64(number: int, value: int) -> bytes:
    return _varint(number << 3 | _FIXED64) + value.to_bytes(8, "little")


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL: Final = [bytes([value]) for value in range(0x80)]
_DOUBLE: Final = _varint(4 << 3 | _FIXED64)
# `flags`, which ends with the trace's own: it is sampled.
_FLAGS: Final = _varint(16 << 3 | 5) + _SAMPLED.to_bytes(4, "little")
