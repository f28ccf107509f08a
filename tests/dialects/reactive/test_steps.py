"""Steps: transitions, admission of effects, limits, context, determinism (seed §3.1, §3.2, §4, §5, §7.2)."""

from __future__ import annotations

import os
import random
import socket
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from reactive_shop import (
    ChargeParams,
    ChargeReceipt,
    Order,
    OrderCreated,
    OrderSettled,
    app,
    charge,
    order,
)

from treadle import reactive as rx
from treadle.dialects.reactive.abi import invoke
from treadle.kernel.errors import DecisionRefused, LimitExceeded, ReplayDiffers, TreadleError
from treadle.kernel.values import decode, encode


@rx.schema("t/Go@1")
@dataclass(frozen=True)
class Go:
    k: str
    n: int = 0


@rx.schema("t/Told@1")
@dataclass(frozen=True)
class Told:
    text: str


@rx.schema("t/Box@1")
@dataclass(frozen=True)
class Box:
    text: str = ""
    raw: bytes = b""


work = rx.effect("t/work@1", params=Box, receipt=Box)


def world_of(
    step: Any, *, effects: Any = (work, rx.timer), **more: Any
) -> tuple[rx.testing.World, rx.Workflow]:
    flow = rx.workflow("t/flow@1", state=Box, events=[Go], key="k", effects=list(effects), **more)(step)
    return rx.testing.World(rx.App("x", [flow])), flow


def refused(step: Any, **more: Any) -> TreadleError:
    """The refusal of a first event; it must leave no trace, and be the same each time."""
    world, flow = world_of(step, **more)
    with pytest.raises(TreadleError) as caught:
        world.send(Go("k"))
    with pytest.raises(TreadleError) as again:
        world.send(Go("k"))
    assert again.value.to_value() == caught.value.to_value()
    assert world.journal(flow) == []
    assert world.open() == []
    assert world.cells(flow) == []
    return caught.value


# --- transitions: (state, event) -> (state, events, effects) ------------------------------------------


def test_transitions_need_no_engine():
    ctx = rx.testing.context()
    created = order(None, OrderCreated("o-1", 5), ctx)
    assert created == rx.Output(Order("o-1", 5), effects=[charge(ChargeParams("o-1", 5), ref="charge:1")])
    receipt = {"effect": "payment/charge@1", "intent_id": "i", "workflow": "com.acme/order@1", "seq": 1}
    ok = rx.Receipt(ref="charge:1", status="ok", value=ChargeReceipt("p"), **receipt)
    assert order(Order("o-1", 5), ok, ctx) == rx.Output(
        Order("o-1", 5, "done"), events=[OrderSettled("o-1", 5)]
    )
    failed = rx.Receipt(ref="charge:1", status="error", error={"class": "transport"}, **receipt)
    assert order(Order("o-1", 5), failed, ctx) == rx.Output(
        Order("o-1", 5, "backoff"), effects=[rx.timer(ctx.now + timedelta(seconds=2), ref="retry:1")]
    )
    late = rx.Receipt(ref="charge:1", status="ok", **receipt)
    assert order(Order("o-1", 5, "done"), late, ctx) == rx.Output(Order("o-1", 5, "done")), (
        "a duplicate fence"
    )


def test_a_step_function_may_do_without_the_context():
    world, flow = world_of(lambda state, event: rx.Output(Box(event.k)))
    world.send(Go("k"))
    assert world.state(flow, "k") == Box("k")


# --- admission -----------------------------------------------------------------------------------------


def test_an_undeclared_effect_is_refused_before_anything_is_recorded():
    error = refused(lambda s, e: rx.Output(Box(), effects=[work(Box()), charge(ChargeParams("a", 1))]))
    assert error.details["effect"] == "payment/charge@1"
    assert "not declared" in error.message


def test_the_timer_must_be_declared_too():
    assert (
        "sys/timer.set@1"
        in refused(lambda s, e, c: rx.Output(Box(), effects=[rx.timer(c.now)]), effects=[]).message
    )


