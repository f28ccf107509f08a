"""Cells: the index, its layers, snapshots, collection, mailboxes (seed §7; rules 32 to 48)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactive_shop import ChargeReceipt, OrderCancelled, OrderCreated, app, order

from treadle import reactive as rx
from treadle.apps import snapshots
from treadle.dialects.reactive.index import EMPTY, LEAF_ENTRIES_MAX, CellIndex, Entry
from treadle.kernel.errors import BlobCorrupt, BlobMissing
from treadle.kernel.values import decode, digest_bytes, encode


class Disk:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def get(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise BlobMissing(f"the blob {digest} is gone")
        return self.blobs[digest]

    def put(self, body: bytes) -> str:
        self.blobs[digest_bytes(body)] = body
        return digest_bytes(body)


def entry(n: int, state: int = 0) -> Entry:
    return Entry(encode(f"k{n}"), digest_bytes(encode(state)), 1, state)


# --- index ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), max_size=300),
    st.randoms(use_true_random=False),
)
def test_the_root_is_a_function_of_the_content_alone(changes, rng):
    index = CellIndex(Disk())
    root, content = EMPTY, {}
    for start in range(0, len(changes), 17):
        batch: dict[bytes, Entry | None] = {}
        for n, state in changes[start : start + 17]:
            batch[entry(n).key] = content[entry(n).key] = entry(n, state) if state else None
        root = index.update(root, batch)
    present = [e for e in content.values() if e is not None]
    rng.shuffle(present)
    fresh = EMPTY
    for e in present:
        fresh = index.update(fresh, {e.key: e})
    assert fresh == root
    assert {e.key: e for e in index.entries(root)} == {e.key: e for e in present}
    assert index.count(root) == len(present)
    for n in range(0, 400, 7):
        assert index.find(root, entry(n).key) == content.get(entry(n).key)


def test_leaves_split_above_64_entries_and_collapse_again():
    disk = Disk()
    index = CellIndex(disk)
    entries = {entry(n).key: entry(n, 1) for n in range(LEAF_ENTRIES_MAX)}
    full = index.update(EMPTY, entries)
    assert decode(disk.get(full))["t"] == "Leaf"
    one_more = index.update(full, {entry(64).key: entry(64, 1)})
    assert decode(disk.get(one_more))["t"] == "Branch"
    assert index.update(one_more, {entry(64).key: None}) == full
    assert index.update(full, dict.fromkeys(entries)) == EMPTY


def test_an_update_writes_only_the_path_to_what_changed():
    disk = Disk()
    index = CellIndex(disk)
    root = index.update(EMPTY, {entry(n).key: entry(n, 1) for n in range(5000)})
    before = len(disk.blobs)
    changed = index.update(root, {entry(7).key: entry(7, 2)})
    assert len(disk.blobs) - before <= 3
    assert list(index.changes(root, changed)) == [(entry(7, 1), entry(7, 2))]


def test_a_damaged_node_is_found():
    disk = Disk()
    index = CellIndex(disk)
    root = index.update(EMPTY, {entry(1).key: entry(1, 1)})
    disk.blobs[root] = disk.blobs[root][:-1] + b"\x05"
    with pytest.raises(BlobCorrupt):
        index.find(root, entry(1).key)
    del disk.blobs[root]
    with pytest.raises(BlobMissing):
        index.find(root, entry(1).key)


# --- layers: what changed since the snapshot, what is in memory, what the index holds ------------------------


@rx.schema("t/Put@1")
@dataclass(frozen=True)
class Put:
    k: int
    body: bytes | None


@rx.schema("t/Held@1")
@dataclass(frozen=True)
class Held:
    body: bytes


@rx.workflow("t/held@1", state=Held, events=[Put], key="k", effects=[])
def held(state, event, ctx):
    return rx.Output(None if event.body is None else Held(event.body))


def blobs_of(world: rx.testing.World) -> int:
    (count,) = world._host.store._connection.execute("SELECT count(*) FROM blobs").fetchone()
    return int(count)


def test_writes_stay_out_of_the_index_until_a_snapshot_and_reads_find_the_newest():
    world = rx.testing.World(rx.App("x", [held]), cell_cache=2)
    for n in range(5):
        world.send(Put(n, b"old"))
    assert blobs_of(world) == 0, "a write touches the journal, not the index"
    before = world.snapshot()
    assert before.roots["t/held@1"] != EMPTY
    world.send(Put(1, None))
    world.send(Put(2, b"new"))
    assert world.snapshots()[-1] == before, "and the root of the snapshot stays"
    assert [(c.key, world.state(held, c.key).body) for c in world.cells(held)] == [
        (0, b"old"),
        (2, b"new"),
        (3, b"old"),
        (4, b"old"),
    ]
    after = world.snapshot()
    assert world.compare(before, after) == {"t/held@1": [1, 2]}
    index = CellIndex(snapshots.StoreBlobs(world._host.core.desk))
    assert index.count(before.roots["t/held@1"]) == 5, "the old root still holds the old content"


def test_what_is_not_in_memory_is_read_all_the_same():
    """Nothing is in memory alone: states leave it at any time, whatever their size."""

    def fill(cache: int) -> tuple[Any, ...]:
        rng = random.Random(7)
        world = rx.testing.World(rx.App("x", [held]), cell_cache=cache)
        for n in range(60):
            world.send(Put(n % 20, None if n % 9 == 0 else rng.randbytes(rng.choice((10, 400, 70_000)))))
            assert len(world._host.core.hot) <= cache
        return world.cells(held), [world.state(held, n) for n in range(20)], world.snapshot().roots

    assert fill(3) == fill(4096)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("wdrmo"), st.integers(0, 9)), max_size=40))
def test_cells_behave_like_one_dict(actions):
    world, model = rx.testing.World(rx.App("x", [held]), cell_cache=3), {}
    for at, (action, n) in enumerate(actions):
        match action:
            case "w":
                model[n] = bytes([at]) * (n + 1)
                world.send(Put(n, model[n]))
            case "d":
                model.pop(n, None)
                world.send(Put(n, None))
            case "r":
                found = world.state(held, n)
                assert (found and found.body) == model.get(n)
            case "m":
                world.snapshot()
            case "o":
                world = world.reopen()
        assert len(world._host.core.hot) <= 3
    assert {c.key: world.state(held, c.key).body for c in world.cells(held)} == model


# --- the world's cells -----------------------------------------------------------------------------------


def test_cells_are_isolated_created_empty_and_deleted_with_null():
    states: list[Any] = []

    @rx.schema("t/Put@1")
    @dataclass(frozen=True)
    class Put:
        k: int
        text: str | None

    @rx.schema("t/Held@1")
    @dataclass(frozen=True)
    class Held:
        text: str

    @rx.workflow("t/cell@1", state=Held, events=[Put], key="k", effects=[])
    def cell(state, event, ctx):
        states.append((ctx.key, state))
        return rx.Output(None if event.text is None else Held(event.text))

    world = rx.testing.World(rx.App("x", [cell]))
    for k, text in ((1, "a"), (2, "b"), (1, "c"), (1, None), (1, "d")):
        world.send(Put(k, text))
    assert states == [(1, None), (2, None), (1, Held("a")), (1, Held("c")), (1, None)]
    assert [(c.key, c.size > 0) for c in world.cells(cell)] == [(1, True), (2, True)]
    world.assert_replays()


def test_snapshot_roots_depend_on_the_cells_only():
    def build(keys: list[str], detour: bool) -> dict[str, str]:
        world = rx.testing.World(app())
        for key in keys:
            world.send(OrderCreated(key, 5))
            if detour:
                world.send(OrderCreated("gone-" + key, 5))
                world.send(OrderCancelled("gone-" + key))
                world.snapshot()
        return world.snapshot().roots

    keys = [f"o-{n}" for n in range(100)]
    roots = build(keys, False)
    assert build(list(reversed(keys)), False) == roots
    assert build(keys, True) == roots
    assert roots["com.acme/order@1"] != EMPTY
    assert roots["com.acme/ledger@1"] == EMPTY


def test_a_snapshot_drains_the_queue_and_is_allowed_with_open_effects():
    world = rx.testing.World(app())
    world.send(OrderCreated("a", 1), run=False)
    assert world.open() == []
    before = world.snapshot()
    assert len(world.open()) == 1
    world.ok(world.open()[0], ChargeReceipt("p"))
    after = world.snapshot()
    assert before.roots["com.acme/ledger@1"] == EMPTY
    assert world.compare(before, after)["com.acme/order@1"] == ["a"]
    for cut in (0, before, after, None):
        again = world.reopen(at=cut)
        assert again.cells(order) == world.cells(order)
        assert again.open() == world.open()
        assert again.snapshot().roots == after.roots
    world.assert_replays()


def test_a_snapshot_that_is_read_in_pages_is_of_one_moment():
    """Cells change, come and go between its pages, and what nobody needs is collected."""
    app = rx.App("x", [held])
    world = rx.testing.World(app)
    for n in range(9):
        world.send(Put(n, b"old"))
    host, rounds = world._host, 0
    between = [Put(8, b"new"), Put(0, None), Put(9, b"late"), Put(3, b"x"), Put(3, b"old")]
    while True:
        taken = host.change(lambda desk: snapshots.page(desk, app, limit=2))
        if taken["done"]:
            break
        rounds += 1
        if between:
            world.send(between.pop(0))
        host.change(lambda desk: desk.store.sweep(keep=snapshots.pinned(desk.store)))
    assert rounds == 5, "nine cells, two at a time"
    assert taken["roots"] == world.snapshot().roots
    found = CellIndex(snapshots.StoreBlobs(host.core.desk)).entries(taken["roots"]["t/held@1"])
    assert sorted(decode(entry.key) for entry in found) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_small_cache_changes_nothing_but_residency():
    def run(cache: int) -> tuple[Any, ...]:
        world = rx.testing.World(app(), cell_cache=cache)
        for n in range(40):
            world.send(OrderCreated(f"o-{n % 20}", n))
            if n % 10 == 0:
                world.snapshot()
        assert len(world._host.core.hot) <= cache
        return world.cells(order), world.snapshot().roots, world.open()

    assert run(1) == run(4096)


def test_collection_keeps_what_the_kept_snapshots_reach_and_nothing_else():
    world = rx.testing.World(app())
    roots = []
    for n in range(5):
        world.send(OrderCreated(f"o-{n}", n))
        world.error(world.open()[0])
        roots.append(world.snapshot())
    kept = world.snapshot()
    blobs = blobs_of(world)
    removed = world.gc(keep=1)
    assert removed > 0
    assert blobs_of(world) == blobs - removed
    assert world.gc(keep=1) == 0
    assert world.reopen(at=kept).cells(order) == world.cells(order)
    with pytest.raises(BlobMissing):
        list(
            CellIndex(snapshots.StoreBlobs(world._host.core.desk)).entries(roots[1].roots["com.acme/order@1"])
        )


def test_records_carry_the_workflow_and_the_key():
    world = rx.testing.World(app())
    world.send(OrderCreated("a", 1))
    world.send(OrderCreated("b", 1))
    world.ok(world.open(key="b")[0], ChargeReceipt("p"))
    rows = world.journal(order, "b")
    assert [(r.seq, r.kind, r.workflow, r.key) for r in rows] == [
        (1, "event", "com.acme/order@1", "b"),
        (2, "receipt", "com.acme/order@1", "b"),
    ]
    assert rows[1].event["intent"] == rows[0].opened[0].id, "a receipt is correlated with its intent"
    assert rows[1].events == [
        {"schema": "com.acme/OrderSettled@1", "value": {"order_id": "b", "amount_cents": 1}}
    ]
    assert rows[0].manifest == world.manifest_digest
    assert [r.workflow for r in world.journal()] == [
        "shop",
        "com.acme/order@1",
        "com.acme/order@1",
        "com.acme/order@1",
        "com.acme/ledger@1",
        "com.acme/notes@1",
    ]


def test_ready_cells_take_turns_one_event_each():
    turns: list[tuple[str, int]] = []

    @rx.schema("t/Tick@1")
    @dataclass(frozen=True)
    class Tick:
        k: str
        n: int

    @rx.workflow("t/turn@1", state=Tick, events=[Tick], key="k", effects=[])
    def turn(state, event, ctx):
        turns.append((event.k, event.n))
        return rx.Output(event)

    world = rx.testing.World(rx.App("x", [turn]))
    for k, count in (("a", 4), ("b", 1), ("c", 2)):
        for n in range(count):
            world.send(Tick(k, n), run=False)
    assert turns == []
    assert world.run(2) == 2
    world.run()
    assert turns == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2), ("a", 3)]


@pytest.mark.parametrize("seed", range(3))
def test_fifty_cells_with_equal_params_settle_in_any_order_without_crossing(seed):
    same = rx.effect("t/same@1", params=str, receipt=str)

    @rx.schema("t/Begin@1")
    @dataclass(frozen=True)
    class Begin:
        k: int

    @rx.schema("t/Got@1")
    @dataclass(frozen=True)
    class Got:
        answers: tuple[str, ...] = ()

    @rx.workflow("t/many@1", state=Got, events=[Begin], key="k", effects=[same])
    def many(state, event, ctx):
        if isinstance(event, Begin):
            return rx.Output(Got(), effects=[same("equal", ref="r"), same("equal", ref="r")])
        return rx.Output(Got((*state.answers, event.value)))

    world = rx.testing.World(rx.App("x", [many]))
    for k in range(50):
        world.send(Begin(k))
    intents = world.open()
    assert len({i.id for i in intents}) == 100
    random.Random(seed).shuffle(intents)
    for n, intent in enumerate(intents):
        world.ok(intent, f"for {intent.key}")
        if n == 40:
            world = world.reopen()
    for k in range(50):
        assert world.state(many, k) == Got((f"for {k}",) * 2)
    world.assert_replays()
