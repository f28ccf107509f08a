"""Worlds: submissions, replay, choreography, apply, shadow, governance (seed §3.7, §3.8, §8; rules 22 to 27)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from reactive_shop import (
    Booked,
    ChargeReceipt,
    Ledger,
    Note,
    Order,
    OrderCancelled,
    OrderCreated,
    OrderSettled,
    app,
    ledger,
    notes,
    order,
)

from treadle import reactive as rx
from treadle.apps import cells as apps
from treadle.kernel.errors import InputInvalid, NotCanonical, TreadleError
from treadle.kernel.values import encode
from treadle.store.packing import unpack


@pytest.fixture
def world() -> rx.testing.World:
    return rx.testing.World(app())


def settle_all(world: rx.testing.World) -> None:
    while intents := world.open():
        for intent in intents:
            world.ok(intent, ChargeReceipt("p") if intent.effect == "payment/charge@1" else None)


# --- ingress -----------------------------------------------------------------------------------------------


def test_raw_values_and_canonical_bytes_are_accepted_alike(world):
    world.send("com.acme/OrderCreated@1", {"amount_cents": 5, "order_id": "a"})
    world.send("com.acme/OrderCreated@1", encode({"order_id": "b", "amount_cents": 5}), key="b")
    world.send(OrderCreated("c", 5))
    assert [c.key for c in world.cells(order)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "value",
    [
        {"order_id": "a"},
        {"order_id": 1, "amount_cents": 1},
        {"order_id": "a", "amount_cents": 1, "x": 1},
        "text",
        None,
    ],
)
def test_an_off_schema_event_is_refused_before_the_journal(world, value):
    before = world.journal()
    with pytest.raises(InputInvalid):
        world.send("com.acme/OrderCreated@1", value)
    assert world.journal() == before


def test_bytes_that_are_not_canonical_are_refused_not_repaired(world):
    with pytest.raises(NotCanonical):
        world.send("com.acme/OrderCreated@1", b"\xa2\x6corder_id")
    with pytest.raises(NotCanonical):
        world.send("com.acme/OrderCreated@1", encode({"order_id": "b", "amount_cents": 5}) + b"\x00")


def test_a_submission_is_taken_once_also_after_a_reopen(world):
    first = world.send(OrderCreated("a", 1), submission_id="s1")
    journal = world.journal()
    assert world.send(OrderCreated("a", 1), submission_id="s1") == first
    assert world.send(OrderCreated("other", 9), submission_id="s1") == first
    again = world.reopen()
    assert again.send(OrderCreated("a", 1), submission_id="s1") == first
    assert again.journal() == world.journal() == journal


def test_a_refusal_is_the_durable_answer_of_its_submission():
    calls: list[int] = []

    @rx.workflow("t/no@1", state=Note, events=[Booked], key="order_id", effects=[])
    def no(state, event, ctx):
        calls.append(1)
        raise ValueError("not today")

    world = rx.testing.World(rx.App("x", [no]))
    for place in (world, world, world.reopen()):
        with pytest.raises(TreadleError, match="not today"):
            place.send(Booked("a"), submission_id="s")
    with pytest.raises(TreadleError, match="not today"):
        world.reopen().send(Booked("a"), submission_id="s")
    assert len(calls) == 2, "once before the reopen that came first, once there; never again for the same id"
    assert world.journal(no) == []


def test_one_refused_delivery_undoes_no_other():
    @rx.workflow("t/no@1", state=Note, events=[Booked], key="order_id", effects=[])
    def no(state, event, ctx):
        raise ValueError("not today")

    @rx.workflow("t/yes@1", state=Note, events=[Booked], key="order_id", effects=[])
    def yes(state, event, ctx):
        return rx.Output(Note(event.order_id))

    world = rx.testing.World(rx.App("x", [no, yes]))
    with pytest.raises(TreadleError, match="not today"):
        world.send(Booked("a"))
    assert world.state(yes, "a") == Note("a")
    assert world.state(no, "a") is None


def test_queued_events_are_durable(world):
    world.send(OrderCreated("a", 1), run=False, submission_id="s")
    again = world.reopen()
    assert again.cells(order) == []
    assert again.run() == 1
    assert again.status(order, "a") == "waiting"
    again.send(OrderCreated("a", 1), submission_id="s")
    assert len(again.journal(order)) == 1


# --- replay --------------------------------------------------------------------------------------------------


def test_equal_calls_give_equal_worlds():
    def build(seed: int) -> rx.testing.World:
        world = rx.testing.World(app(), seed=seed)
        for n in range(5):
            world.send(OrderCreated(f"o-{n}", n))
        settle_all(world)
        return world

    one, two, other = build(1), build(1), build(2)
    assert [r.digest for r in one.journal()] == [r.digest for r in two.journal()]
    assert one.snapshot().roots == two.snapshot().roots == other.snapshot().roots
    assert [r.digest for r in one.journal()] != [r.digest for r in other.journal()]


def test_replay_restores_all_five_parts_of_an_instance(world):
    world.send(OrderCreated("a", 1))
    world.snapshot()
    world.send(OrderCreated("b", 1))
    world.error(world.open(key="b")[0])
    for cut in (0, 1, None):
        again = world.reopen(at=cut)
        for key in ("a", "b"):
            assert again.state(order, key) == world.state(order, key)
            assert again.open(key=key) == world.open(key=key)
            assert again.status(order, key) == world.status(order, key)
            assert again.journal(order, key)[-1].seq == world.journal(order, key)[-1].seq
            assert again.journal(order, key)[-1].manifest == app().digest
    world.assert_replays()


def test_a_changed_byte_of_the_journal_refuses_to_open(world):
    world.send(OrderCreated("a", 1))
    connection = world._host.store._connection
    query = "SELECT body, opens, closes FROM journal ORDER BY rowid DESC LIMIT 1"
    body, opens, closes = connection.execute(query).fetchone()
    changed = unpack(body, opens, closes).replace(b"waiting", b"running")
    assert connection.execute("UPDATE journal SET body = ? WHERE body = ?", (changed, body)).rowcount == 1
    with pytest.raises(TreadleError, match="digest"):
        world.reopen()


# --- choreography ------------------------------------------------------------------------------------------------


def test_order_ledger_and_notes_play_together(world):
    for n in range(3):
        world.send(OrderCreated(f"o-{n}", 100))
    settle_all(world)
    assert world.state(ledger) == Ledger(300, ("o-0", "o-1", "o-2"))
    assert [c.status for c in world.cells(notes)] == ["completed"] * 3
    world.assert_replays()


@pytest.mark.parametrize("turns", range(4))
def test_a_crash_between_emitter_and_receiver_delivers_exactly_once(world, turns):
    world.send(OrderSettled("o-1", 70), run=False)
    world.run(turns)
    after = world.reopen()
    after.run()
    settle_all(after)
    assert after.state(ledger) == Ledger(70, ("o-1",))
    assert len(after.journal(ledger)) == 1
    assert len([r for r in after.journal(notes, "o-1") if r.kind == "event"]) == 1
    after.assert_replays()


def test_a_derived_event_whose_step_fails_is_a_fault_of_the_receiver():
    @rx.workflow("t/bad@1", state=Note, events=[Booked], key="order_id", effects=[])
    def bad(state, event, ctx):
        raise ValueError("cannot")

    world = rx.testing.World(rx.App("x", [ledger, bad]))
    world.send(OrderSettled("o-1", 70))
    assert world.state(ledger) == Ledger(70, ("o-1",)), "the emitter is not undone"
    assert world.status(bad, "o-1") == "failed"
    world.assert_replays()
    world.send(OrderSettled("o-2", 70))
    before = world.journal(bad, "o-1")
    again = rx.testing.World(rx.App("x", [ledger, bad]))
    assert again.status(bad, "o-1") is None
    assert world.journal(bad, "o-1") == before


# --- apply ---------------------------------------------------------------------------------------------------------


@rx.workflow(
    "com.acme/order@1",
    state=Order,
    events=[OrderCreated, OrderCancelled],
    key="order_id",
    effects=[],
    terminal=lambda o: True,
)
def order_v2(o, event, ctx):
    """Takes no money at all."""
    if o is None and isinstance(event, OrderCreated):
        return rx.Output(Order(event.order_id, event.amount_cents, "done"))
    return rx.Output(None if isinstance(event, OrderCancelled) else o)


def app_v2() -> rx.App:
    return rx.App("shop", [order_v2, notes])


def quiet(world: rx.testing.World) -> None:
    """Only orders, so that no ledger idles."""
    world.send(OrderCreated("a", 1))
    for _ in range(3):
        world.error(world.open()[0])
        world.advance("1h")


def test_apply_is_refused_with_what_blocks_it_and_changes_nothing(world):
    world.send(OrderCreated("a", 1))
    before = (world.journal(), world.open(), world.manifest_digest)
    with pytest.raises(TreadleError) as caught:
        world.apply(app_v2())
    (blocker,) = caught.value.details["blockers"]
    assert (blocker["workflow"], blocker["key"], blocker["status"]) == ("com.acme/order@1", "a", "waiting")
    assert blocker["intents"] == [world.open()[0].id]
    assert (world.journal(), world.open(), world.manifest_digest) == before


def test_an_idle_instance_blocks_only_where_its_workflow_has_an_end():
    """REACTIVE.md §8.4: one that never says what its last states are is at rest when nothing is open."""
    for terminal, blocked in ((None, []), (lambda note: False, ["t/idle@1"])):
        idle = rx.workflow(
            "t/idle@1", state=Note, events=[Booked], key="order_id", effects=[], terminal=terminal
        )
        flow = idle(lambda state, event: rx.Output(Note(event.order_id)))
        world = rx.testing.World(rx.App("x", [flow]))
        world.send(Booked("a"))
        assert world.status(flow, "a") == "running"
        other = rx.App("x", [idle(lambda state, event: rx.Output(Note("again")))])
        if not blocked:
            world.apply(other)
            world.send(Booked("a"))
            assert world.state("t/idle@1", "a") == Note("again")
        else:
            with pytest.raises(TreadleError) as caught:
                world.apply(other)
            assert [b["workflow"] for b in caught.value.details["blockers"]] == blocked
            assert caught.value.details["blockers"][0]["reason"] == "is not terminal"
        world.assert_replays()


def test_queued_work_blocks(world):
    world.send(OrderCreated("a", 1), run=False)
    with pytest.raises(TreadleError) as caught:
        world.apply(app_v2())
    assert caught.value.details["blockers"][0]["reason"] == "has queued events"


def test_apply_moves_quiescent_cells_and_later_events_run_the_new_code(world):
    quiet(world)
    assert world.status(order, "a") == "completed"
    old = world.manifest_digest
    world.apply(app_v2())
    assert world.manifest_digest == app_v2().digest != old
    assert world.state(order_v2, "a").pc == "failed"
    world.send(OrderCreated("b", 2))
    assert world.open() == []
    assert world.state(order_v2, "b").pc == "done"
    world.send(OrderCreated("a", 2))
    rows = world.journal(order_v2, "a")
    assert [r.kind for r in rows[-2:]] == ["apply", "event"]
    assert {r.manifest for r in rows[:-1]} == {old}
    assert rows[-1].manifest == app_v2().digest
    world.assert_replays()


def test_an_event_that_was_routed_before_an_apply_is_decided_by_what_was_applied(world):
    """Whoever publishes routes by the version that it knows; the owner may have moved on meanwhile."""
    quiet(world)
    late = [apps.items(app(), *app().event(OrderCreated(key, 9)), submission=None) for key in ("a", "new")]
    world.apply(app_v2())
    world.send(OrderCreated("a", 2))
    for items in late:
        world._host.publish(items, {})
    assert [record.manifest for record in world.journal(order_v2, "a")][-2:] == [app_v2().digest] * 2
    assert [record.kind for record in world.journal(order_v2, "a")].count("apply") == 1
    assert world.state(order_v2, "new").pc == "done", "the new version takes no money"
    assert world.open() == []
    world.assert_replays()


def test_after_an_apply_no_cell_needs_the_old_code_to_load(world):
    quiet(world)
    old = world.manifest_digest
    world.apply(app_v2())
    world.send(OrderCreated("a", 2))
    del world._host.apps[old]
    again = world.reopen()
    assert again.state(order_v2, "a") == world.state(order_v2, "a")
    with pytest.raises(TreadleError) as caught:
        world.reopen(at=0)
    assert caught.value.code == "CODE_MISSING"
    assert "--app" in caught.value.message


def test_a_state_that_does_not_fit_the_new_code_blocks(world):
    @rx.schema("com.acme/Order@1")
    @dataclass(frozen=True)
    class Other:
        order_id: str

    @rx.workflow("com.acme/order@1", state=Other, events=[OrderCreated], key="order_id", effects=[])
    def narrow(state, event, ctx):
        return rx.Output(state)

    quiet(world)
    with pytest.raises(TreadleError) as caught:
        world.apply(rx.App("shop", [narrow]))
    assert "does not fit" in caught.value.details["blockers"][0]["reason"]


# --- governance ----------------------------------------------------------------------------------------------------


def test_a_proposal_goes_from_submitted_to_applied_and_nothing_is_implicit(world):
    quiet(world)
    one, two = world.propose(app_v2()), world.propose(app_v2())
    assert (one, two) == (1, 2), "ids are monotonic, whatever the manifest"
    for act in (world.approve, world.apply):
        with pytest.raises(TreadleError):
            act(one)
    world.shadow(one)
    with pytest.raises(TreadleError):
        world.apply(one)
    world.approve(one)
    world.reject(two)
    with pytest.raises(TreadleError):
        world.approve(two)
    assert [(p.id, p.status) for p in world.proposals()] == [(1, "approved"), (2, "rejected")]
    world = world.reopen()
    world.apply(one)
    assert world.manifest_digest == app_v2().digest
    assert [(p.id, p.status) for p in world.proposals()] == [(1, "applied"), (2, "rejected")]
    with pytest.raises(TreadleError):
        world.apply(one)
    with pytest.raises(TreadleError):
        world.shadow(99)
    world.assert_replays()
    assert [p.status for p in world.reopen(at=0).proposals()] == ["applied", "rejected"]


def test_another_application_is_no_version_of_this_one(world):
    other = rx.App("other", [order_v2])
    for act in (world.apply, world.propose):
        with pytest.raises(InputInvalid, match="not other"):
            act(other)


def test_an_approved_proposal_still_needs_quiescence(world):
    world.send(OrderCreated("a", 1))
    number = world.propose(app_v2())
    world.shadow(number)
    world.approve(number)
    with pytest.raises(TreadleError) as caught:
        world.apply(number)
    assert caught.value.details["blockers"]
    assert world.proposals()[0].status == "approved"


def test_a_shadow_reports_only_what_it_observed(world):
    world.send(OrderCreated("a", 1))
    world.send(OrderCreated("b", 2))
    world.ok(world.open(key="a")[0], ChargeReceipt("p"))
    before = world.journal(order)
    same = world.shadow(world.propose(app()))
    assert {e["effect"] for e in same["effects"]} == {"payment/charge@1", "mail/send@1"}
    assert sorted((p["workflow"], p["key"]) for p in same["pending"]) == [
        ("com.acme/notes@1", "a"),
        ("com.acme/order@1", "b"),
    ]
    assert same["statuses"]["com.acme/order@1/b"] == "waiting"
    assert same["allowlists"]["com.acme/order@1"] == ["payment/charge@1", "sys/timer.set@1"]
    assert same["changes"] == []
    other = world.shadow(world.propose(app_v2()))
    assert [e["effect"] for e in other["effects"]] == ["mail/send@1"]
    assert other["allowlists"]["com.acme/order@1"] == []
    changed = {c["key"]: c["after"]["pc"] for c in other["changes"]}
    assert changed == {"b": {"$tag": "done"}}
    assert {"run", "reason"} <= other["skipped"][0].keys()
    assert world.journal(order) == before, "nothing happened to the real cells"
    assert len(world.open()) == 2


def test_a_new_world_has_a_baseline():
    world = rx.testing.World(app())
    assert [r.kind for r in world.journal()] == ["started"]
    assert len(world.snapshots()) == 1
    assert world.snapshots()[0].manifest == app().digest
