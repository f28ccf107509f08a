"""What runs have open, found without running a machine: ids first, through the columns of their records, then only
the few records that opened something still open. Of one run, or of many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from treadle.kernel.history import Stored, opened_by, restore
from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value, decode_trusted
from treadle.store.run_rows import RunRow

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


_ID_BYTES: Final = 16


class OpenTail(NamedTuple):
    """What the last records of a run did to what it has open: what they opened and did not close, with the record that
    opened it; what they closed of what was open before them; and the number of the last, 0 if there is none."""

    opened_at: dict[bytes, int]
    closed: list[bytes]
    last_seq: int


class OpenNow(NamedTuple):
    """A run's open intents by id; whether it may owe itself an event (a continuation, or a signal that came early);
    and its options, where the state it was cut at tells them."""

    intents: dict[str, OpenIntent]
    owes: bool
    options: Mapping[str, Value] | None


def tail_of(records: Iterable[tuple[int, int, bytes | None, bytes | None]]) -> OpenTail:
    """Of each record of a run: the run's number, its own, and the ids of the intents that it opened and closed."""
    opened_at: dict[bytes, int] = {}
    closed: list[bytes] = []
    seq = 0
    for _, seq, opens, closes in records:
        # Nearly always there is one id, and there are many records: to split each would be most of the work.
        if closes:
            if len(closes) == _ID_BYTES:
                if opened_at.pop(closes, None) is None:
                    closed.append(closes)
            else:
                closed += [intent for intent in split_ids(closes) if opened_at.pop(intent, None) is None]
        if opens:
            if len(opens) == _ID_BYTES:
                opened_at[opens] = seq
            else:
                opened_at.update(dict.fromkeys(split_ids(opens), seq))
    return OpenTail(opened_at, closed, seq)


class OpenReads:
    """What is asked about a run for that."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def snapshot(self, run: int) -> tuple[int, bytes] | None:
        return self._reads.snapshot(run)

    def tail(self, run: int, *, after_seq: int) -> OpenTail:
        return tail_of((run, *ids) for ids in self._reads.open_ids(run, after_seq=after_seq))

    def record(self, run: int, seq: int) -> Stored | None:
        return self._reads.record(run, seq)

    def checkpoints(self, run: int) -> dict[str, Value]:
        return self._reads.checkpoints(run)


class OpenTogether(OpenReads):
    """The same for many runs, read at once; what cannot be read so is asked for by itself."""

    def __init__(self, reads: Reads, rows: Iterable[RunRow]) -> None:
        super().__init__(reads)
        self._cuts = cuts = reads.snapshots_of([row.no for row in rows])
        after = {run: 0 if cut is None else cut[0] for run, cut in cuts.items()}
        self._tails = dict.fromkeys(after, tail_of(()))
        for run, records in groupby(reads.open_ids_of(after), key=itemgetter(0)):
            self._tails[run] = tail_of(records)
        # The first record of one that has no snapshot says with what it was started, the last one what it owes itself.
        wanted = {(run, 1) for run, cut in cuts.items() if cut is None}
        for run, tail in self._tails.items():
            wanted.update((run, seq) for seq in tail.opened_at.values())
            if tail.last_seq:
                wanted.add((run, tail.last_seq))
        self._records = reads.records(sorted(wanted)) if wanted else {}
        self._saved = reads.checkpoints_of(cuts) if cuts else {}

    def snapshot(self, run: int) -> tuple[int, bytes] | None:
        return self._cuts[run] if run in self._cuts else super().snapshot(run)

    def tail(self, run: int, *, after_seq: int) -> OpenTail:
        return self._tails[run] if run in self._tails else super().tail(run, after_seq=after_seq)

    def record(self, run: int, seq: int) -> Stored | None:
        return self._records.get((run, seq)) or super().record(run, seq)

    def checkpoints(self, run: int) -> dict[str, Value]:
        if run not in self._cuts:
            return super().checkpoints(run)
        return {intent: decode_trusted(body) for intent, body in self._saved.get(run, {}).items()}


def open_work(row: RunRow, reads: Reads) -> dict[str, OpenIntent]:
    """A run's open intents by id."""
    return open_now(row, OpenReads(reads)).intents


def open_now(row: RunRow, reads: OpenReads) -> OpenNow:
    cut = reads.snapshot(row.no)
    state = restore(cut[1]) if cut is not None else None
    intents = dict(state.open) if state is not None else {}
    owes = state is not None and bool(state.more)
    opened_at, closed, last_seq = reads.tail(row.no, after_seq=cut[0] if cut else 0)
    for intent in closed:
        intents.pop(intent.hex(), None)
    for seq in sorted({*opened_at.values(), last_seq} - {0}):
        stored = reads.record(row.no, seq)
        assert stored is not None, "the record was there a moment ago"
        record = stored.record()
        intents.update((i.id, i) for i in opened_by(record) if opened_at.get(bytes.fromhex(i.id)) == seq)
        owes = "more" in record
    owes = owes or any(intent.kind == "signal" for intent in intents.values())
    return OpenNow(intents, owes, None if state is None else state.options)


def join_ids(ids: list[str]) -> bytes | None:
    return bytes.fromhex("".join(ids)) if ids else None


def split_ids(ids: bytes | None) -> Sequence[bytes]:
    """The ids of a column."""
    return [ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES)] if ids else ()