def test_a_semantic_string_is_no_effect():
    assert (
        "not the name of an effect"
        in refused(lambda s, e: rx.Output(Box(), effects=[rx.emit("t.work")])).message
    )


def test_an_effect_may_be_asked_for_by_name():
    world, _ = world_of(
        lambda s, e: rx.Output(Box(), effects=[rx.emit("t/work@1", {"text": "x", "raw": b""}, ref="r")])
    )
    world.send(Go("k"))
    (intent,) = world.open("t/work@1")
    assert (intent.params, intent.ref) == (Box("x"), "r")


@pytest.mark.parametrize(
    "output",
    [
        lambda: rx.Output(Box(), effects=[work({"text": 1, "raw": b""})]),
        lambda: rx.Output(Box(), effects=[work()]),
        lambda: rx.Output(Box(), effects=["t/work@1"]),
        lambda: rx.Output(Box(text=1)),
        lambda: rx.Output(Told("x")),
        lambda: rx.Output(Box(), events=["told"]),
        lambda: rx.Output(Box(), events=[Told(1)]),
        lambda: rx.Output(Box(), annotations=object()),
        lambda: None,
        lambda: (_ for _ in ()).throw(ValueError("no")),
    ],
)
def test_the_whole_output_is_validated_before_any_of_it_is_applied(output):
    refused(lambda state, event: output())


def test_params_in_different_shapes_give_equal_intents():
    shapes = [
        Box("x", b"1"),
        {"text": "x", "raw": b"1"},
        {"raw": b"1", "text": "x"},
    ]
    found = []
    for params in shapes:
        world, _ = world_of(lambda s, e: rx.Output(Box(), effects=[work(shapes[e.n], ref="r")]))
        world.send(Go("k", shapes.index(params)))
        found.append(world._host.intent(world.open()[0].id)[1])
    assert found[0].id == found[1].id == found[2].id
    assert encode(found[0].params) == encode(found[1].params) == encode(found[2].params)


def test_an_intent_is_bound_to_its_origin_its_step_and_its_position():
    world, _ = world_of(lambda s, e: rx.Output(Box(), effects=[work(Box("same")), work(Box("same"))]))
    for key in ("a", "b"):
        world.send(Go(key))
        world.send(Go(key))
    assert len({intent.id for intent in world.open()}) == 8


def test_a_requested_idempotency_key_is_handed_on_and_does_not_dedupe():
    world, _ = world_of(lambda s, e: rx.Output(Box(), effects=[work(Box(), idempotency_key="pay-1")]))
    world.send(Go("a"))
    world.send(Go("a"))
    one, two = world.open()
    assert one.idempotency_key == two.idempotency_key == "pay-1"
    assert one.id != two.id


# --- limits ----------------------------------------------------------------------------------------------


def test_limits_are_deterministic_and_exact():
    def effects(count: int) -> Any:
        return lambda s, e: rx.Output(Box(), effects=[work(Box()) for _ in range(count)])

    def events(count: int) -> Any:
        return lambda s, e: rx.Output(Box(), events=[Told("") for _ in range(count)])

    for make, most in ((effects, 64), (events, 256)):
        world, flow = world_of(make(most))
        world.send(Go("k"))
        assert world.state(flow, "k") == Box()
        assert isinstance(refused(make(most + 1)), LimitExceeded)


def test_a_step_may_have_a_mebibyte_of_output_and_not_a_byte_more():
    room = 1_048_576 - len(encode({"text": "", "raw": b""})) - 4  # the length of long bytes takes 4 more
    world, flow = world_of(lambda s, e: rx.Output(Box(raw=bytes(room))))
    world.send(Go("k"))
    assert world.cells(flow)[0].size == 1_048_576
    assert isinstance(refused(lambda s, e: rx.Output(Box(raw=bytes(room + 1)))), LimitExceeded)
    half = room // 2
    world, _ = world_of(
        lambda s, e: rx.Output(Box(raw=bytes(half)), effects=[work(Box(raw=bytes(half - 20)))])
    )
    world.send(Go("k"))
    world.assert_replays()


