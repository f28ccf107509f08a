"""What the nodes of an agent run cost while it runs: turns, tokens and price, read off its journal.

An agent's events do not speak of money. For the live display its journal does: each question to a model is an
intent, each answer a receipt with its usage. What is found here is shown and nothing else; `--stream` and `events`
do not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import BlobMissing
from treadle.kernel.model import is_reference
from treadle.kernel.values import decode_trusted
from treadle.lang.duration import instant_text

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


PAGE = 500


@dataclass(slots=True)
class Spending:
    """Follows one journal. `news` gives `node:turn {node, nth, turn}` and `node:usage {node, usage}`."""

    _seq: int = 0
    # The node of each question that has no answer yet.
    _asked: dict[str, str] = field(default_factory=dict)

    def news(self, reads: Reads, run: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := reads.journal_page(run, after_seq=self._seq, limit=PAGE):
            for stored, _ in page:
                self._seq = stored.seq
                record = stored.record()
                at = instant_text(record["at"])
                found += [{**event, "at": at} for event in self._read(record, reads)]
        return found

    def _read(self, record: Mapping[str, Any], reads: Reads) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        event = record["event"]
        node = self._asked.pop(str(event.get("intent")), None)
        usage = _usage(event.get("value"), reads) if node is not None else None
        if usage:
            found.append({"type": "node:usage", "node": node, "usage": usage})
        for intent in record.get("opened") or ():
            params = intent.get("params") or {}
            if intent["kind"] in ("model", "route", "ask"):
                self._asked[str(intent["id"])] = params["node"]
            if intent["kind"] == "model":
                turn = {name: params[name] for name in ("node", "nth", "turn")}
                found.append({"type": "node:turn", **turn})
        return found


def _usage(value: Any, reads: Reads) -> Mapping[str, Any] | None:
    if is_reference(value):
        with suppress(BlobMissing):
            value = decode_trusted(reads.blob(str(value["checksum"])))
    return value.get("usage") if isinstance(value, Mapping) else None
