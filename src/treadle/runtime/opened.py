"""What runs have open, found without running a machine: ids first, through the columns of their records, then only
the few records that opened something still open. Of one run, or of many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from treadle.kernel.history import Stored, opened_by, restore
from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value, decode_trusted
from treadle.store.protocol import Reads, RunRow

# Of each record: its number, and the ids of the intents that it opened and closed.
OpenIds = Sequence[tuple[int, bytes | None, bytes | None]]


class OpenReads(Protocol):
    """What is asked about a run for that."""

    def snapshot(self, run: int) -> tuple[int, bytes] | None: ...
    def open_ids(self, run: int, *, after_seq: int) -> OpenIds: ...
    def record(self, run: int, seq: int) -> Stored | None: ...
    def checkpoints(self, run: int) -> dict[str, Value]: ...


def open_work(row: RunRow, reads: OpenReads) -> dict[str, OpenIntent]:
    """A run's open intents by id."""
    return open_and_owed(row, reads)[0]


def open_and_owed(row: RunRow, reads: OpenReads) -> tuple[dict[str, OpenIntent], bool]:
    """Open intents; and whether the run may owe itself an event: a continuation, or a signal that came early."""
    cut = reads.snapshot(row.no)
    state = restore(cut[1]) if cut is not None else None
    open_ = dict(state.open) if state is not None else {}
    more = state is not None and bool(state.more)
    ids = reads.open_ids(row.no, after_seq=cut[0] if cut else 0)
    for _, _, closes in ids:
        for intent in split_ids(closes):
            open_.pop(intent.hex(), None)
    opened_at = still_open(ids)
    for seq in sorted(set(opened_at.values())):
        stored = reads.record(row.no, seq)
        assert stored is not None, "the record was there a moment ago"
        open_.update((i.id, i) for i in opened_by(stored.record()) if bytes.fromhex(i.id) in opened_at)
    if ids and (stored := reads.record(row.no, ids[-1][0])) is not None:
        more = "more" in stored.record()
    return open_, more or any(intent.kind == "signal" for intent in open_.values())


def still_open(ids: OpenIds) -> dict[bytes, int]:
    """What these records opened and did not close, with the record that opened it."""
    opened_at: dict[bytes, int] = {}
    for seq, opens, closes in ids:
        for intent in split_ids(closes):
            opened_at.pop(intent, None)
        for intent in split_ids(opens):
            opened_at[intent] = seq
    return opened_at


class OpenTogether:
    """`OpenReads` for many runs, read at once; what cannot be read so is asked for by itself."""

    def __init__(self, reads: Reads, rows: Iterable[RunRow]) -> None:
        self._reads = reads
        self._cuts = cuts = reads.snapshots_of([row.no for row in rows])
        after = {run: 0 if cut is None else cut[0] for run, cut in cuts.items()}
        self._ids = reads.open_ids_of(after) if after else {}
        # Its first record says with what a run was started, its last one what it owes itself.
        wanted = {(run, 1) for run in cuts}
        for run, ids in self._ids.items():
            wanted.update((run, seq) for seq in still_open(ids).values())
            wanted.update((run, seq) for seq, _, _ in ids[-1:])
        self._records = reads.records(sorted(wanted)) if wanted else {}
        self._saved = reads.checkpoints_of(cuts) if cuts else {}

    def snapshot(self, run: int) -> tuple[int, bytes] | None:
        return self._cuts[run] if run in self._cuts else self._reads.snapshot(run)

    def open_ids(self, run: int, *, after_seq: int) -> OpenIds:
        return self._ids[run] if run in self._ids else self._reads.open_ids(run, after_seq=after_seq)

    def record(self, run: int, seq: int) -> Stored | None:
        return self._records.get((run, seq)) or self._reads.record(run, seq)

    def checkpoints(self, run: int) -> dict[str, Value]:
        if run not in self._cuts:
            return self._reads.checkpoints(run)
        return {intent: decode_trusted(body) for intent, body in self._saved.get(run, {}).items()}


def join_ids(ids: list[str]) -> bytes | None:
    return bytes.fromhex("".join(ids)) if ids else None


def split_ids(ids: bytes | None) -> Sequence[bytes]:
    """The 16-byte ids of a column; nearly always there is one or none."""
    if not ids:
        return ()
    return (ids,) if len(ids) == 16 else [ids[at : at + 16] for at in range(0, len(ids), 16)]