def test_256_events_may_fan_out():
    @rx.workflow("t/hear@1", state=Told, events=[Told], key="text", effects=[])
    def hear(state, event):
        return rx.Output(event)

    flow = rx.workflow("t/flow@1", state=Box, events=[Go], key="k", effects=[])(
        lambda s, e: rx.Output(Box(), events=[Told(str(n)) for n in range(256)])
    )
    world = rx.testing.World(rx.App("x", [flow, hear]))
    world.send(Go("k"))
    assert len(world.cells(hear)) == 256


# --- context -----------------------------------------------------------------------------------------------


def test_the_context_carries_recorded_time_entropy_and_identity():
    seen: list[rx.Context] = []

    def step(state: Any, event: Any, ctx: rx.Context) -> Any:
        seen.append(ctx)
        text = (
            f"{ctx.now_ns} {ctx.uuid()} {ctx.uuid()} {ctx.random().random()} {ctx.random().randint(0, 9**9)}"
        )
        return rx.Output(Box(text))

    world, flow = world_of(step)
    world.advance("1s")
    world.send(Go("k"))
    world.send(Go("k"))
    one, two = seen
    assert (one.workflow, one.key, one.cell_mode, one.seq, two.seq) == ("t/flow@1", "k", True, 1, 2)
    assert one.manifest == world.manifest_digest
    assert len(one.entropy) == 64
    assert one.entropy != two.entropy
    assert one.now == world.now
    assert isinstance(one.uuid(), UUID)
    before = world.state(flow, "k")
    world.assert_replays()
    assert world.reopen(at=0).state(flow, "k") == before
    assert [c.entropy for c in seen[2:4]] == [one.entropy, two.entropy]


def test_now_is_truncated_and_now_ns_is_exact():
    ctx = rx.testing.context(now_ns=1_800_000_000_123_456_789)
    assert ctx.now_ns == 1_800_000_000_123_456_789
    assert ctx.now.microsecond == 123456
    assert rx.timer(ctx.now_ns).params == ctx.now_ns
    assert rx.timer(ctx.now).params == 1_800_000_000_123_456_000
    with pytest.raises(ValueError, match="zone"):
        rx.timer(datetime(2026, 1, 1))


def test_the_random_generator_is_one_for_the_step():
    ctx = rx.testing.context()
    assert ctx.random().random() != ctx.random().random()
    assert isinstance(ctx.random(), random.Random)
    assert rx.testing.context().random().random() == rx.testing.context().random().random()


# --- determinism ---------------------------------------------------------------------------------------------


def _swallows() -> None:
    try:
        time.time()
    except Exception:
        return


@pytest.mark.parametrize(
    ("touch", "named"),
    [
        (time.time, "time.time"),
        (time.monotonic, "time.monotonic"),
        (lambda: datetime.now(UTC), "datetime.now"),
        (random.random, "random."),
        (lambda: random.randint(1, 5), "random."),
        (lambda: random.Random().random(), "random."),
        (uuid4, "urandom"),
        (lambda: os.getenv("HOME") or os.getpid(), "os."),
        (lambda: Path("/etc/hostname").read_text(), "open"),
        (lambda: open("/etc/hostname"), "open"),  # noqa: SIM115
        (lambda: os.listdir("."), "os.listdir"),
        (lambda: socket.create_connection(("127.0.0.1", 9)), "socket"),
        (_swallows, "time.time"),
    ],
)
def test_a_strict_step_may_not_touch_the_outside(touch, named):
    def step(state: Any, event: Any) -> Any:
        touch()
        return rx.Output(Box())

    error = refused(step, determinism="strict")
    assert named in error.message
    assert error.code == "NOT_DETERMINISTIC"


def test_a_strict_step_may_use_what_is_recorded():
    def step(state: Any, event: Any, ctx: rx.Context) -> Any:
        words = sorted({f"{ctx.now:%H:%M}", str(ctx.uuid()), str(ctx.random().randint(1, 6))})
        return rx.Output(replace(Box(), text=" ".join(words)))

    world, _ = world_of(step, determinism="strict")
    world.send(Go("k"))
    world.assert_replays()


