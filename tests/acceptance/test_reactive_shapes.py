"""Reactive workflows as REACTIVE.md and seed 003 describe them, through public names only.

Most of it runs in `rx.testing.World`, which needs no engine; what is about durability, executors and the
command runs on a real store.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import pytest

from treadle import Engine, TreadleError
from treadle import reactive as rx

from .conftest import Desk

World = rx.testing.World
ORDER, CHARGE, TIMER = "com.acme/order@1", "payment/charge@1", "sys/timer.set@1"


@rx.schema("com.acme/OrderCreated@1")
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/OrderSettled@1")
@dataclass(frozen=True, slots=True)
class OrderSettled:
    order_id: str


@rx.schema("com.acme/ChargeParams@1")
@dataclass(frozen=True, slots=True)
class ChargeParams:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/ChargeReceipt@1")
@dataclass(frozen=True, slots=True)
class ChargeReceipt:
    payment: str


@rx.schema("com.acme/Order@1")
@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    amount_cents: int = 0
    pc: Literal["charging", "backoff", "done", "failed"] = "charging"
    attempt: int = 1


@rx.schema("com.acme/Ledger@1")
@dataclass(frozen=True, slots=True)
class Ledger:
    n: int = 0


charge = rx.effect(CHARGE, params=ChargeParams, receipt=ChargeReceipt)


@charge.executor
async def do_charge(call: rx.Call[ChargeParams]) -> ChargeReceipt:
    await call.progress("authorised", percent=50)
    return ChargeReceipt(f"p-{call.params.order_id}")


@rx.workflow(
    ORDER,
    state=Order,
    events=[OrderCreated],
    key="order_id",
    effects=[charge, rx.timer],
    terminal=lambda o: o.pc in ("done", "failed"),
)
def order(o: Order | None, event: Any, ctx: rx.Context) -> rx.Output[Order]:
    """The example of the design page, §1."""
    match o, event:
        case None, OrderCreated(oid, cents):
            return rx.Output(Order(oid, cents), effects=[charge(ChargeParams(oid, cents), ref="charge:1")])
        case Order(pc="charging"), rx.Receipt(ref=r, status="ok") if r == f"charge:{o.attempt}":
            return rx.Output(replace(o, pc="done"), events=[OrderSettled(o.order_id)])
        case Order(pc="charging"), rx.Receipt(ref=r, status="error" | "timeout") if (
            r == f"charge:{o.attempt}"
        ):
            later = ctx.now + timedelta(seconds=2**o.attempt)
            return rx.Output(replace(o, pc="backoff"), effects=[rx.timer(later, ref=f"retry:{o.attempt}")])
        case Order(pc="backoff"), rx.Receipt(ref=r) if r == f"retry:{o.attempt}":
            again = replace(o, pc="charging", attempt=o.attempt + 1)
            params = ChargeParams(o.order_id, o.amount_cents)
            return rx.Output(again, effects=[charge(params, ref=f"charge:{again.attempt}")])
        case _:
            return rx.Output(o)


@rx.workflow("com.acme/ledger@1", state=Ledger, events=[OrderSettled], effects=[], terminal=lambda s: True)
def ledger(s: Ledger | None, event: Any, ctx: rx.Context) -> rx.Output[Ledger]:
    return rx.Output(Ledger((s or Ledger()).n + 1))


app = rx.App("shop", [order, ledger])
Step = Callable[[Any, Any, Any], Any]


def orders(step: Step, **fields: Any) -> Any:
    """A keyed workflow over OrderCreated with another step function."""
    given: dict[str, Any] = {"state": Order, "events": [OrderCreated], "key": "order_id"}
    return rx.workflow(ORDER, **{**given, "effects": [charge, rx.timer], **fields})(step)


def refused(act: Callable[..., Any], *arguments: Any, **named: Any) -> TreadleError:
    with pytest.raises(TreadleError) as caught:
        act(*arguments, **named)
    return caught.value


# --- the example, receipts, statuses (§1, §7.1, §7.2) -----------------------------------------------------------


def test_the_example_of_the_page_runs() -> None:
    world = World(app)
    world.send(OrderCreated("o-1", 5))
    (intent,) = world.open(CHARGE)
    assert (intent.effect, intent.params, intent.ref) == (CHARGE, ChargeParams("o-1", 5), "charge:1")
    assert (intent.workflow, intent.key, world.status(order, "o-1")) == (ORDER, "o-1", "waiting")
    world.error(intent, "down")
    assert world.state(order, "o-1") == Order("o-1", 5, "backoff")
    world.advance("1s")
    assert world.open(CHARGE) == []
    world.advance(timedelta(seconds=1))
    (again,) = world.open(CHARGE, workflow=order, key="o-1")
    world.ok(again, ChargeReceipt("p"))
    assert world.state(order, "o-1") == Order("o-1", 5, "done", 2)
    assert (world.status(order, "o-1"), world.state(ledger)) == ("completed", Ledger(1))
    (cell,) = world.cells(order)
    assert (cell.key, cell.status, cell.size > 0, cell.last_active_ns > 0) == ("o-1", "completed", True, True)
    assert (world.state(order, "zz"), world.status(order, "zz")) == (None, None)
    assert world.receipt(intent, "ok", {"payment": "p"}) == "stale"
    assert world.receipt("nobody", "ok", {}) == "unknown"
    assert [d["code"] for d in world.diagnostics()] == ["receipt.stale", "receipt.unknown"]
    world.assert_replays()


def test_what_a_step_is_told() -> None:
    told: list[tuple[Any, Any]] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        told.append((event, ctx))
        if o is None:
            return rx.Output(Order("a"), effects=[charge(ChargeParams("a", 1), ref=r) for r in "xyz"])
        return rx.Output(o)

    world = World(rx.App("z", [orders(step, frames=True)]))
    world.send(OrderCreated("a", 1))
    x, y, z = world.open()
    assert len({x.id, y.id, z.id}) == 3, "an id per emission"
    world.frame(x, "half", {"p": 50})
    world.ok(x, ChargeReceipt("p"))
    world.error(y, "no", error_class="authorization")
    world.timeout(z)
    frame, ok, error, late = (event for event, _ in told[1:])
    assert (frame.ref, frame.intent_id, frame.effect, frame.seq, frame.kind, frame.value) == (
        *("x", x.id, CHARGE, 1, "half", {"p": 50}),
    )
    assert (ok.ref, ok.status, ok.value, ok.error, ok.effect, ok.intent_id, ok.workflow, ok.key) == (
        *("x", "ok", ChargeReceipt("p"), None, CHARGE, x.id, ORDER, "a"),
    )
    assert (error.status, error.value, error.error["class"], error.error["message"]) == (
        *("error", None, "authorization", "no"),
    )
    assert (late.status, late.error["class"]) == ("timeout", "timeout")
    ctx = told[0][1]
    assert (ctx.workflow, ctx.key, ctx.cell_mode, len(ctx.entropy)) == (ORDER, "a", True, 64)
    assert ctx.manifest == world.manifest_digest
    assert isinstance(ctx.uuid(), uuid.UUID)
    assert isinstance(ctx.random(), random.Random)
    assert ctx.now == datetime.fromtimestamp(ctx.now_ns // 1000 / 10**6, UTC)
    world.assert_replays()


def test_frames_never_settle_and_their_numbers_rise() -> None:
    world = World(app)
    world.send(OrderCreated("a", 1))
    (intent,) = world.open()
    assert world.frame(intent, "k", {}) == "admitted"
    assert world.frame(intent, "k", {}, seq=1) == "dropped"
    assert world.frame(intent, "k", {}, seq=9) == "admitted"
    assert world.status(order, "a") == "waiting"
    world.ok(intent, ChargeReceipt("p"))
    assert world.frame(intent, "k", {}) == "dropped"
    codes = [diagnostic["code"] for diagnostic in world.diagnostics()]
    assert codes == ["stream.non_monotonic", "stream.gap", "stream.unknown_intent"]


def test_a_payload_that_does_not_fit_is_a_fault() -> None:
    told: list[Any] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        told.append(event)
        both = [charge(ChargeParams("a", 1), ref=r) for r in "xy"] if o is None else []
        return rx.Output(Order("a"), effects=both)

    world = World(rx.App("z", [orders(step)]))
    world.send(OrderCreated("a", 1))
    first, second = world.open()
    assert world.receipt(first, "ok", {"nope": 1}) == "admitted"
    rejected = told[-1]
    assert isinstance(rejected, rx.Rejected)
    assert (rejected.ref, rejected.intent_id, rejected.effect) == ("x", first.id, CHARGE)
    assert rejected.code == "receipt.invalid_payload"
    assert rejected.payload_digest.startswith("sha256:")
    assert rejected.payload_size > 0
    assert [i.id for i in world.open()] == [second.id], "the cell lives on"
    world.assert_replays()

    workflow = orders(step, rejected=False)
    world = World(rx.App("z", [workflow]))
    for key in "ab":
        world.send(OrderCreated(key, 1))
    first, second = world.open(key="a")
    world.receipt(first, "ok", {"nope": 1})
    assert (world.status(workflow, "a"), world.open(key="a")) == ("failed", [])
    assert world.receipt(second, "ok", {"payment": "p"}) == "stale"
    assert len(world.open(key="b")) == 2, "nobody else is touched"
    refused(world.send, OrderCreated("a", 1))
    assert world.reopen().status(workflow, "a") == "failed"
    world.assert_replays()


# --- what is refused changes nothing (§2: 6-14, §7.10) -----------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"order_id": "x"},
        {"order_id": "x", "amount_cents": "5"},
        {"order_id": "x", "amount_cents": 5, "zz": 1},
        {"order_id": "x", "amount_cents": 2**63},
        {"order_id": "x", "amount_cents": True},
        b"\xbf\x68order_id\x61x\xff",
    ],
)
def test_an_event_that_does_not_fit_is_refused(value: Any) -> None:
    world = World(app)
    before = len(world.journal())
    assert refused(world.send, "com.acme/OrderCreated@1", value).cls == "user"
    assert (world.cells(order), len(world.journal())) == ([], before)


refund = rx.effect("payment/refund@1", params=ChargeParams, receipt=ChargeReceipt)
BAD_OUTPUTS: dict[str, Callable[[], Any]] = {
    "65 effects": lambda: rx.Output(Order("a"), effects=[charge(ChargeParams("x", i)) for i in range(65)]),
    "257 events": lambda: rx.Output(Order("a"), events=[OrderSettled("x")] * 257),
    "too large": lambda: rx.Output(Order("a" * 1_048_576)),
    "another type": lambda: rx.Output(OrderSettled("x")),
    "no output": lambda: None,
    "undeclared": lambda: rx.Output(Order("a"), effects=[refund(ChargeParams("x", 1))]),
    "a bare name": lambda: rx.Output(Order("a"), effects=[rx.emit("payment.charge", ChargeParams("x", 1))]),
    "bad params": lambda: rx.Output(Order("a"), effects=[charge(ChargeParams("x", "y"))]),
    "bad state": lambda: rx.Output(Order("a", 1, "zz")),
    "it raises": lambda: 1 / 0,
}


@pytest.mark.parametrize("kind", BAD_OUTPUTS)
def test_a_bad_output_is_refused_whole(kind: str) -> None:
    workflow = orders(lambda o, event, ctx: BAD_OUTPUTS[kind]())
    world = World(rx.App("z", [workflow]))
    first, second = (refused(world.send, OrderCreated("a", 1)) for _ in range(2))
    assert str(first) == str(second), "the same input gives the same refusal"
    assert (world.cells(workflow), world.open()) == ([], [])


def test_effects_must_be_declared() -> None:
    with pytest.raises((TreadleError, TypeError)):
        rx.workflow("x/y@1", state=Ledger, events=[OrderCreated])  # type: ignore[call-arg]


def test_a_submission_counts_once_also_after_a_restart() -> None:
    world = World(app)
    world.send(OrderCreated("a", 1), submission_id="s1")
    for again in (world, world.reopen()):
        before = len(again.journal())
        again.send(OrderCreated("other", 2), submission_id="s1")
        assert (len(again.journal()), again.state(order, "other")) == (before, None)


def test_a_step_that_fails_on_a_receipt_fails_its_cell_only() -> None:
    def step(o: Any, event: Any, ctx: Any) -> Any:
        if isinstance(event, rx.Receipt):
            raise ValueError("kaboom")
        return rx.Output(Order("a"), effects=[charge(ChargeParams("a", 1), ref=r) for r in "xy"])

    workflow = orders(step)
    world = World(rx.App("z", [workflow]))
    for key in "ab":
        world.send(OrderCreated(key, 1))
    world.ok(world.open(key="a")[0], ChargeReceipt("p"))
    assert (world.status(workflow, "a"), world.status(workflow, "b")) == ("failed", "waiting")
    assert (world.open(key="a"), world.journal(workflow, "a")[-1].kind) == ([], "fault")
    world.assert_replays()


# --- cells (§2: 32-48; §4: 19, 21) -------------------------------------------------------------------------------


def test_null_deletes_the_cell_and_cancels_its_work() -> None:
    told: list[Any] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        match o, event:
            case None, OrderCreated():
                return rx.Output(Order("a"), effects=[charge(ChargeParams("a", 1))])
            case _, OrderCreated(amount_cents=9):
                return rx.delete()
            case _, OrderCreated(amount_cents=8):
                return rx.Output(None, effects=[charge(ChargeParams("a", 8), ref="late")])
        told.append((o, event.ref))
        return rx.Output(o)

    workflow = orders(step)
    world = World(rx.App("z", [workflow]))
    world.send(OrderCreated("a", 1))
    (intent,) = world.open()
    world.send(OrderCreated("a", 9))
    assert (world.state(workflow, "a"), world.cells(workflow), world.open()) == (None, [], [])
    assert world.journal(workflow, "a")[-1].cancelled == [intent.id]
    assert world.receipt(intent, "ok", {"payment": "p"}) == "stale"
    world.send(OrderCreated("a", 1))
    assert world.status(workflow, "a") == "waiting", "created anew"
    world.send(OrderCreated("a", 8))
    world.ok(world.open()[0], ChargeReceipt("p"))
    assert told == [(None, "late")], "what the last step asked for still answers, and finds no state"
    world.assert_replays()


def test_mail_keeps_its_order_and_cells_take_turns() -> None:
    taken: list[tuple[str, int]] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        taken.append((ctx.key, event.amount_cents))
        return rx.Output(Order(ctx.key))

    world = World(rx.App("z", [orders(step)]))
    for number, key in enumerate("aaabbc"):
        world.send(OrderCreated(key, number), run=False)
    assert taken == []
    world.run()
    assert [key for key, _ in taken] == list("abcaba")
    taken.clear()
    world.send(OrderCreated("a", 1), run=False)
    world.send(OrderCreated("a", 2))
    assert taken == [("a", 1), ("a", 2)], "what was queued comes first"


def test_a_past_deadline_fires_at_once_and_the_others_in_order() -> None:
    fired: list[Any] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        if o is not None:
            fired.append((event.ref, event.value.delivered_at_ns == ctx.now_ns))
            return rx.Output(o)
        hours = {"late": 2, "soon": 1, "past": -1}
        timers = [rx.timer(ctx.now + timedelta(hours=h), ref=ref) for ref, h in hours.items()]
        return rx.Output(Order("a"), effects=[*timers, rx.timer(ctx.now_ns + 10**9, ref="ns")])

    world = World(rx.App("z", [orders(step)]))
    world.send(OrderCreated("a", 1))
    assert [ref for ref, _ in fired] == ["past"]
    world = world.reopen()
    assert len(world.open(TIMER)) == 3
    fired.clear()
    world.advance("3h")
    assert fired == [("ns", True), ("soon", True), ("late", True)]
    world.assert_replays()


def test_roots_follow_content_and_a_small_cache_changes_nothing() -> None:
    worlds = [World(app), World(app, cell_cache=2)]
    for world, keys in zip(worlds, (range(20), reversed(range(20))), strict=True):
        for key in keys:
            world.send(OrderCreated(f"k{key}", key))
    first, second = (world.snapshot() for world in worlds)
    assert first.roots == second.roots
    assert first.roots[ORDER].startswith("sha256:")
    world = worlds[1]
    world.ok(world.open(key="k3")[0], ChargeReceipt("p"))
    assert world.snapshot().roots[ORDER] != first.roots[ORDER]
    assert world.state(order, "k0") == Order("k0", 0)
    assert len(world.reopen().cells(order)) == 20
    world.assert_replays()


def test_worlds_are_deterministic_by_their_seed() -> None:
    seen: list[bytes] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        seen.append(ctx.entropy)
        return rx.Output(Order("a"), effects=[charge(ChargeParams("a", 1))])

    built = rx.App("z", [orders(step)])
    ids = []
    for seed in (1, 1, 2):
        world = World(built, seed=seed)
        world.send(OrderCreated("a", 1))
        ids.append(world.open()[0].id)
    assert ids[0] == ids[1]
    assert seen[0] == seen[1] != seen[2]


# --- routing (§2: 30-31, 36; §4: 22-24; §7.6, §7.11) -------------------------------------------------------------


def test_subscriptions_route_in_their_order_and_are_checked() -> None:
    taken: list[str] = []

    def listener(name: str) -> Any:
        def step(s: Any, event: Any, ctx: Any) -> Any:
            taken.append(name)
            return rx.Output(Ledger(1))

        return rx.workflow(name, state=Ledger, events=[OrderCreated], effects=[])(step)

    one, two = listener("x/one@1"), listener("x/two@1")
    World(rx.App("z", [two, one])).send(OrderCreated("a", 1))
    rows = [{"event": "com.acme/OrderCreated@1", "workflow": name} for name in ("x/one@1", "x/two@1")]
    World(rx.App("z", [two, one], subscriptions=rows)).send(OrderCreated("a", 1))
    assert taken == ["x/two@1", "x/one@1", "x/one@1", "x/two@1"]
    for bad in (
        [rows[0], rows[0]],
        [{**rows[0], "key_field": "order_id"}],
        [{**rows[0], "event": "x/Zzz@1"}],
        [{**rows[0], "workflow": "x/zz@1"}],
        [{**rows[0], "zz": 1}],
    ):
        refused(rx.App, "z", [one, two], subscriptions=bad)
    keyed = {"event": "com.acme/OrderCreated@1", "workflow": ORDER}
    refused(rx.App, "z", [order], subscriptions=[keyed])
    refused(rx.App, "z", [order], subscriptions=[{**keyed, "key_field": "amount_cents"}])


def test_a_family_takes_its_variant_and_bare_arms() -> None:
    taken: list[Any] = []

    def step(s: Any, event: Any, ctx: Any) -> Any:
        taken.append((ctx.key, event))
        return rx.Output(Ledger(1))

    events = [OrderCreated, OrderSettled]
    note = rx.workflow(
        "x/note@1", state=Ledger, events=events, key="order_id", effects=[], family="x/NoteEvent@1"
    )(step)
    rows = [{"event": "x/NoteEvent@1", "workflow": "x/note@1", "key_field": "$value.order_id"}]
    world = World(rx.App("z", [note], subscriptions=rows))
    world.send(OrderCreated("k", 1))
    world.send("x/NoteEvent@1", {"$tag": "OrderSettled", "$value": {"order_id": "q"}})
    world.send("x/NoteEvent@1", {"OrderSettled": {"order_id": "s"}})
    assert taken == [("k", OrderCreated("k", 1)), ("q", OrderSettled("q")), ("s", OrderSettled("s"))]


def test_one_refused_delivery_undoes_no_other() -> None:
    def fails(s: Any, event: Any, ctx: Any) -> Any:
        raise ValueError("no")

    good = rx.workflow("x/good@1", state=Ledger, events=[OrderCreated], effects=[])(
        lambda s, event, ctx: rx.Output(Ledger(1))
    )
    bad = rx.workflow("x/bad@1", state=Ledger, events=[OrderCreated], effects=[])(fails)
    world = World(rx.App("z", [good, bad]))
    refused(world.send, OrderCreated("a", 1))
    assert (world.state(good), world.state(bad)) == (Ledger(1), None)


# --- types (§7.3) ------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1
    BLUE = 2


@rx.schema("t/All@1")
@dataclass(frozen=True)
class All:
    k: str
    n: rx.Nat = 0
    f: float = 1.5
    d: Decimal = Decimal("1.5")
    b: bytes = b""
    t: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    u: uuid.UUID | None = None
    s: set[str] = field(default_factory=set)
    m: dict[int, str] = field(default_factory=dict)
    o: int | None = None
    c: Colour = Colour.RED
    v: OrderCreated | OrderSettled = OrderSettled("x")


def test_every_type_comes_back_as_it_went() -> None:
    keep = rx.workflow("t/keep@1", state=All, events=[All], key="k", effects=[])(
        lambda s, event, ctx: rx.Output(event)
    )
    world = World(rx.App("z", [keep]))
    moment = datetime(2026, 5, 5, 1, 2, 3, 456, tzinfo=UTC)
    value = All(
        "k", 2**64 - 1, 2.5, Decimal("3.1"), b"\0", moment, uuid.uuid4(), {"b", "a"}, {5: "x", -1: "y"}
    )
    world.send(value)
    assert world.state(keep, "k") == value == world.reopen().state(keep, "k")
    for bad in (
        {"n": -1},
        {"f": float("nan")},
        {"d": 1.5},
        {"b": "x"},
        {"t": datetime(2026, 1, 1)},
        {"v": 3},
    ):
        refused(world.send, replace(value, **bad))
    world.assert_replays()


@pytest.mark.parametrize("annotation", [Any, object, complex, list[Any], dict, int | str, dict[float, int]])
def test_what_has_no_canonical_form_is_refused_by_name(annotation: Any) -> None:
    made = dataclass(frozen=True)(type("C", (), {"__annotations__": {"bad_field": annotation}}))
    assert "bad_field" in str(refused(rx.schema("t/C@1"), made))


# --- determinism (§1, §4: 30) ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [time.time, random.random, os.getpid, uuid.uuid4, datetime.now, Path("/etc/hostname").read_text],
    ids=["time", "random", "os", "uuid", "datetime", "file"],
)
def test_a_strict_step_that_looks_outside_is_refused(act: Callable[[], Any]) -> None:
    def step(o: Any, event: Any, ctx: Any) -> Any:
        act()
        return rx.Output(Order("a"))

    error = refused(World(rx.App("z", [orders(step, determinism="strict")])).send, OrderCreated("a", 1))
    assert error.code == "NOT_DETERMINISTIC"


def test_a_step_that_differs_on_replay_is_found_out_unless_its_output_is_logged() -> None:
    calls: list[int] = []

    def step(o: Any, event: Any, ctx: Any) -> Any:
        calls.append(1)
        return rx.Output(Order("a", len(calls)))

    world = World(rx.App("z", [orders(step)]))
    world.send(OrderCreated("a", 1))
    with pytest.raises((TreadleError, AssertionError)):
        world.assert_replays()
    logged = orders(step, determinism="decision_log")
    world = World(rx.App("z", [logged]))
    world.send(OrderCreated("a", 1))
    before = len(calls)
    world.assert_replays()
    assert (len(calls), world.reopen().state(logged, "a")) == (before, world.state(logged, "a"))


# --- apply, proposals, shadow (§2: 23-25; §7.5) ------------------------------------------------------------------


def second_version() -> rx.App:
    return rx.App("shop", [orders(lambda o, event, ctx: rx.Output(Order(ctx.key, 777))), ledger])


def test_apply_waits_for_quiescence_and_then_runs_new_code() -> None:
    world, other = World(app), second_version()
    world.send(OrderCreated("a", 1))
    error = refused(world.apply, other)
    assert [blocker["key"] for blocker in error.details["blockers"]] == ["a"]
    assert (world.manifest_digest, len(world.open())) == (app.digest, 1), "nothing changed"
    world.ok(world.open()[0], ChargeReceipt("p"))
    world.apply(other)
    assert world.manifest_digest == other.digest != app.digest
    world.send(OrderCreated("a", 2))
    assert world.state(order, "a").amount_cents == 777
    assert world.reopen().state(order, "a") == world.state(order, "a")
    world.assert_replays()


def test_proposals_go_through_shadow_and_approval() -> None:
    world, other = World(app), second_version()
    first, second = world.propose(other), world.propose(other)
    assert first < second
    refused(world.approve, first)
    refused(world.apply, first)
    report = world.shadow(first)
    assert report.keys() == {"effects", "pending", "statuses", "allowlists", "changes"}
    world.shadow(second)
    world.reject(second)
    world.approve(first)
    world.apply(first)
    assert world.manifest_digest == other.digest
    assert [(p.id, p.status) for p in world.reopen().proposals()] == [
        (first, "applied"),
        (second, "rejected"),
    ]


# --- on an engine, and from the shell (§1, §5, §7.6, §7.9) -------------------------------------------------------


async def ends(run: Any) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            shown: dict[str, Any] = await run.show()
            if shown["status"] in ("completed", "failed"):
                return shown
            await asyncio.sleep(0.01)


async def test_publish_is_durable_and_a_refusal_is_its_answer(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails(o: Any, event: Any, ctx: Any) -> Any:
        calls.append(1)
        raise ValueError("no way")

    bad = rx.App("bad", [orders(fails)])
    for _ in range(2):
        async with Engine(f"sqlite:///{tmp_path}/bad.db") as engine:
            engine.deploy(bad)
            for _ in range(2):
                with pytest.raises(TreadleError, match="no way"):
                    await engine.publish(OrderCreated("a", 1), submission_id="s1")
            assert await engine.cell(ORDER, "a") is None
    assert len(calls) == 1, "the same id gets the same answer, without a step"
    for _ in range(2):
        async with Engine(f"sqlite:///{tmp_path}/good.db") as engine:
            engine.deploy(app)
            await engine.publish(OrderCreated("a", 1), submission_id="s1")
            run = await engine.cell(ORDER, "a")
            assert run is not None
            assert run.id == f"{ORDER}/a"
            assert (await ends(run))["state"]["pc"] == "done"
            assert len(await run.journal()) == 2


async def test_a_secret_reaches_the_executor_and_nothing_else(tmp_path: Path) -> None:
    @rx.schema("t/Call@1")
    @dataclass(frozen=True)
    class Params:
        token: rx.Secret

    ask, got = rx.effect("t/ask@1", params=Params, receipt=str), []

    @ask.executor
    async def answer(call: rx.Call[Params]) -> str:
        got.append(call.params.token)
        return f"used {call.params.token}"

    def step(s: Any, event: Any, ctx: Any) -> Any:
        if isinstance(event, OrderCreated):
            return rx.Output(Order("a"), effects=[ask(Params(rx.secret("api")))])
        return rx.Output(replace(s, pc="done"))

    built = rx.App("sec", [orders(step, effects=[ask], terminal=lambda o: o.pc == "done")])
    refused(World, built)
    async with Engine(f"sqlite:///{tmp_path}/t.db", secrets={"api": "hunter2hunter2"}) as engine:
        engine.deploy(built)
        await engine.publish(OrderCreated("a", 1))
        run = await engine.cell(ORDER, "a")
        assert run is not None
        await ends(run)
    assert got == ["hunter2hunter2"]
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()


TEA = dedent("""
    from dataclasses import dataclass
    from treadle import reactive as rx

    @rx.schema("tea/Ordered@1")
    @dataclass(frozen=True)
    class Ordered:
        table: str
        tea: str

    @rx.schema("tea/Pot@1")
    @dataclass(frozen=True)
    class Pot:
        tea: str
        served: bool = False

    brew = rx.effect("tea/brew@1", params=str, receipt=str)

    @brew.executor
    async def brew_it(call):
        return "a pot of " + call.params

    @rx.workflow("tea/pot@1", state=Pot, events=[Ordered], key="table", effects=[brew], terminal=lambda p: p.served)
    def pot(state, event, ctx):
        if isinstance(event, Ordered):
            return rx.Output(Pot(event.tea), effects=[brew(event.tea, ref="brew")])
        return rx.Output(Pot(state.tea, True))

    @rx.schema("tea/Count@1")
    @dataclass(frozen=True)
    class Count:
        n: int

    @rx.workflow("tea/count@1", state=Count, events=[Ordered], effects=[], terminal=lambda n: True)
    def count(state, event, ctx):
        return rx.Output(Count(state.n + 1 if state else 1))

    app = rx.App("tea", [pot, count])
