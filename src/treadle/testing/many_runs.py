"""What every store must answer about many runs at once: the same as about each of them by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.values import decode_trusted, encode
from treadle.store.many import TOGETHER_BYTES_MAX
from treadle.store.rows import Batch
from treadle.store.run_rows import ColdRun

from .places import Check, MakePlace, owned
from .rows import full_batch, record, run_row

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


def _alone(reads: Reads, id: str) -> ColdRun | None:
    """What a run is loaded from, asked piece by piece."""
    row = reads.run(id)
    if row is None:
        return None
    cut = reads.snapshot(row.no)
    tail = reads.journal(row.no, after_seq=cut[0] if cut else 0)
    return ColdRun(row, cut, tail, reads.last_event_no(row.no), frozenset(reads.checkpoints(row.no)))


def _opening(run: int, seq: int, opens: bytes | None, closes: bytes | None, event_no: int) -> Any:
    return (run, seq, event_no, opens, closes, bytes(32), encode({"seq": seq, "of": run}))


def _several() -> Batch:
    """Runs of every kind: with and without snapshot, tail, frames, checkpoints, open work."""
    batch = full_batch(1)
    batch.runs_new |= {no: run_row(no, working=no % 2 == 0, id=f"rün {no}") for no in range(2, 8)}
    one, two = bytes(15) + b"1", bytes(15) + b"2"
    for no in range(2, 7):
        batch.records += [
            _opening(no, 1, one, None, 4),
            _opening(no, 2, two, one, 9),
            _opening(no, 3, None, None, 10 + no),
        ]
    batch.snapshots += [(2, 1, b"early"), (2, 3, b"at the end"), (3, 2, b"between"), (4, 1, b"first")]
    batch.frames += [(3, 40, 1, encode({})), (5, 11, 1, encode({})), (5, 12, 1, encode({}))]
    batch.checkpoints |= {"work-3": (3, encode({"mark": 3})), "other-3": (3, encode([1]))}
    return batch


def check_many_runs_are_read_as_each_by_itself(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(_several())
        ids = [row.id for row in store.runs()]
        asked = [*ids, "nobody", "' OR 1 = 1 --"]
        assert store.load_many(asked) == {id: _alone(store, id) for id in asked}, "what runs are loaded from"
        assert store.load_many(["nobody"]) == {"nobody": None}, "one that is not there"
        assert store.load_many([]) == {}
        assert store.runs_named(asked) == {id: store.run(id) for id in ids}, "rows"
        numbers = [row.no for row in store.runs()]
        assert store.snapshots_of(numbers) == {no: store.snapshot(no) for no in numbers}, "snapshots"
        after = {no: no % 3 for no in numbers}
        assert [tuple(row) for row in store.open_ids_of(after)] == [
            (no, *row) for no, seq in sorted(after.items()) for row in store.open_ids(no, after_seq=seq)
        ], "what records opened and closed"
        places = [(no, seq) for no in numbers for seq in (1, 3, 7)]
        found = {place: store.record(*place) for place in places}
        there = {place: stored for place, stored in found.items() if stored is not None}
        assert store.records(places) == there, "records"
        saved = {
            no: {intent: decode_trusted(body) for intent, body in bodies.items()}
            for no, bodies in store.checkpoints_of(numbers).items()
        }
        assert saved == {no: store.checkpoints(no) for no in numbers if store.checkpoints(no)}, "checkpoints"


def check_more_runs_than_a_statement_takes_are_read_all_the_same(make: MakePlace) -> None:
    with owned(make) as (_, store):
        numbers = range(1, 1_202)
        batch = Batch(runs_new={no: run_row(no) for no in numbers})
        batch.records = [record(no, 1) for no in numbers]
        store.commit(batch)
        found = store.load_many([f"run-{no}" for no in numbers])
        assert sorted(run.row.no for run in found.values() if run is not None) == list(numbers)
        assert all(len(run.tail) == 1 for run in found.values() if run is not None)


def check_what_is_large_is_not_read_with_others(make: MakePlace) -> None:
    """Many large runs are never in memory at once: each is asked for by itself."""
    with owned(make) as (_, store):
        large = bytes(range(256)) * (TOGETHER_BYTES_MAX // 256 + 1)
        batch = Batch(runs_new={no: run_row(no) for no in (1, 2)}, records=[record(1, 1), record(2, 1)])
        batch.snapshots = [(1, 1, large), (2, 1, b"small")]
        store.commit(batch)
        assert store.snapshots_of([1, 2]) == {2: (1, b"small")}
        assert list(store.load_many(["run-1", "run-2"])) == ["run-2"], "left out, which is not: not there"
        assert store.snapshot(1) == (1, large)


CHECKS: tuple[Check, ...] = tuple(
    value for name, value in list(globals().items()) if name.startswith("check_")
)
