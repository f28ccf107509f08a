"""What every store must do about numbers and places: they only grow. What was removed leaves them taken, so that whoever
remembers one, in this process or another, is never told that something new is old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.errors import AppendConflict
from treadle.store.marks import NOW, Mark
from treadle.store.rows import Batch

from .places import Check, MakePlace, StoragePlace, expect, owned
from .rows import record, run_row, task_row

if TYPE_CHECKING:
    from treadle.store.protocol import Reads, Store


def _with_all(no: int, records: int = 2) -> Batch:
    """A run with records, a frame and a task."""
    batch = Batch(runs_new={no: run_row(no)}, records=[record(no, seq) for seq in range(1, records + 1)])
    batch.frames = [(no, records + 1, 1, b"\x80")]
    batch.tasks_new = {f"task-{no}": task_row(no, no)}
    return batch


def _framed(no: int) -> Batch:
    return Batch(frames=[(no, 10, 1, b"\x80")])


def _moved(reads: Reads, since: tuple[int, int]) -> set[str]:
    return {run.id for run in reads.moved(since)[1]}


def _again(place: StoragePlace, store: Store) -> Store:
    """Another owner, where there can be one."""
    if place.shared:
        store = place.open()
        store.own()
    return store


def _followed(reads: Reads, mark: Mark) -> list[tuple[int, int]]:
    return [found.mark[1:] for found in reads.follow([mark], 100)]


def check_nothing_new_is_missed_where_the_newest_was_removed(make: MakePlace) -> None:
    for kept, another in ((0, False), (0, True), (1, False), (1, True)):
        with owned(make) as (place, store):
            for no in range(1, 4):
                store.commit(_with_all(no))
            looks = place.reader() if place.shared else store
            mark, followed = looks.moved(NOW)[0], looks.last_mark()
            store.commit(Batch(runs_removed=list(range(kept + 1, 4))))
            if another:
                store = _again(place, store)
            store.commit(Batch(runs_new={4: run_row(4)}))
            store.commit(Batch(records=[record(4, 1)]))
            assert "run-4" in _moved(looks, mark), "its first record"
            assert _followed(looks, followed) == [(4, 1)], "in the journal of all runs"
            mark, followed = looks.moved(mark)[0], looks.last_mark()
            store.commit(Batch(records=[record(4, 2)]))
            assert "run-4" in _moved(looks, mark), "its second"
            assert _followed(looks, followed) == [(4, 2)], "which comes after the first"
            mark = looks.moved(mark)[0]
            store.commit(_framed(4))
            assert "run-4" in _moved(looks, mark), "a frame"
            assert looks.frames(4) == [(10, 1, b"\x80")], "and nothing but it"
            assert [stored.seq for stored in looks.journal(4)] == [1, 2]
            if place.shared:
                looks.close()


def check_nothing_is_missed_where_the_newest_is_removed_time_and_again(make: MakePlace) -> None:
    with owned(make) as (place, store):
        mark, seen = store.moved(NOW)[0], store.last_mark()
        for no in range(1, 6):
            store.commit(_with_all(no, records=6 - no))
            assert f"run-{no}" in _moved(store, mark)
            assert {run for run, _ in _followed(store, seen)} == {no}
            mark, seen = store.moved(NOW)[0], store.last_mark()
            store.commit(Batch(runs_removed=[no]))
            if no % 2:
                store = _again(place, store)


def check_a_refused_commit_leaves_the_places_taken(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(_with_all(1))
        store.commit(_with_all(2))
        mark = store.moved(NOW)[0]
        store.commit(Batch(runs_removed=[2]))
        with expect(AppendConflict, "a record that is there"):
            store.commit(Batch(records=[record(1, 3), record(1, 1)]))
        store.commit(Batch(records=[record(1, 3)]))
        assert _moved(store, mark) == {"run-1"}
        assert [stored.seq for stored in store.journal(1)] == [1, 2, 3]


def check_numbers_of_what_was_removed_are_not_given_again(make: MakePlace) -> None:
    with owned(make) as (place, store):
        runs, tasks = store.reserve("run", 3), store.reserve("task", 3)
        for no, task in zip(runs, tasks, strict=True):
            store.commit(Batch(runs_new={no: run_row(no)}, tasks_new={f"task-{task}": task_row(task, no)}))
        store.commit(Batch(runs_removed=list(runs)))
        store = _again(place, store)
        assert store.reserve("run", 1).start > runs[-1], "the number of a run that was removed"
        assert store.reserve("task", 1).start > tasks[-1], "the number of a task that was removed"


def check_who_follows_the_journal_is_not_carried_off_by_a_run_that_comes_back(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(Batch(runs_new={1: run_row(1), 2: run_row(2)}, records=[record(2, 1), record(1, 1)]))
        mark = store.last_mark()
        store.commit(Batch(runs_removed=[1]))
        store.commit(Batch(records=[record(2, 2)]))
        store.commit(Batch(runs_new={1: run_row(1)}, records=[record(1, 1)]))
        assert (2, 2) in _followed(store, mark), "what became durable between its end and its return"


CHECKS: tuple[Check, ...] = tuple(
    value for name, value in list(globals().items()) if name.startswith("check_")
)
