"""The durable side of a `World`: an append-only log of canonical bytes, and blobs by digest.

One log entry is one commit. Everything else (`Tables`) is a fold over the entries, done the same way when
they are written and when they are read back, so a world that is opened from bytes has nothing else to go by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from treadle.kernel.errors import BlobMissing
from treadle.kernel.history import Stored
from treadle.kernel.model import DETACHED_KINDS, OpenIntent
from treadle.kernel.values import Value, decode, digest_bytes, encode

Row = list[Value]


class Disk:
    """Bytes only. `copy` is what another process would find."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.blobs: dict[str, bytes] = {}

    def get(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise BlobMissing(f"the blob {digest} is gone")
        return self.blobs[digest]

    def put(self, body: bytes) -> str:
        digest = digest_bytes(body)
        self.blobs[digest] = body
        return digest

    def append(self, rows: list[Row]) -> None:
        self.log.append(encode(rows))

    def copy(self) -> Disk:
        other = Disk()
        other.log, other.blobs = list(self.log), dict(self.blobs)
        return other


@dataclass(slots=True)
class RunMeta:
    """What is known of a run without loading it."""

    id: str
    workflow: str
    key: Value
    definition: str
    first: str
    records: list[Stored] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    status: str = "running"
    last_ns: int = 0


@dataclass(slots=True)
class Tables:
    """What the log says, folded."""

    seed: int = 0
    now_ns: int = 0
    runs: dict[str, RunMeta] = field(default_factory=dict)
    # Every intent ever opened, with its run; and those that are open, in the order of opening.
    known: dict[str, str] = field(default_factory=dict)
    open: dict[str, OpenIntent] = field(default_factory=dict)
    inbox: dict[str, dict[str, Any]] = field(default_factory=dict)
    submissions: dict[str, Value] = field(default_factory=dict)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    frames: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, Value] = field(default_factory=dict)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    entries: int = 0

    @staticmethod
    def read(log: Iterable[bytes]) -> Tables:
        tables = Tables()
        for body in log:
            for row in decode(body):
                tables.apply(row)
            tables.entries += 1
        return tables

    def apply(self, row: Row) -> None:
        match row:
            case ["world", seed, now_ns]:
                self.seed, self.now_ns = seed, now_ns
            case ["now", now_ns]:
                self.now_ns = now_ns
            case ["definition", digest, body]:
                self.definitions[digest] = body
            case ["run", id, workflow, key, definition]:
                self.runs[id] = RunMeta(id, workflow, key, definition, definition)
            case ["record", id, seq, body, digest]:
                self._record(self.runs[id], Stored(seq, body, digest))
            case ["accepted", id, item]:
                self.inbox[id] = item
            case ["taken", id]:
                del self.inbox[id]
            case ["submission", id, outcome]:
                self.submissions[id] = outcome
            case ["diagnostic", diagnostic]:
                self.diagnostics.append(diagnostic)
            case ["frame", intent, seq]:
                self.frames[intent] = seq
            case ["snapshot", snapshot]:
                self.snapshots.append(snapshot)
            case _:
                raise AssertionError(f"an unknown row {row!r}")

    def _record(self, meta: RunMeta, stored: Stored) -> None:
        record = stored.record()
        meta.records.append(stored)
        meta.positions.append(self.entries)
        meta.status, meta.last_ns = record["status"], record["at"]
        if record["kind"] == "apply":
            meta.definition = record["event"]["definition"]
        if record["kind"] in ("receipt", "rejected", "fault"):
            self.open.pop(record["event"].get("intent", ""), None)
        for intent in record.get("cancelled", ()):
            self.open.pop(intent, None)
        for value in record.get("opened", ()):
            if value["kind"] not in DETACHED_KINDS:
                self.known[value["id"]] = meta.id
                self.open[value["id"]] = OpenIntent(**value, seq=record["seq"], at_ns=record["at"])
