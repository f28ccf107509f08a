"""What every store must do with a commit in two parts: written, and made durable while its owner goes on."""

from __future__ import annotations

from treadle.kernel.errors import AppendConflict, OwnershipLost, StoreBusy
from treadle.store.rows import Batch

from .places import Check, MakePlace, expect, owned
from .rows import contents, full_batch, record, run_row


def check_a_commit_in_two_parts_is_durable_when_it_is_finished(make: MakePlace) -> None:
    with owned(make) as (place, store):
        for number in (1, 2):
            store.begin(full_batch(number)).finish()
        assert [row.id for row in store.runs()] == ["run-2", "run-1"]
        if place.shared:
            reader = place.reader()
            assert contents(reader) == contents(store)
            reader.close()


def check_whoever_reads_in_between_sees_what_is_written(make: MakePlace) -> None:
    with owned(make) as (_, store):
        commit = store.begin(full_batch())
        assert store.run("run-1") is not None, "what is decided next builds on it"
        assert commit.done, "and has waited for it"
        commit.finish()
        assert store.run("run-1") is not None


def check_a_commit_in_two_parts_that_is_refused_leaves_no_trace(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(full_batch(1))
        before = contents(store)
        late = full_batch(2)
        late.records.append(record(1, 2))
        with expect(AppendConflict, "a record can be appended once"):
            commit = store.begin(late)
            try:
                assert store.run("run-2") is None, "what was refused is not seen"
            except StoreBusy:
                pass
            commit.finish()
        assert contents(store) == before, "a refused commit left something behind"
        store.begin(full_batch(2)).finish()
        assert store.run("run-2") is not None, "a refused commit must not block the next one"


def check_a_deposed_owner_commits_nothing_in_two_parts(make: MakePlace) -> None:
    with owned(make) as (place, store):
        store.commit(Batch(runs_new={1: run_row(1)}))
        if not place.shared:
            return
        other = place.open()
        other.own()
        with expect(OwnershipLost, "one process owns a store"):
            store.begin(Batch(records=[record(1, 1)])).finish()
        assert other.journal(1) == []
        other.close()


CHECKS: tuple[Check, ...] = tuple(
    value for name, value in list(globals().items()) if name.startswith("check_")
)
