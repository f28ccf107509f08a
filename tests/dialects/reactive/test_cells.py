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
from treadle.dialects.reactive.cells import Cells
from treadle.dialects.reactive.disk import Disk
from treadle.dialects.reactive.index import EMPTY, LEAF_ENTRIES_MAX, CellIndex, Entry
from treadle.kernel.errors import BlobCorrupt, BlobMissing
from treadle.kernel.values import decode, digest_bytes, encode


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


# --- layers --------------------------------------------------------------------------------------------


def test_reads_go_through_delta_hot_and_base_and_writes_stay_in_the_delta():
    disk = Disk()
    cells = Cells(disk, cache=2)
    for n in range(5):
        cells.write(encode(n), encode([n]), at_ns=n)
    assert disk.blobs == {}, "a write touches only the delta"
    root = cells.materialise()
    assert cells.dirty_count == 0
    assert cells.hot_count == 2, "bounded"
    assert [decode(cells.read(encode(n)) or b"\xf6") for n in range(5)] == [[n] for n in range(5)]
    cells.write(encode(1), None, at_ns=9)
    cells.write(encode(2), encode("new"), at_ns=9)
    assert cells.read(encode(1)) is None
    assert decode(cells.read(encode(2)) or b"") == "new"
    assert cells.root == root
    assert sorted(decode(e.key) for e in cells.entries()) == [0, 2, 3, 4]
    again = Cells(disk, root=root)
    assert decode(again.read(encode(1)) or b"") == [1], "the old root still holds the old content"
    assert cells.preview() == cells.materialise()


def test_spilling_changes_residency_only():
    def fill(cells: Cells) -> tuple[list[Any], str]:
        rng = random.Random(7)
        for n in range(200):
            cells.write(encode(n % 60), rng.randbytes(rng.randrange(1, 400)), at_ns=n)
            if n % 9 == 0:
                cells.write(encode(n % 60), None, at_ns=n)
        rows = sorted((e.key, e.state, e.size, e.last_active_ns, cells.read(e.key)) for e in cells.entries())
        return rows, cells.materialise()

    disk = Disk()
    spilling = Cells(disk, spill_state=300, spill_delta=2000)
    roomy = Cells(Disk())
    expected = fill(roomy)
    assert fill(spilling) == expected
    assert len(disk.blobs) > 0
    cells = Cells(Disk(), spill_delta=1000)
    for n in range(100):
        cells.write(encode(n), bytes(50), at_ns=n)
        assert cells.resident_bytes <= 1000
    assert len(list(cells.entries())) == 100


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("wdrms"), st.integers(0, 30)), max_size=120))
def test_the_layers_behave_like_one_dict(actions):
    disk, model = Disk(), {}
    cells = Cells(disk, cache=3, spill_state=40, spill_delta=100)
    for at, (action, n) in enumerate(actions):
        key = encode(n)
        match action:
            case "w":
                model[key] = encode([at] * (n + 1))
                cells.write(key, model[key], at_ns=at)
            case "d":
                model.pop(key, None)
                cells.write(key, None, at_ns=at)
            case "r":
                assert cells.read(key) == model.get(key)
            case "m":
                cells.materialise()
            case "s":
                root = cells.materialise()
                cells = Cells(disk, root=root, cache=3, spill_state=40, spill_delta=100)
        assert cells.hot_count <= 3
    assert {e.key: cells.read(e.key) for e in cells.entries()} == model


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


def test_a_small_cache_changes_nothing_but_residency():
    def run(cache: int) -> tuple[Any, ...]:
        world = rx.testing.World(app(), cell_cache=cache)
        for n in range(40):
            world.send(OrderCreated(f"o-{n % 20}", n))
            if n % 10 == 0:
                world.snapshot()
        assert all(cells.hot_count <= cache for cells in world._owner._cells.values())
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
    blobs = len(world._owner.disk.blobs)
    removed = world.gc(keep=1)
    assert removed > 0
    assert len(world._owner.disk.blobs) == blobs - removed
    assert world.gc(keep=1) == 0
    assert world.reopen(at=kept).cells(order) == world.cells(order)
    with pytest.raises(BlobMissing):
        list(CellIndex(world._owner.disk).entries(roots[1].roots["com.acme/order@1"]))


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
