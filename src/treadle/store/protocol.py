"""What the runtime needs of a store, for types; the rows are `rows.py`.

A store is synchronous: it is called on the core thread only (readers have connections of their
own). `commit` is the one way to write during normal work: a whole `Batch`, in one transaction,
durable when it returns. Anything else leaves no trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from treadle.kernel.history import Stored
from treadle.kernel.values import Value

from .commits import UnderWay
from .figures import StoreNumbers
from .loose import Orphans
from .marks import FollowedRecord, Mark, MovedRun
from .member_reads import MemberSeen
from .place_rows import Crowd, Line, PlaceRow
from .rows import (
    AgeRule,
    AuditRow,
    Batch,
    DefinitionRow,
    Message,
    Numbered,
    TaskRow,
    TimerRow,
    VersionRow,
)
from .run_rows import ColdRun, RunRow, RunsBegun


class LooseReads(Protocol):
    def orphans(self) -> Orphans:
        """The runs that are gone and still have rows."""
        ...

    def loose(self, before_ns: int, after: str, limit: int) -> list[str]:
        """Payloads that no run refers to, but for those put down after an instant for a receipt to come; a page in
        their order."""
        ...

    def stray_files(self) -> list[str]:
        """Files of payloads that have no row, and had time to get one: whoever wrote them was killed."""
        ...

    @property
    def files_at_once(self) -> int:
        """How many files are removed in no time."""
        ...


class Followable(Protocol):
    def last_mark(self) -> Mark:
        """Whatever becomes durable from now on is after it."""
        ...

    def follow(self, marks: Sequence[Mark], limit: int) -> list[FollowedRecord]:
        """Records of all runs in the order in which they became durable, after the first of these marks that holds."""
        ...


class ManyRuns(Protocol):
    """Questions about many runs; each is a few statements."""

    def runs_named(self, ids: Sequence[str]) -> dict[str, RunRow]:
        """Those of them that are there."""
        ...

    def load_many(self, ids: Sequence[str]) -> dict[str, ColdRun | None]:
        """What these runs are loaded from; None for one that is not there. What is large or damaged is left out."""
        ...

    def snapshots_of(self, runs: Collection[int]) -> dict[int, tuple[int, bytes] | None]:
        """The last snapshot of each; None for one that has none. What is large or damaged is left out."""
        ...

    def open_ids_of(self, after: Mapping[int, int]) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
        """What the records of each run after one of them opened and closed, behind the run's number: in their order, one
        run after the other."""
        ...

    def records(self, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """Records by run and number. What is large is left out."""
        ...

    def checkpoints_of(self, runs: Collection[int]) -> dict[int, dict[str, bytes]]:
        """The checkpoints of each run that has any, as they are stored."""
        ...


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
        """Runs to which something happened since a mark, and the mark for the next time. `marks.NOW` finds none."""
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


class LooseWrites(Protocol):
    def remove_orphans(self, found: Mapping[str, Sequence[int | str]]) -> None:
        """Removes rows of runs that `orphans` found, where there is no such run by now either."""
        ...

    def remove_loose(self, digests: Sequence[str], before_ns: int) -> tuple[int, list[str]]:
        """Removes those of these payloads that are loose, and in no message under way: how many, and those of them whose
        bytes are in files, which are for `remove_files`."""
        ...

    def remove_files(self, digests: Sequence[str]) -> None:
        """Removes the files of those of these payloads that have no row."""
        ...

    def sweep(self, *, keep: Iterable[str] = (), loose_before_ns: int | None = None) -> int:
        """All of that at once, except `keep`, for a store that nobody waits for; how many payloads. What was put down for a
        receipt to come stays until it is older than `loose_before_ns`."""
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
