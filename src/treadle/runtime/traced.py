"""How far the journal was told to a collector, as a row of the store: whoever follows it next goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.kernel.values import Value, encode

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


KIND: Final = "traces"
_ROW: Final = ("telemetry", KIND)


def saved(reads: Reads) -> Value | None:
    return reads.document(*_ROW)


def perform(desk: Desk, body: dict[str, Value]) -> None:
    desk.batch.documents.append((*_ROW, desk.clock.now_ns(), encode(body)))
