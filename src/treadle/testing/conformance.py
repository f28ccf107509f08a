"""What every store must do, as checks that run on any of them; free of pytest, so a third-party
store can run them too.

    for check in conformance.CHECKS:
        check(make_place)

`make_place()` is a context manager that gives a fresh `Place`: a database on which stores are opened.
A check raises AssertionError, naming the promise that is broken.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.kernel.errors import (
    AppendConflict,
    BlobCorrupt,
    BlobMissing,
    DefinitionCorrupt,
)
from treadle.kernel.limits import BLOB_INLINE_BYTES_MAX, DIAGNOSTICS_PER_RUN_MAX
from treadle.kernel.values import digest as digest_of
from treadle.kernel.values import digest_bytes, encode
from treadle.store.figures import DEAD_LETTER
from treadle.store.place_rows import Line, PlaceRow
from treadle.store.rows import Batch, DefinitionRow, TimerRow, VersionRow

from . import growing, many_runs, overlapping, ownership
from .places import Check, MakePlace, StoragePlace, expect, owned
from .rows import DEFINITION, contents, full_batch, record, run_row, task_row

if TYPE_CHECKING:
    from treadle.store.protocol import Store


__all__ = ["CHECKS", "Check", "MakePlace", "StoragePlace"]

# --- commits ---------------------------------------------------------------------------------------


def check_a_commit_can_be_read_back(make: MakePlace) -> None:
    with owned(make) as (_, store):
        batch = full_batch()
        expected_run, expected_task = batch.runs_new[1], batch.tasks_new["task-1"]
        store.commit(batch)
        assert store.run("run-1") == store.run_by_no(1) == expected_run, "a run row"
        assert store.task("task-1") == expected_task, "a task row"
        assert [stored.body for stored in store.journal(1)] == [encode({"seq": 1}), encode({"seq": 2})]
        assert store.snapshot(1) == (1, b"snapshot"), "a snapshot"
        assert [t.intent for t in store.timers_of(1)] == ["timer-1"], "a timer"
        assert store.timers_due(1_001, 10)[0].run_id == "run-1", "a due timer knows its run"
        assert [tuple(row) for row in store.inbox(10)] == [("message-1", b"hello")], "a message"
        assert store.checkpoints(1) == {"work-1": {"mark": 1}}, "a checkpoint"
        assert store.submission("run:run-1", "s") == {"seq": 1}, "a submission"
        assert store.submission("run:run-1", "t") is None
        definition = store.definition(DEFINITION)
        assert definition is not None, "a definition"
        assert definition.body == {"x": 1}, "its body"
        assert [v.digest for v in store.versions("flow")] == [DEFINITION], "a version by name"
        assert [v.name for v in store.versions(path="a/b")] == ["flow"], "a version by path"
        assert store.document("schedule", "doc-1") == {"every": 1}, "a document"
        assert store.last_run_no() == 1
        assert store.last_task_no() == 1
        assert store.blob(digest_bytes(encode({"payload": 1}))) == encode({"payload": 1}), "a payload"


def check_a_refused_append_leaves_no_trace(make: MakePlace) -> None:
    """unique(run, seq) is the lock; what shares the transaction goes with it."""
    with owned(make) as (_, store):
        store.commit(full_batch(1))
        before = contents(store)
        late = full_batch(2)
        late.records.append(record(1, 2))
        with expect(AppendConflict, "a record can be appended once"):
            store.commit(late)
        assert contents(store) == before, "a refused commit left something behind"
        store.commit(full_batch(2))
        assert store.run("run-2") is not None, "a refused commit must not block the next one"


def check_a_batch_of_many_megabytes_is_committed_or_refused(make: MakePlace) -> None:
    """More than any buffer on the way takes at once. A store that waits for ever is told from one that is slow."""
    # Records are packed: what is the same byte over and over would not be large.
    chance = random.Random(7)
    bodies = [encode({"n": number, "noise": chance.randbytes(4_000_000)}) for number in range(3)]
    broken: list[BaseException] = []

    def commit() -> None:
        try:
            with owned(make) as (_, store):
                rows: list[Any] = [record(1, number + 1, body=body) for number, body in enumerate(bodies)]
                store.commit(Batch(runs_new={1: run_row(1)}, records=rows))
                assert [stored.body for stored in store.journal(1)] == bodies, "all of it is there"
                with expect(AppendConflict, "the same again is refused"):
                    store.commit(Batch(records=rows))
                store.commit(Batch(records=[record(1, len(rows) + 1)]))
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "a large commit comes to an end"
    if broken:
        raise broken[0]


def check_two_runs_never_share_an_id_or_a_number(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(Batch(runs_new={1: run_row(1)}))
        with expect(AppendConflict, "ids are unique"):
            store.commit(Batch(runs_new={2: run_row(2, id="run-1")}))
        with expect(AppendConflict, "numbers are unique"):
            store.commit(Batch(runs_new={1: run_row(1, id="other")}))


def check_everything_is_there_after_reopening(make: MakePlace) -> None:
    with make() as place:
        if not place.shared:
            return
        store = place.open()
        store.own()
        store.commit(full_batch())
        before = contents(store)
        store.close()
        again = place.open()
        assert contents(again) == before, "reopening changed what is stored"
        assert again.check() == [], "the stored bytes are sound"


# --- journals --------------------------------------------------------------------------------------


def check_journals_are_read_in_ranges(make: MakePlace) -> None:
    with owned(make) as (_, store):
        rows: list[Any] = [record(run, seq, event_no=10 * seq) for seq in range(1, 6) for run in (1, 2)]
        store.commit(Batch(runs_new={1: run_row(1), 2: run_row(2)}, records=rows))
        assert [s.seq for s in store.journal(1, after_seq=1, until_seq=4)] == [2, 3, 4]
        assert [s.seq for s in store.journal(3)] == [], "a run without records"
        page = store.journal_page(2, after_seq=3, limit=1)
        assert [(stored.seq, event_no) for stored, event_no in page] == [(4, 40)]
        found = store.record(1, 5)
        assert found is not None
        assert found.seq == 5
        assert store.record(1, 6) is None
        assert store.last_event_no(1) == 50
        store.commit(Batch(frames=[(1, 51, 0, encode({"type": "frame"}))]))
        assert store.last_event_no(1) == 51, "frames count as events"
        assert store.last_event_no(2) == 50, "of their own run only"


def check_the_index_of_open_work_is_kept(make: MakePlace) -> None:
    with owned(make) as (_, store):
        a, b = bytes(range(16)), bytes(range(16, 32))
        rows: list[Any] = [
            (1, 1, 1, a + b, None, bytes(32), b"x"),
            (1, 2, 2, None, a, bytes(32), b"y"),
        ]
        store.commit(Batch(runs_new={1: run_row(1)}, records=rows))
        assert [tuple(row) for row in store.open_ids(1, after_seq=0)] == [(1, a + b, None), (2, None, a)]
        assert [tuple(row) for row in store.open_ids(1, after_seq=1)] == [(2, None, a)]


def check_the_nearest_snapshot_is_found(make: MakePlace) -> None:
    with owned(make) as (_, store):
        batch = Batch(runs_new={1: run_row(1)})
        batch.snapshots = [(1, 4, b"four"), (1, 9, b"nine")]
        store.commit(batch)
        assert store.snapshot(1) == (9, b"nine")
        assert store.snapshot(1, until_seq=8) == (4, b"four")
        assert store.snapshot(1, until_seq=3) is None
        assert store.snapshot_seqs(1) == [4, 9]


# --- runs and tasks --------------------------------------------------------------------------------


def check_runs_are_found_and_paged(make: MakePlace) -> None:
    with owned(make) as (_, store):
        rows = {no: run_row(no, started_ns=no, working=no % 2 == 0) for no in range(1, 7)}
        rows[3].status, rows[3].reference, rows[3].workflow = "failed", "50%_off", "other"
        rows[4].parent = "run-1"
        rows[5].retain_ns = 500
        store.commit(Batch(runs_new=rows))

        def found(**filters: Any) -> list[int]:
            return [row.no for row in store.runs(**filters)]

        assert found() == [6, 5, 4, 3, 2, 1], "newest first"
        assert found(limit=2) == [6, 5]
        assert found(before_no=3) == [2, 1]
        assert found(status=["failed"]) == [3]
        assert found(status=["failed", "running"], limit=1) == [6]
        assert found(workflow="other") == [3]
        assert found(reference="50%_off") == [3]
        assert found(since_ns=5) == [6, 5]
        assert found(parent="run-1") == [4]
        assert found(search="run-6") == [6]
        assert found(search="0%_o") == [3], "search takes % and _ as they are"
        assert found(search="0__o") == []
        assert [row.no for row in store.working(after_no=2, limit=10)] == [4, 6]
        assert [row.no for row in store.working(after_no=0, limit=1)] == [2]
        assert [row.no for row in store.retained(500, 10)] == [5]
        assert store.retained(499, 10) == []
        assert store.run_count() == {"failed": 1, "running": 5}


def check_runs_are_counted_over_time(make: MakePlace) -> None:
    with owned(make) as (_, store):
        rows = {no: run_row(no, started_ns=no * 10) for no in range(1, 7)}
        rows[3].status, rows[3].workflow, rows[3].ended_ns = "failed", "other", 36
        store.commit(Batch(runs_new=rows))

        def found(since_ns: int, **narrowed: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in store.run_history(since_ns, 20, **narrowed)]

        counted = [
            (0, "flow", "running", 1, None),
            (0, "other", "failed", 1, 6.0),
            (1, "flow", "running", 2, None),
        ]
        assert found(20) == [*counted, (2, "flow", "running", 1, None)]
        assert found(20, workflow="other") == found(20, prefix="oth") == [counted[1]]
        assert found(61) == []


def check_a_changed_run_says_so(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(Batch(runs_new={1: run_row(1, working=True)}))
        row = run_row(1, status="failed", working=False, reference="r", ended_ns=9, retain_ns=10, seq=7)
        row.error = {"class": "user", "code": "X"}
        store.commit(Batch(runs_changed={1: row}))
        assert store.run("run-1") == row
        assert store.working(after_no=0, limit=10) == []


def check_what_piles_up_is_counted(make: MakePlace) -> None:
    with owned(make) as (_, store):
        empty = store.numbers(1_000)
        timers = {f"{no:032x}": TimerRow(f"{no:032x}", 1, no * 500, True, "run-1") for no in (1, 2, 3)}
        tasks = {
            "task-1": task_row(1, 1, roles=["clerk"]),
            "task-2": task_row(2, 1, roles=["clerk"], status="claimed", assignee="ann"),
            "task-3": task_row(3, 1, roles=["clerk"], status="completed"),
        }
        letter = (DEAD_LETTER, "x", 1, encode({"id": "x"}))
        batch = Batch(runs_new={1: run_row(1)}, timers=timers, tasks_new=tasks, documents=[letter])
        store.commit(batch)
        found = store.numbers(1_000)
        assert (found.runs, found.tasks, found.timers, found.timers_due) == ({"running": 1}, 2, 3, 2)
        assert (found.dead_letters, found.inbox) == (1, 0)
        assert found.bytes >= empty.bytes > 0


def check_tasks_are_found_by_whose_they_are(make: MakePlace) -> None:
    with owned(make) as (_, store):
        tasks = {
            "task-1": task_row(1, 1, roles=["clerk"], reference="r1"),
            "task-2": task_row(2, 1, roles=["clerk", "boss"], status="claimed", assignee="ann"),
            "task-3": task_row(3, 2, roles=["boss"], status="completed"),
        }
        store.commit(Batch(runs_new={1: run_row(1), 2: run_row(2)}, tasks_new=tasks))

        def found(**filters: Any) -> list[int]:
            return [task.no for task in store.tasks(**filters)]

        assert found() == [1, 2, 3]
        assert found(role="clerk") == [1, 2]
        assert found(role="boss", status=["claimed"]) == [2]
        assert found(status=["open", "claimed"]) == [1, 2]
        assert found(assignee="ann") == [2]
        assert found(reference="r1") == [1]
        assert found(run="run-2") == [3]
        assert found(after_no=1, limit=1) == [2]
        changed = store.task("task-1")
        assert changed is not None
        changed.status, changed.roles, changed.assignee = "claimed", ["boss"], "bob"
        store.commit(Batch(tasks_changed={"task-1": changed}))
        assert found(role="clerk") == [2], "a role that was taken away"
        assert found(role="boss", status=["claimed"]) == [1, 2]


# --- time, messages, progress ----------------------------------------------------------------------


def check_timers_come_in_order_of_time(make: MakePlace) -> None:
    with owned(make) as (_, store):
        timers = {f"t{n}": TimerRow(f"t{n}", 1, due, n % 2 == 0) for n, due in enumerate((30, 10, 20, 10))}
        store.commit(Batch(runs_new={1: run_row(1)}, timers=timers))
        assert [t.intent for t in store.timers_due(20, 10)] == ["t1", "t3", "t2"]
        assert [t.fires for t in store.timers_due(20, 10)] == [False, False, True]
        assert [t.intent for t in store.timers_due(20, 1)] == ["t1"]
        assert store.timers_due(9, 10) == []
        assert store.timer_next() == 10
        assert store.timer_after(10) == 20
        store.commit(Batch(timers_done=dict.fromkeys(("t0", "t1", "t2", "t3"), 1)))
        assert store.timer_next() is None
        assert store.timer_after(0) is None


def check_the_inbox_keeps_order_and_takes_a_key_once(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.post([("b", b"1"), ("a", b"2")])
        store.post([("b", b"again"), ("c", b"3")])
        assert [tuple(row) for row in store.inbox(10)] == [("b", b"1"), ("a", b"2"), ("c", b"3")]
        assert [tuple(row) for row in store.inbox(1)] == [("b", b"1")]
        store.commit(Batch(inbox_done=["a", "b"]))
        assert [tuple(row) for row in store.inbox(10)] == [("c", b"3")]


def check_answers_are_found_by_their_keys_and_go_when_read_or_by_age(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(Batch(replies=[("a", 10, b"1"), ("b", 20, b"2"), ("c", 30, b"3")]))
        store.commit(Batch(replies=[("a", 40, b"another")]))
        assert store.replies(["a", "c", "nobody's"]) == {"a": b"1", "c": b"3"}, "the first answer stands"
        assert store.replies([]) == {}
        many = [f"key-{number}" for number in range(1_200)]
        store.commit(Batch(replies=[(key, 50, key.encode()) for key in many]))
        assert store.replies(many) == {key: key.encode() for key in many}
        store.forget_replies(["a", "nobody's"])
        assert store.replies(["a", "b"]) == {"b": b"2"}
        store.commit(Batch(replies_until_ns=30))
        assert store.replies(["b", "c"]) == {"c": b"3"}


def check_a_guest_can_write_messages(make: MakePlace) -> None:
    with make() as place:
        if not place.shared:
            return
        owner, guest = place.open(), place.open()
        owner.own()
        while owner.changed():  # whatever there was before
            time.sleep(0.01)
        guest.post([("from afar", b"hello")])
        _noticed(owner, "another connection wrote")
        assert [row[0] for row in owner.inbox(10)] == ["from afar"]
        owner.commit(Batch(inbox_done=["from afar"], replies=[("from afar", 1, b"heard")]))
        _noticed(guest, "another connection answered")
        assert guest.replies(["from afar"]) == {"from afar": b"heard"}
        guest.forget_replies(["from afar"])
        assert owner.replies(["from afar"]) == {}


def _noticed(store: Store, what: str) -> None:
    until = time.monotonic() + 5
    while not store.changed():
        assert time.monotonic() < until, f"{what}, and nobody noticed"
        time.sleep(0.01)


def check_a_checkpoint_is_replaced_and_removed(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(Batch(runs_new={1: run_row(1)}, checkpoints={"w": (1, encode(1)), "v": (1, encode(2))}))
        store.commit(Batch(checkpoints={"w": (1, encode(3))}))
        assert store.checkpoints(1) == {"w": 3, "v": 2}
        store.commit(Batch(checkpoints_done=["v"]))
        assert store.checkpoints(1) == {"w": 3}


def check_diagnostics_are_bounded(make: MakePlace) -> None:
    with owned(make) as (_, store):
        many = [("noisy", n, "stale", encode({"n": n})) for n in range(DIAGNOSTICS_PER_RUN_MAX + 10)]
        store.commit(Batch(diagnostics=[*many, ("quiet", 1, "stale", encode({"n": 0}))]))
        found = store.diagnostics("noisy", limit=10 * DIAGNOSTICS_PER_RUN_MAX)
        assert len(found) == DIAGNOSTICS_PER_RUN_MAX, "the oldest lines make room"
        assert found[-1]["n"] == DIAGNOSTICS_PER_RUN_MAX + 9, "the newest line is kept"
        assert len(store.diagnostics("quiet")) == 1


def check_documents_and_definitions(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(
            Batch(documents=[("k", "b", 1, encode(1)), ("k", "a", 1, encode(2)), ("l", "a", 1, encode(9))])
        )
        store.commit(Batch(documents=[("k", "b", 2, encode(3)), ("l", "a", 2, None)]))
        assert store.documents("k") == [("a", 2), ("b", 3)]
        assert store.document("l", "a") is None
        about = {"dialect": "toy", "name": "n", "version": "1", "body": [1]}
        row = DefinitionRow(digest=digest_of(about), dialect="toy", name="n", version="1", body=[1])
        store.commit(
            Batch(definitions=[row], versions=[VersionRow(name="n", version="1", digest=row.digest)])
        )
        broken = VersionRow(name="n", version="1", digest=row.digest, status="unavailable", reasons=["x"])
        store.commit(Batch(definitions=[row], versions=[broken]))
        (found,) = store.versions("n")
        assert (found.status, found.reasons) == ("unavailable", ["x"])


def check_definitions_are_verified_when_read(make: MakePlace) -> None:
    with owned(make) as (_, store):
        about = {"dialect": "toy", "name": "n", "version": "1", "body": [1]}
        row = DefinitionRow(digest=digest_of(about), dialect="toy", name="n", version="1", body=[1])
        store.commit(Batch(definitions=[msgspec.structs.replace(row, body=[2])]))
        with expect(DefinitionCorrupt, "a body that is not what its digest says"):
            store.definition(row.digest)
        store.commit(Batch(definitions=[row]))
        assert store.definition(row.digest) == row, "the same definition again puts it right"


# --- payloads, removal, readers --------------------------------------------------------------------


def check_payloads_are_verified_when_read(make: MakePlace) -> None:
    for size in (10, BLOB_INLINE_BYTES_MAX + 1):
        with owned(make) as (place, store):
            body = encode("x" * size)
            digest = digest_bytes(body)
            assert not store.has_blob(digest)
            with expect(BlobMissing, "an unknown payload"):
                store.blob(digest)
            store.commit(Batch(runs_new={1: run_row(1)}, blobs={digest: body}, blob_refs=[(1, digest)]))
            assert store.has_blob(digest)
            assert store.blob(digest) == body
            place.damage(digest)
            with expect(BlobCorrupt, "a damaged payload is an error, never wrong data"):
                store.blob(digest)


def check_the_sweep_takes_what_nobody_needs(make: MakePlace) -> None:
    with owned(make) as (_, store):
        bodies = [encode(["blob", n, "y" * size]) for n, size in enumerate((1, 1, 1, 100_000))]
        needed, loose, kept, large = (digest_bytes(body) for body in bodies)
        blobs = {digest_bytes(body): body for body in bodies}
        store.commit(Batch(runs_new={1: run_row(1)}, blobs=blobs, blob_refs=[(1, needed)]))
        assert store.sweep(keep=[kept]) == 2
        assert [store.has_blob(d) for d in (needed, loose, kept, large)] == [True, False, True, False]
        assert store.blob(needed) == bodies[0]
        assert store.sweep(keep=[kept]) == 0


def check_a_removed_run_takes_all_of_its_rows(make: MakePlace) -> None:
    with owned(make) as (_, store):
        store.commit(full_batch(1))
        only_one = contents(store)
        store.commit(full_batch(2))
        store.commit(
            Batch(runs_removed=[2], inbox_done=["message-2"], documents=[("schedule", "doc-2", 0, None)])
        )
        after = contents(store)
        after["diagnostics"] = [line for line in after["diagnostics"] if line["run"] != "run-2"]
        assert after == only_one, "rows of a removed run are left, or another run's are gone"
        assert store.submission("run:run-2", "s") is None
        assert store.sweep() == 1, "its payload is loose now"


def check_places_are_given_in_their_order(make: MakePlace) -> None:
    with owned(make) as (_, store):
        line = Line("flow", "")
        came = [("a", 0, 1), ("b", 5, 2), ("c", 5, 3), ("d", -5, 4), ("e", 0, 5)]
        rows = [PlaceRow(run=run, workflow="flow", priority=p, since_ns=at) for run, p, at in came]
        other = PlaceRow(run="z", workflow="flow", lane="key", since_ns=6)
        store.commit(Batch(places_new={row.run: row for row in (*rows, other)}))
        waiting = store.places_waiting(line, 10)
        assert [row.run for row in waiting] == ["b", "c", "a", "e", "d"]
        assert [store.places_ahead(row) for row in waiting] == [0, 1, 2, 3, 4]
        assert (store.crowd(line), store.last_place_ns()) == ((0, 5), 6)
        store.commit(Batch(places_held=["b", "gone"], places_done=["a"]))
        assert [row.run for row in store.places_waiting(line, 1)] == ["c"]
        assert store.crowds() == {line: (1, 3), other.line: (0, 1)}
        assert store.lines_waiting() == [line, other.line]
        assert store.place("gone") is None, "a place that has gone is not made anew"
        store.commit(Batch(places_done=["b", "c", "d", "e"]))
        assert store.lines_waiting() == [other.line]


def check_a_reader_sees_commits(make: MakePlace) -> None:
    with owned(make) as (place, store):
        if not place.shared:
            return
        reader = place.reader()
        assert reader.runs() == []
        store.commit(full_batch())
        assert contents(reader) == contents(store)
        reader.close()


CHECKS: tuple[Check, ...] = (
    *(value for name, value in list(globals().items()) if name.startswith("check_")),
    *ownership.CHECKS,
    *overlapping.CHECKS,
    *many_runs.CHECKS,
    *growing.CHECKS,
)