def test_checked_finds_on_replay_what_was_not_recorded():
    answers = iter(["first", "second"])
    world, _ = world_of(lambda s, e: rx.Output(Box(next(answers))))
    world.send(Go("k"))
    with pytest.raises(ReplayDiffers) as caught:
        world.reopen()
    assert caught.value.details["seq"] == 1
    assert caught.value.details["expected"] != caught.value.details["got"]


@pytest.mark.parametrize("what", ["effects", "events"])
def test_checked_compares_effects_and_events(what):
    answers = iter("ab")

    def step(state: Any, event: Any) -> Any:
        text = next(answers)
        if what == "effects":
            return rx.Output(Box(), effects=[work(Box(text))])
        return rx.Output(Box(), events=[Told(text)])

    world, _ = world_of(step)
    world.send(Go("k"))
    with pytest.raises(ReplayDiffers):
        world.reopen()


def test_decision_log_replays_from_its_outputs():
    calls: list[str] = []

    def step(state: Any, event: Any, ctx: Any) -> Any:
        calls.append(str(uuid4()))
        if isinstance(event, rx.Receipt):
            raise ValueError(calls[-1])
        return rx.Output(Box(calls[-1]), effects=[work(Box(calls[-1]), ref="w")], events=[Told(calls[-1])])

    world, flow = world_of(step, determinism="decision_log")
    world.send(Go("k"))
    world.snapshot()
    world.ok(world.open()[0], Box())
    made = len(calls)
    world.assert_replays()
    again = world.reopen(at=0)
    assert again.state(flow, "k") == world.state(flow, "k")
    assert again.status(flow, "k") == "failed"
    assert len(calls) == made, "the function was not called again"


def test_annotations_are_recorded():
    world, _ = world_of(lambda s, e: rx.Output(Box(), annotations={"why": "because"}))
    world.send(Go("k"))
    world.assert_replays()


def test_the_order_within_a_step_is_events_then_effects():
    shop = rx.testing.World(app())
    shop.send(OrderCreated("o", 1))
    (first,) = shop.journal(order)
    assert [intent.effect for intent in first.opened] == ["payment/charge@1"]
    assert isinstance(DecisionRefused(), TreadleError)


# --- steps as functions of bytes -----------------------------------------------------------------------------


def test_the_envelopes_are_the_same_for_keyed_and_unkeyed():
    def step(state: Any, event: Any, ctx: rx.Context) -> Any:
        return rx.Output(
            Box(f"{ctx.key} {ctx.now_ns}"), events=[Told("x")], effects=[work(Box("p"), ref="r")]
        )

    declared = {"state": Box, "events": [Go], "effects": [work]}
    keyed = rx.workflow("t/keyed@1", key="k", **declared)(step)
    plain = rx.workflow("t/plain@1", **declared)(step)
    both = rx.App("x", [keyed, plain])
    event = {"schema": "t/Go@1", "value": encode({"k": "a", "n": 1})}
    ctx = encode({"now_ns": 5, "entropy": bytes(64), "seq": 1})
    given = {"version": 1, "state": None, "event": event, "ctx": ctx}
    one = decode(invoke(both, "t/plain@1", encode(given)))
    two = decode(invoke(both, "t/keyed@1", encode(given | {"event": {**event, "key": encode("a")}})))
    assert one.keys() == two.keys() == {"state", "domain_events", "effects"}
    assert decode(one["state"])["text"] == "None 5"
    assert decode(two["state"])["text"] == "a 5"
    assert one["domain_events"] == [{"schema": "t/Told@1", "value": encode({"text": "x"})}]
    assert one["effects"][0]["effect"] == "t/work@1"
    with pytest.raises(TreadleError, match="keyed"):
        invoke(both, "t/keyed@1", encode(given))
    with pytest.raises(TreadleError, match="version"):
        invoke(both, "t/plain@1", encode(given | {"version": 2}))
