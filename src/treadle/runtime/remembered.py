"""Answers that servers gave under a key of the client's choice: the same request again, at any server, gets the first.

They are rows beside the runs and are forgotten after a day: with each that is kept some that are older go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.kernel.values import Value, encode

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


KIND: Final = "answer"
KEPT_NS: Final = 24 * 3_600 * 10**9
FORGOTTEN_AT_ONCE_MAX: Final = 20


def found(reads: Reads, id: str, now_ns: int) -> dict[str, Value] | None:
    """The answer that was given under this id within the last day."""
    row: Value = reads.document(KIND, id)
    return dict(row) if isinstance(row, dict) and now_ns - row["at_ns"] < KEPT_NS else None


def perform(desk: Desk, body: dict[str, Value]) -> None:
    now = desk.clock.now_ns()
    for id in desk.store.documents_before(KIND, now - KEPT_NS, FORGOTTEN_AT_ONCE_MAX):
        desk.batch.documents.append((KIND, id, 0, None))
    desk.batch.documents.append((KIND, str(body["id"]), now, encode({**body, "at_ns": now})))
