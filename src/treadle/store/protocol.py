"""What the runtime needs of a store, and the rows that pass between them.

A store is synchronous: it is called on the core thread only (readers have connections of their
own). `commit` is the one way to write during normal work: a whole `Batch`, in one transaction,
durable when it returns. Anything else leaves no trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from treadle.kernel.history import Stored
from treadle.kernel.limits import INT_MIN
from treadle.kernel.values import Value

from .commits import UnderWay
from .figures import StoreNumbers
from .loose import LooseReads, LooseWrites
from .marks import Followable, MovedRun
from .place_rows import Crowd as Crowd
from .place_rows import Line as Line
from .place_rows import PlaceRow as PlaceRow
from .run_rows import ColdRun as ColdRun
from .run_rows import ManyRuns
from .run_rows import RunRow as RunRow
from .run_rows import RunsBegun as RunsBegun
from .sharing import MemberSeen as MemberSeen


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


class Reads(Followable, LooseReads, ManyRuns, Protocol):
    """Questions; each is one indexed query (or a page of one)."""

    @property
    def schema_version(self) -> int: ...
    def run(self, id: str) -> RunRow | None: ...
    def outlined(self, id: str) -> tuple[RunRow, bool, bool] | None:
        """A run, whether it has a snapshot, and whether it has children: most have neither, and are not asked for them."""
        ...

    def run_by_no(self, no: int) -> RunRow | None: ...
    def runs(
        self,
        *,
        status: Sequence[str] = (),
        workflow: str | None = None,
        reference: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        search: str | None = None,
        parent: str | None = None,
        prefix: str | None = None,
        before_no: int | None = None,
        limit: int = 100,
    ) -> list[RunRow]: ...
    def working(self, *, after_no: int, limit: int, shard: int | None = None) -> list[RunRow]:
        """Runs that somebody owes something, of one shard or of all."""
        ...

    def run_count(self) -> dict[str, int]: ...
    def run_history(
        self, since_ns: int, width_ns: int, *, workflow: str | None = None, prefix: str | None = None
    ) -> list[RunsBegun]:
        """How many runs began in each stretch of time since an instant, by workflow and what became of them."""
        ...

    def numbers(self, now_ns: int) -> StoreNumbers:
        """What an operator watches. It may look at every run: not for the core's thread."""
        ...

    def last_run_no(self) -> int: ...
    def last_task_no(self) -> int: ...

    def journal(self, run: int, *, after_seq: int = 0, until_seq: int | None = None) -> list[Stored]: ...
    def journal_page(self, run: int, *, after_seq: int, limit: int) -> list[tuple[Stored, int]]: ...
    def open_ids(self, run: int, *, after_seq: int) -> list[tuple[int, bytes | None, bytes | None]]: ...
    def record(self, run: int, seq: int) -> Stored | None: ...
    def last_event_no(self, run: int) -> int: ...
    def moved(self, since: tuple[int, int]) -> tuple[tuple[int, int], list[MovedRun]]:
        """Runs to which something happened since a mark, and the mark for the next time. The mark (-1, -1) is now."""
        ...

    def runs_beyond(self, event_no: int) -> list[str]:
        """The runs whose journal has an event with a higher number, oldest first."""

    def snapshot(self, run: int, *, until_seq: int | None = None) -> tuple[int, bytes] | None: ...
    def snapshot_seqs(self, run: int) -> list[int]: ...
    def frames(self, run: int, *, after: int = 0, limit: int = 1000) -> list[tuple[int, int, bytes]]: ...

    def timers_due(
        self, now_ns: int, limit: int, shards: Collection[int] | None = None
    ) -> list[TimerRow]: ...
    def timer_next(self) -> int | None: ...
    def timer_after(self, now_ns: int, shards: Collection[int] | None = None) -> int | None: ...
    def timers_of(self, run: int) -> list[TimerRow]: ...

    def task(self, id: str) -> TaskRow | None: ...
    def tasks(
        self,
        *,
        role: str | None = None,
        assignee: str | None = None,
        status: Sequence[str] = (),
        reference: str | None = None,
        run: str | None = None,
        after_no: int = 0,
        limit: int = 100,
    ) -> list[TaskRow]: ...

    def inbox(self, limit: int, shards: Collection[int] | None = None) -> list[tuple[str, bytes]]:
        """The oldest messages, on these shards or on all."""
        ...

    def has_message(self, key: str) -> bool: ...
    def replies(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The answers that are there, by the keys of the messages they answer."""
        ...

    def checkpoints(self, run: int) -> dict[str, Value]: ...
    def diagnostics(self, run: str | None = None, *, limit: int = 1000) -> list[dict[str, Any]]: ...
    def audit(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        target: str | None = None,
        token: str | None = None,
        status: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        before_no: int | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        """Who did what, newest first. `action` is one (`run.signal`) or a family of them (`run`)."""
        ...

    def submission(self, scope: str, id: str) -> Value | None: ...

    def place(self, run: str) -> PlaceRow | None: ...
    def places_waiting(self, line: Line, limit: int) -> list[PlaceRow]:
        """Those who wait in a line, the next one first."""
        ...

    def places_ahead(self, place: PlaceRow) -> int: ...
    def crowd(self, line: Line) -> Crowd: ...
    def crowds(self) -> dict[Line, Crowd]: ...
    def lines_waiting(self) -> list[Line]: ...
    def last_place_ns(self) -> int:
        """When the last one came who is in a line."""
        ...

    def now_ns(self) -> int:
        """By the store's own clock."""
        ...

    def at_one_moment(self) -> AbstractContextManager[None]:
        """What is read in it is the store as it was at one moment, whatever others write meanwhile."""
        ...

    def members_seen(self) -> list[MemberSeen]:
        """Who shares the store, or did a while ago, the longest there first; nobody where it has one owner."""
        ...

    def members_present(self) -> set[str]:
        """Who may have work in hand: whoever is there, by the store's clock, and whoever still holds a shard."""
        ...

    def blob(self, digest: str) -> bytes: ...
    def has_blob(self, digest: str) -> bool: ...
    def payloads(self, after: str, limit: int) -> list[tuple[str, int]]: ...
    def check_payload(self, digest: str, size: int) -> None: ...
    def check(self) -> list[str]:
        """What is wrong with the stored bytes; empty when all is well."""
        ...

    def blobs_of(self, run: int) -> list[str]:
        """The digests of the payloads that a run holds."""

    def definition(self, digest: str) -> DefinitionRow | None: ...
    def origins(self) -> list[tuple[str, str]]:
        """The dialects and files that deployed definitions came from, each pair once. Reads no body."""
        ...

    def versions(self, name: str | None = None, *, path: str | None = None) -> list[VersionRow]: ...
    def document(self, kind: str, id: str) -> Value | None: ...
    def documents(self, kind: str) -> list[tuple[str, Value]]: ...
    def documents_before(self, kind: str, at_ns: int, limit: int) -> list[str]: ...
    def close(self) -> None: ...
    def retained(
        self,
        now_ns: int,
        limit: int,
        shards: Collection[int] | None = None,
        rules: Sequence[AgeRule] = (),
        *,
        stated: bool = True,
        among: Collection[int] | None = None,
    ) -> list[RunRow]:
        """Ended runs past their date: by a rule, where one speaks of them; else, if `stated`, by their own. `among`: of
        the runs with these numbers."""
        ...


class Store(Reads, LooseWrites, Protocol):
    """Reads, plus the writes of the one owner and the inbox of everybody else."""

    def own(self) -> int:
        """Takes ownership: the new epoch. Every earlier owner's commits fail from now on."""
        ...

    @property
    def shards(self) -> int:
        """How many there are; runs are spread over them by `shard_of`."""
        ...

    @property
    def held(self) -> Mapping[int, int]:
        """The shards that are ours, and the epoch of each."""
        ...

    def hold(self, shards: Mapping[int, int]) -> None:
        """These are ours from now on, at these epochs: somebody claimed them for us."""
        ...

    def let_go(self, shards: Iterable[int]) -> None:
        """These are not ours any more."""
        ...

    def lost(self) -> list[int]:
        """The shards of `held` that somebody else has taken; they are not held any more."""
        ...

    def work_key(self) -> bytes:
        """What leases of work are sealed with; the same for every owner of this store."""
        ...

    def reserve(self, kind: Numbered, count: int) -> range:
        """Numbers for new runs or tasks, higher than any in use, that nobody else is given. Those that are not
        used stay unused."""
        ...

    def commit(self, batch: Batch) -> None: ...

    @property
    def overlaps(self) -> bool:
        """Whether it is worth while to go on with `begin`."""
        ...

    def begin(self, batch: Batch) -> UnderWay:
        """The same in two parts: its rows are written when this returns, and durable when `finish` has. Whatever is
        read in between waits for it. One at a time."""
        ...

    def post(self, messages: Iterable[Message | tuple[str, bytes]]) -> None:
        """Writes inbox rows without owning the store; durable when it returns."""
        ...

    def forget_replies(self, keys: Sequence[str]) -> None:
        """Removes answers that were read, without owning the store."""
        ...

    def stay(self) -> None:
        """Refuses to go on with a store that was deleted, moved or replaced while it was open (`StoreGone`)."""
        ...

    def changed(self) -> bool:
        """Whether another connection has written since the last call: at once or, where notices get lost,
        within half a second. A yes without a reason costs a look, no more."""
        ...

    def notice(self) -> None:
        """Somebody said that something is there for us: `changed` says so. From any thread."""
        ...

    def shrink(self, *, rewrite: bool = False) -> int:
        """Gives some room on the disk back that is not used any more: how many bytes, 0 when there is no more. With
        `rewrite` a store that cannot do that in steps is written anew, if that is worth it."""
        ...

    def idle(self) -> None:
        """Called when there is nothing to do: a time for checkpoints."""
        ...
