"""What every store must do about who owns it: epochs, shards, and numbers that nobody else is given."""

from __future__ import annotations

import threading

from treadle.kernel.errors import AppendConflict, OwnershipLost
from treadle.store.rows import Batch

from .places import Check, MakePlace, expect, owned
from .rows import contents, full_batch, record, run_row


def check_numbers_are_given_once(make: MakePlace) -> None:
    with owned(make) as (place, store):
        store.commit(full_batch(1))
        given = [store.reserve("run", 3), store.reserve("run", 2), store.reserve("task", 2)]
        assert [len(block) for block in given] == [3, 2, 2], "as many as were asked for"
        assert given[0].start > store.last_run_no(), "higher than any in use"
        assert given[1].start > given[0][-1], "never the same ones"
        assert given[2].start > store.last_task_no(), "tasks have numbers of their own"
        if place.shared:
            again = place.open()
            again.own()
            assert again.reserve("run", 1).start > again.last_run_no(), "another owner goes on"


def check_a_commit_is_refused_if_a_shard_that_it_touches_is_not_ours(make: MakePlace) -> None:
    with owned(make) as (_, store):
        assert len(store.held) == store.shards >= 1, "an owner of everything holds every shard"
        assert store.lost() == []
        batch = full_batch(1)
        batch.shards = {store.shards}
        before = contents(store)
        with expect(OwnershipLost, "a shard that is not held"):
            store.commit(batch)
        assert contents(store) == before, "nothing of it was written"
        batch.shards = {0}
        store.commit(batch)


def check_only_an_owner_commits(make: MakePlace) -> None:
    with make() as place:
        store = place.open()
        with expect(OwnershipLost, "a store that was never owned refuses a commit"):
            store.commit(full_batch())
        store.own()
        store.commit(full_batch())


def check_a_new_epoch_fences_the_old_owner(make: MakePlace) -> None:
    with make() as place:
        if not place.shared:
            return
        first, second = place.open(), place.open()
        epoch = first.own()
        first.commit(full_batch(1))
        assert second.own() == epoch + 1, "epochs count up"
        before = contents(second)
        with expect(OwnershipLost, "an old owner cannot commit"):
            first.commit(full_batch(2))
        with expect(OwnershipLost, "an old owner cannot sweep"):
            first.sweep()
        assert contents(second) == before, "an old owner left something behind"
        second.commit(full_batch(2))


def check_two_owners_at_once_cannot_both_append(make: MakePlace) -> None:
    """Truly concurrent: two threads take the store and append the same record, many times."""
    with make() as place:
        if not place.shared:
            return
        setup = place.open()
        setup.own()
        setup.commit(Batch(runs_new={1: run_row(1)}))
        rounds = 20
        won: list[int] = []
        gate = threading.Barrier(2)

        def compete() -> None:
            store = place.open()
            for seq in range(1, rounds + 1):
                gate.wait()
                store.own()
                try:
                    store.commit(Batch(records=[record(1, seq)]))
                    won.append(seq)
                except (AppendConflict, OwnershipLost):
                    continue
            store.close()

        threads = [threading.Thread(target=compete) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == sorted(set(won)), "two owners appended the same record"
        assert [stored.seq for stored in setup.journal(1)] == sorted(won), (
            "an acknowledged record is not there"
        )


CHECKS: tuple[Check, ...] = tuple(
    value for name, value in list(globals().items()) if name.startswith("check_")
)
