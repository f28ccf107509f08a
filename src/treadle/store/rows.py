"""The rows that pass between the runtime and a store, and the batch of one commit."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

import msgspec

from treadle.kernel.limits import INT_MIN
from treadle.kernel.values import Value

from .place_rows import PlaceRow
from .run_rows import RunRow


def bounded(number: int) -> int:
    """A bound of a query: beyond what a column can hold, its last number means the same."""
    return max(INT_MIN, min(number, -INT_MIN - 1))


class TaskRow(msgspec.Struct, kw_only=True):
    no: int = 0
    id: str
    run: int
    run_id: str
    workflow: str
    name: str
    type: str | None = None
    roles: list[str] = []
    payload: Value = None
    schema: Value = None
    reference: str | None = None
    status: str = "open"
    assignee: str | None = None
    created_ns: int = 0
    due_ns: int | None = None
    history: list[dict[str, Any]] = []


class TimerRow(msgspec.Struct, frozen=True):
    """`fires` is whether the intent is a timer; otherwise this is its deadline."""

    intent: str
    run: int
    due_ns: int
    fires: bool
    run_id: str = ""


class DefinitionRow(msgspec.Struct, kw_only=True):
    digest: str
    dialect: str
    name: str
    version: str | None
    path: str | None = None
    file: str | None = None
    body: Value = None
    created_ns: int = 0


class VersionRow(msgspec.Struct, kw_only=True):
    """`name@version`: what deploying claims."""

    name: str
    version: str
    digest: str
    path: str | None = None
    status: str = "available"
    reasons: list[str] = []
    created_ns: int = 0


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, and what became of it. Never bodies, never values."""

    no: int = 0
    at_ns: int
    user: str
    token: str = ""
    action: str
    target: str = ""
    status: str
    code: str | None = None
    server: str = ""
    request: str = ""


class AgeRule(msgspec.Struct, frozen=True):
    """Runs that ended so are past their date if they had ended by an instant; None: they never are. It counts for one
    workflow, or for all but some."""

    status: str
    ended_by_ns: int | None
    workflow: str | None = None
    but: Sequence[str] = ()


# How the keys of messages begin that another process left: somebody there waits for the answer.
GUEST: Final = "guest:"


def asker_of(key: str) -> str:
    """Who waits for the answer to a message, as its key says; "" if it does not."""
    parts = key.split(":", 2)
    return parts[1] if len(parts) == 3 and key.startswith(GUEST) else ""


class Message(NamedTuple):
    """A message in the inbox. `home` is the run that it is for, "" for what belongs to the whole store: it waits on
    the shard of that."""

    key: str
    body: bytes
    home: str = ""


class Batch(msgspec.Struct):
    """Everything one commit writes. Rows are plain tuples: this is the hot path."""

    # (run, seq, event_no, opens, closes, digest, body)
    records: list[tuple[int, int, int, bytes | None, bytes | None, bytes, bytes]] = []
    runs_new: dict[int, RunRow] = {}
    runs_changed: dict[int, RunRow] = {}
    # (run, seq, body)
    snapshots: list[tuple[int, int, bytes]] = []
    # (run, seq) of snapshots that later ones stand in for
    snapshots_done: list[tuple[int, int]] = []
    timers: dict[str, TimerRow] = {}
    # intent -> run
    timers_done: dict[str, int] = {}
    tasks_new: dict[str, TaskRow] = {}
    tasks_changed: dict[str, TaskRow] = {}
    inbox: list[Message] = []
    inbox_done: list[str] = []
    # (key of the message, at_ns, body): answers for those who asked from another process
    replies: list[tuple[str, int, bytes]] = []
    # answers from before this instant are removed: whoever asked is gone
    replies_until_ns: int = 0
    # intent -> (run, body)
    checkpoints: dict[str, tuple[int, bytes]] = {}
    checkpoints_done: list[str] = []
    # (run, event_no, at_ns, body)
    frames: list[tuple[int, int, int, bytes]] = []
    # (run id, at_ns, code, body)
    diagnostics: list[tuple[str, int, str, bytes]] = []
    audit: list[AuditRow] = []
    # rows from before this instant have been kept long enough
    audit_until_ns: int = 0
    # (scope, id, at_ns, body)
    submissions: list[tuple[str, str, int, bytes]] = []
    # digest -> bytes
    blobs: dict[str, bytes] = {}
    # digest -> since when it waits for the run that will refer to it
    blobs_waiting: dict[str, int] = {}
    # (run, digest)
    blob_refs: list[tuple[int, str]] = []
    # (run, digest) of payloads that a run refers to no more: they are past their date
    blob_refs_done: list[tuple[int, str]] = []
    definitions: list[DefinitionRow] = []
    versions: list[VersionRow] = []
    # (kind, id, at_ns, body or None to remove)
    documents: list[tuple[str, str, int, bytes | None]] = []
    runs_removed: list[int] = []
    # places in line, by run: those that begin with it, those that it gives away, those that end with it
    places_new: dict[str, PlaceRow] = {}
    places_held: list[str] = []
    # whether a run that has a place does without it while it waits
    places_resting: dict[str, bool] = {}
    places_done: list[str] = []
    # The shards that it touches: the commit holds only if each is still ours. None named: all that are.
    shards: set[int] = set()
    # Which dialect a run is of, for those whose records are better stored when that is known.
    dialects: dict[int, str] = {}
    bytes: int = 0


_NO_ROWS: Final = frozenset({"shards", "dialects", "bytes"})
# All rows but records, in one call: asked several times a commit.
beside_records = attrgetter(*(name for name in Batch.__struct_fields__ if name not in {"records", *_NO_ROWS}))
_OF_RUNS: Final = frozenset({"runs_new", "runs_changed", "runs_removed", "snapshots", "snapshots_done"})
# And those that are neither runs, records nor snapshots; most commits have none.
beside_runs = attrgetter(
    *(name for name in Batch.__struct_fields__ if name not in {"records", *_NO_ROWS, *_OF_RUNS})
)
# Of workflows that are limited; most are not.
of_places = attrgetter("places_new", "places_held", "places_resting", "places_done")

Numbered = Literal["run", "task"]
