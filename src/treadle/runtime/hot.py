"""Runs in memory: a bounded cache over the store.

Loading is the last snapshot plus a replay of the tail, so a run costs nothing while nobody needs
it. Eviction only drops: whatever is here is also durable, except for the batch at hand, whose runs
are pinned until it is committed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from treadle.kernel.errors import PASSING, BlobMissing, JournalCorrupt, NoSuchRecord, ReplayDiffers, RunTooOld
from treadle.kernel.history import Stored, check_link, replay, restore, snapshot_of
from treadle.kernel.limits import BLOB_CACHE_BYTES_MAX
from treadle.kernel.machine import Machine
from treadle.kernel.roles import PastMachine, is_past
from treadle.kernel.run import Blobs
from treadle.kernel.state import RunState
from treadle.kernel.values import Value, decode_trusted
from treadle.store.run_rows import ColdRun, RunRow

from .registry import Registry
from .shards import Held

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


log = logging.getLogger("treadle.core")

# Python makes another empty one each time, of two hundred bytes; thousands of runs are in memory.
_NONE: Final[frozenset[str]] = frozenset()


class Expected(msgspec.Struct):
    """Runs that are asked for soon: what they are loaded from was read together, for all that could be read so."""

    asked: set[str] = set()
    # None for one that is not there.
    cold: dict[str, ColdRun | None] = {}


class Hot(msgspec.Struct, gc=False):
    """A run ready to be stepped. `row` is its row as last written; `batch` the commit it is part of."""

    state: RunState
    no: int
    event_no: int
    machine: Machine
    definition: object
    row: RunRow
    # Hardly any run has some, and thousands are in memory: replaced, never changed, so that those share one that is empty.
    checkpoints: frozenset[str] = _NONE
    shard: int = 0
    batch: int = 0
    # The record with which it ended, once that is durable; 0 as soon as it may go on.
    rested: int = 0


class BlobCache:
    """Payloads by digest, decoded; bounded by their encoded size."""

    def __init__(self, reads: Reads, bytes_max: int = BLOB_CACHE_BYTES_MAX) -> None:
        self._reads = reads
        self._bytes_max = bytes_max
        self._values: OrderedDict[str, tuple[int, Value]] = OrderedDict()
        self._size = 0
        self.staged: dict[str, bytes] = {}

    def __call__(self, digest: str) -> Value:
        if found := self._values.get(digest):
            self._values.move_to_end(digest)
            return found[1]
        body = self.staged.get(digest) or self._reads.blob(digest)
        value = decode_trusted(body)
        self._values[digest] = (len(body), value)
        self._size += len(body)
        while self._size > self._bytes_max and len(self._values) > 1:
            _, (size, _) = self._values.popitem(last=False)
            self._size -= size
        return value

    def forget(self, digest: str) -> None:
        """A payload is gone from the store."""
        if found := self._values.pop(digest, None):
            self._size -= found[0]


def fresh_state(row: RunRow) -> RunState:
    return RunState(
        id=row.id,
        dialect=row.dialect,
        workflow=row.workflow,
        version=row.version,
        definition=row.definition,
        key=row.cell_key,
    )


def load_state(
    row: RunRow,
    reads: Reads,
    registry: Registry,
    blobs: Blobs,
    *,
    until_seq: int | None = None,
    genesis: bool = False,
) -> RunState:
    """A run as it was at a record (the last one by default): the nearest snapshot, then the tail
    decided again. With `genesis`, every record is decided again, and every snapshot compared."""
    if until_seq is not None and not reads.journal(row.no, after_seq=until_seq - 1, until_seq=until_seq):
        last = _last_seq(row, reads)
        raise NoSuchRecord(
            f"{row.id} has no record {until_seq}; its last is {last}: choose one from 1 to {last}",
            where=row.id,
            details={"first": 1, "last": last},
        )
    cut = reads.snapshot(row.no, until_seq=1 if genesis else until_seq)
    records = reads.journal(row.no, after_seq=cut[0] if cut else 0, until_seq=until_seq)
    state, machine = _begun(row, cut, records, registry)
    cuts = set(reads.snapshot_seqs(row.no)) if genesis else set()
    for stored in records:
        _replay(state, machine, registry, [stored], blobs, reading=not genesis)
        if genesis:
            _check_stored(row, stored, reads)
        if state.seq in cuts:
            _compare(row, state, reads)
    if genesis and isinstance(machine, PastMachine):
        machine.forget(state.state)
    return state


def read_past(
    row: RunRow, reads: Reads, *, has_snapshot: bool
) -> tuple[tuple[int, bytes] | None, list[Stored]]:
    """What a run as it is now is made of: its last snapshot, if it has one, and the records after that."""
    cut = reads.snapshot(row.no) if has_snapshot else None
    return cut, reads.journal(row.no, after_seq=cut[0] if cut else 0)


def state_of(
    row: RunRow, cut: tuple[int, bytes] | None, tail: Sequence[Stored], registry: Registry, blobs: Blobs
) -> RunState:
    """A run made of what was read of it."""
    state, machine = _begun(row, cut, tail, registry)
    _replay(state, machine, registry, tail, blobs, reading=True)
    return state


def _replay(
    state: RunState,
    machine: Machine,
    registry: Registry,
    records: Iterable[Stored],
    blobs: Blobs,
    *,
    reading: bool,
) -> None:
    replay(
        state,
        machine,
        lambda digest: registry.load(digest).definition,
        records,
        blobs=blobs,
        reading=reading,
    )


def _begun(
    row: RunRow, cut: tuple[int, bytes] | None, records: Sequence[Stored], registry: Registry
) -> tuple[RunState, Machine]:
    """A run as it was before these records, and the machine that decides them."""
    if cut is not None:
        state = restore(cut[1])
        begun = state.machine
    else:
        if not records:
            raise JournalCorrupt(f"{row.id}: the run has no records")
        state = fresh_state(row)
        check_link(row.id, state.seq, state.digest, records[0])
        started = records[0].record()["event"]
        if started["definition"] != state.definition:
            state.move(started["definition"])
        begun = started.get("machine", 1)
    machine = registry.load(state.definition).machine
    if begun < machine.oldest:
        raise RunTooOld(
            f"{row.id} was begun by version {begun} of the {row.dialect} dialect; this Treadle decides "
            f"{machine.oldest} and newer. Finish it with the Treadle that began it, or start it anew",
            where=row.id,
        )
    return state, machine


def _check_stored(row: RunRow, stored: Stored, reads: Reads) -> None:
    """Whether the payloads that a step made are there. That they are the same was compared with the record."""
    for checksum in stored.record().get("blobs", ()):
        if not reads.has_blob(checksum):
            where = f"{row.id}#{stored.seq}"
            raise BlobMissing(f"{where} stored {checksum}, which is not there any more", where=where)


def _last_seq(row: RunRow, reads: Reads) -> int:
    cut = max(reads.snapshot_seqs(row.no), default=0)
    tail = reads.journal(row.no, after_seq=cut)
    return tail[-1].seq if tail else cut


def _compare(row: RunRow, state: RunState, reads: Reads) -> None:
    found = reads.snapshot(row.no, until_seq=state.seq)
    if found is None or found[1] == snapshot_of(state):
        return
    # A run that has moved goes by the version that it moved to, and its earlier snapshots by the one before. It is a name,
    # by which nothing is decided.
    named = replace(state, version=restore(found[1]).version)
    if found[1] != snapshot_of(named):
        raise ReplayDiffers(
            f"{row.id}: the state at record {state.seq} differs from its snapshot",
            where=f"{row.id}#{state.seq}",
            details={"seq": state.seq, "expected": restore(found[1]).state, "got": state.state},
        )


class HotRuns:
    def __init__(self, reads: Reads, registry: Registry, blobs: BlobCache, held: Held, *, limit: int) -> None:
        self._held = held
        self._reads = reads
        self._registry = registry
        self._blobs = blobs
        self._limit = limit
        self._runs: OrderedDict[str, Hot] = OrderedDict()
        # A run that is in memory, which is not to stay there on this account.
        self.peek: Callable[[str], Hot | None] = self._runs.get
        # Whether there are more than there is room for.
        self.crowded = False

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, id: str, known: Expected | None = None) -> Hot | None:
        """The run, loaded if need be; None if there is no such run. What is known of it is used up."""
        if found := self._runs.get(id):
            self._runs.move_to_end(id)
            return found
        cold = known.cold.pop(id) if known is not None and id in known.cold else self._read(id)
        if cold is None:
            return None
        row = cold.row
        state, machine = _begun(row, cold.cut, cold.tail, self._registry)
        _replay(state, machine, self._registry, cold.tail, self._blobs, reading=True)
        loaded = self._registry.load(state.definition)
        saved = cold.checkpoints
        if saved is None:
            saved = frozenset(self._reads.checkpoints(row.no)) if state.open else _NONE
        hot = Hot(state, row.no, cold.event_no, loaded.machine, loaded.definition, row, saved or _NONE)
        if not self._held.several or self._held.holds(id):
            self.add(hot)
        else:
            # Only looked at: it goes on elsewhere, and is another one by the next time.
            hot.shard = self._held.shard_of(id)
        return hot

    def _read(self, id: str) -> ColdRun | None:
        reads = self._reads
        row = reads.run(id)
        if row is None:
            return None
        cut = reads.snapshot(row.no)
        tail = reads.journal(row.no, after_seq=cut[0] if cut else 0)
        return ColdRun(row, cut, tail, reads.last_event_no(row.no))

    def expect(self, ids: Iterable[str], known: Expected) -> None:
        """Reads together what those of these runs are loaded from that are not in memory. What cannot be read so is
        read by itself when its turn comes, and says what is wrong with it."""
        cold = [id for id in dict.fromkeys(ids) if id not in self._runs and id not in known.asked]
        if len(cold) < 2:
            return
        known.asked.update(cold)
        try:
            known.cold.update(self._reads.load_many(cold))
        except PASSING:
            raise
        except Exception as error:
            log.debug("%d runs are read one by one: %s", len(cold), error)

    def add(self, hot: Hot) -> None:
        if self._held.several:
            hot.shard = self._held.shard_of(hot.state.id)
        self._runs[hot.state.id] = hot
        self.crowded = len(self._runs) > self._limit

    def drop(self, id: str) -> None:
        hot = self._runs.pop(id, None)
        if hot is not None and is_past(hot.machine):
            hot.machine.forget(hot.state.state)

    def drop_all(self) -> None:
        """The core is over."""
        self._drop(lambda hot: True)

    def drop_batch(self, number: int) -> None:
        """A commit failed: what it changed here is not durable, and is loaded again when it is needed. The
        rest is as good as it was."""
        self._drop(lambda hot: hot.batch == number or hot.state.seq == 0)

    def drop_foreign(self) -> None:
        """Shards were lost: their runs go on elsewhere."""
        self._drop(lambda hot: not self._held.holds(hot.state.id))

    def _drop(self, unwanted: Callable[[Hot], bool]) -> None:
        for id in [id for id, hot in self._runs.items() if unwanted(hot)]:
            self.drop(id)

    def evict(self, at_hand: int = -1) -> None:
        """Called after a commit, when everything here is durable but for what the batch at hand holds already."""
        if (over := len(self._runs) - self._limit) > 0:
            durable = (id for id, hot in self._runs.items() if hot.batch != at_hand)
            for id in list(islice(durable, over)):
                self.drop(id)
        self.crowded = len(self._runs) > self._limit