""")


def test_an_application_from_the_shell(desk: Desk) -> None:
    desk.write("tea.py", TEA)
    order_tea = ("publish", "tea/Ordered@1", "--data", json.dumps({"table": "7", "tea": "oolong"}))
    with_app = ("--app", "tea.py:app")
    told = desk(*order_tea, "--submission-id", "s1", *with_app, "--json", code=0).lines
    assert [document["id"] for document in told] == ["tea/pot@1/7", "tea/count@1"], "fan-out: JSON Lines"
    (cell,) = desk("cells", "tea/pot@1", "--json", code=0).json
    assert cell.keys() == {"key", "status", "size", "last_active"}
    assert (cell["key"], cell["status"]) == ("7", "completed")
    shown = desk("cell", "tea/pot@1", "7", "--text-key", "--json", code=0).json
    assert shown == desk("show", "tea/pot@1/7", "--json", code=0).json
    assert shown["state"] == {"tea": "oolong", "served": True}
    desk("cell", "tea/pot@1", "zz", "--json", code=2)
    desk(*order_tea, "--submission-id", "s1", *with_app, "--json", code=0)
    assert desk("show", "tea/pot@1/7", "--json").json["version_no"] == shown["version_no"]
    assert desk("replay", "tea/pot@1/7", *with_app, "--json", code=0).json == {
        "id": "tea/pot@1/7",
        "equal": True,
    }
    error = desk("publish", "tea/Ordered@1", "--data", '{"table": "7"}', *with_app, "--json", code=2).error
    assert error["code"] == "INPUT_INVALID"
    for record in desk("journal", "tea/pot@1/7", "--json", code=0).json:
        assert record.keys() >= {
            "seq",
            "kind",
            "at",
            "event",
            "events",
            "opened",
            "cancelled",
            "status",
            "digest",
        }
