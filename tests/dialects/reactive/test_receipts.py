"""Continuations: receipts, faults, frames, timers, secrets, signatures of origin (seed §3.3 to §3.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from reactive_shop import ChargeReceipt, OrderCancelled, OrderCreated, app, charge, ledger, notes, order

from treadle import reactive as rx
from treadle.kernel.errors import InputInvalid, SecretMissing, TreadleError
from treadle.kernel.values import decode, encode


@rx.schema("t/Go@1")
@dataclass(frozen=True)
class Go:
    k: str
    n: int = 1


@rx.schema("t/Log@1")
@dataclass(frozen=True)
class Log:
    lines: tuple[str, ...] = ()


@rx.schema("t/Answer@1")
@dataclass(frozen=True)
class Answer:
    n: int


ask = rx.effect("t/ask@1", params=Go, receipt=Answer)
seen: list[Any] = []


def logger(name: str = "t/log@1", **more: Any) -> rx.Workflow:
    @rx.workflow(name, state=Log, events=[Go], key="k", effects=[ask, rx.timer], **more)
    def log(state, event, ctx):
        state = state or Log()
        seen.append(event)
        match event:
            case Go(_, n):
                return rx.Output(state, effects=[ask(event, ref=f"ask:{i}") for i in range(n)])
            case rx.Receipt(status="ok", value=Answer(13)):
                raise ValueError("unlucky")
            case rx.Receipt(ref=ref, status=status, value=value):
                return rx.Output(replace(state, lines=(*state.lines, f"{ref} {status} {value}")))
            case rx.Rejected(ref=ref, code=code):
                return rx.Output(replace(state, lines=(*state.lines, f"{ref} {code}")))
            case rx.Frame(ref=ref, seq=seq, kind=kind, value=value):
                return rx.Output(replace(state, lines=(*state.lines, f"{ref} {seq} {kind} {value}")))

    return log


@pytest.fixture(autouse=True)
def _forget():
    seen.clear()


def started(n: int = 1, **more: Any) -> tuple[rx.testing.World, rx.Workflow]:
    flow = logger(**more)
    world = rx.testing.World(rx.App("x", [flow]))
    world.send(Go("k", n))
    return world, flow


# --- settlement ----------------------------------------------------------------------------------------


def test_a_receipt_carries_the_envelope_of_the_seed():
    @charge.executor
    async def do_charge(call: rx.Call[Any]) -> ChargeReceipt:
        return ChargeReceipt("p")

    @ask.executor
    async def answer(call: rx.Call[Go]) -> Answer:
        return Answer(1)

    world, _ = started()
    (intent,) = world.open()
    world.ok(intent, Answer(7))
    receipt = seen[-1]
    assert (receipt.ref, receipt.status, receipt.value, receipt.error) == ("ask:0", "ok", Answer(7), None)
    assert (receipt.workflow, receipt.key, receipt.intent_id, receipt.effect, receipt.seq) == (
        "t/log@1",
        "k",
        intent.id,
        "t/ask@1",
        1,
    )
    envelope = receipt.envelope()
    assert envelope["origin_workflow"] == "t/log@1"
    assert decode(envelope["origin_instance_key"]) == "k"
    assert envelope["intent_id"] == intent.id
    assert envelope["effect"] == "t/ask@1"
    assert envelope["executor_entrypoint"].endswith("answer")
    assert envelope["issuer_ref"] == "ask:0"
    assert envelope["receipt_payload"] == encode({"n": 7})
    assert envelope["status"] == "ok"
    assert envelope["emitted_at_seq"] == 1


def test_error_and_timeout_carry_an_error_and_no_value():
    world, flow = started(2)
    one, two = world.open()
    world.error(one, "refused", error_class="authorization")
    assert seen[-1].error == {"class": "authorization", "message": "refused", "details": {}}
    world.timeout(two)
    assert (seen[-1].status, seen[-1].value, seen[-1].error["class"]) == ("timeout", None, "timeout")
    assert world.state(flow, "k").lines == ("ask:0 error None", "ask:1 timeout None")
    world.assert_replays()


def test_effects_settle_in_any_order_and_each_only_once():
    world, flow = started(3)
    a, b, c = world.open()
    assert [world.ok(i, Answer(1)) for i in (c, a, b)] == ["admitted"] * 3
    before = world.journal()
    assert [world.ok(i, Answer(2)) for i in (a, b, c)] == ["stale"] * 3
    assert world.receipt("nothing", "ok", {}) == "unknown"
    assert world.journal() == before, "nothing is journaled"
    assert [d["code"] for d in world.diagnostics()] == ["receipt.stale"] * 3 + ["receipt.unknown"]
    assert world.state(flow, "k").lines == (
        "ask:2 ok Answer(n=1)",
        "ask:0 ok Answer(n=1)",
        "ask:1 ok Answer(n=1)",
    )


def test_a_receipt_stays_stale_for_ever_and_after_a_reopen():
    world, _ = started()
    (intent,) = world.open()
    world.ok(intent, Answer(1))
    for n in range(600):
        world.send(Go("other", 1))
        world.ok(world.open()[0], Answer(1))
        if n == 300:
            world.snapshot()
    again = world.reopen()
    assert again.ok(intent.id, Answer(1)) == "stale"


def test_a_receipt_goes_to_its_origin_whatever_the_subscriptions_say():
    one, two = logger("t/one@1"), logger("t/two@1")
    lines = [{"event": "t/Go@1", "workflow": "t/one@1", "key_field": "k"}]
    world = rx.testing.World(rx.App("x", [one, two], subscriptions=lines))
    world.send(Go("k"))
    (intent,) = world.open()
    assert world.state(two, "k") is None
    world.ok(intent, Answer(1))
    assert world.state(one, "k").lines == ("ask:0 ok Answer(n=1)",)
    assert world.state(two, "k") is None
    bare = rx.testing.World(rx.App("x", [one, two], subscriptions=[]))
    bare.send(Go("k"))
    assert bare.open() == []


def test_ok_checks_the_payload_and_receipts_are_canonical():
    world, _ = started()
    (intent,) = world.open()
    with pytest.raises(InputInvalid):
        world.ok(intent, {"n": "x"})
    assert world.open() == [intent], "nothing changed"
    world.ok(intent, {"n": 4})
    assert world.journal()[-1].event["value"] == {"n": 4}
    assert seen[-1].value == Answer(4)


# --- faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [{"n": "x"}, {}, {"n": 1, "m": 2}, None, b"\xff", 3.5, object()])
def test_a_payload_that_does_not_fit_settles_the_intent_and_is_told(payload):
    world, flow = started(2)
    one, two = world.open()
    assert world.receipt(one, "ok", payload) == "admitted"
    assert world.open() == [two]
    rejected = seen[-1]
    assert isinstance(rejected, rx.Rejected)
    assert (rejected.ref, rejected.intent_id, rejected.effect) == ("ask:0", one.id, "t/ask@1")
    assert rejected.code == "receipt.invalid_payload"
    assert rejected.payload_digest.startswith("sha256:")
    assert rejected.payload_size > 0
    assert world.status(flow, "k") == "waiting"
    assert world.journal()[-1].kind == "rejected"
    world.assert_replays()


def test_without_rejected_the_instance_fails_and_its_other_effects_are_dropped():
    flow = logger(rejected=False)
    world = rx.testing.World(rx.App("x", [flow]))
    world.send(Go("k", 3))
    world.send(Go("other", 1))
    one, two, three = world.open(key="k")
    assert world.receipt(one, "ok", {"bad": 1}) == "admitted"
    assert world.status(flow, "k") == "failed"
    assert world.open(key="k") == []
    assert len(world.open(key="other")) == 1
    assert world.status(flow, "other") == "waiting"
    last = world.journal(flow, "k")[-1]
    assert last.kind == "fault"
    assert {*last.cancelled} == {two.id, three.id}
    assert last.event["value"] == {"bad": 1}, "the raw payload is kept"
    assert world.ok(two, Answer(1)) == "stale"
    world.assert_replays()
    assert world.reopen(at=0).status(flow, "k") == "failed"


def test_a_receipt_whose_step_fails_cannot_be_refused():
    world, flow = started(2)
    one, _ = world.open()
    assert world.ok(one, Answer(13)) == "admitted"
    assert world.status(flow, "k") == "failed"
    assert world.open() == []
    assert world.state(flow, "k") == Log(), "the state is as it was before"
    world.assert_replays()


def test_a_failed_instance_takes_no_events():
    world, flow = started(1)
    world.ok(world.open()[0], Answer(13))
    before = world.journal(flow, "k")
    with pytest.raises(TreadleError, match="has failed"):
        world.send(Go("k"))
    world.send(Go("k"), run=False)
    world.run()
    assert world.journal(flow, "k") == before
    told = world.diagnostics()
    assert [(d["code"], d["error"]["code"], d["run"]) for d in told] == [
        ("event.refused", "CELL_FAILED", "t/log@1/k")
    ] * 2
    world.reset(flow, "k")
    assert world.status(flow, "k") == "running"
    world.send(Go("k"))
    assert world.status(flow, "k") == "waiting"
    world.assert_replays()


# --- frames ------------------------------------------------------------------------------------------------


def test_frames_are_delivered_only_if_they_are_wanted():
    world, flow = started(frames=True)
    (intent,) = world.open()
    assert world.frame(intent, "half", {"percent": 50}) == "admitted"
    assert world.state(flow, "k").lines == ("ask:0 1 half {'percent': 50}",)
    assert world.open() == [intent], "frames never settle"
    world.assert_replays()
    quiet, flow = started()
    (intent,) = quiet.open()
    before = quiet.journal()
    assert quiet.frame(intent, "half", 50) == "admitted"
    assert quiet.journal() == before
    assert quiet.state(flow, "k") == Log()


def test_frames_are_monotonic_and_gaps_are_noted():
    world, flow = started(frames=True)
    (intent,) = world.open()
    results = [world.frame(intent, "f", None, seq=n) for n in (1, 1, 0, 4, 3)]
    assert results == ["admitted", "dropped", "dropped", "admitted", "dropped"]
    codes = [d["code"] for d in world.diagnostics()]
    assert codes == ["stream.non_monotonic", "stream.non_monotonic", "stream.gap", "stream.non_monotonic"]
    assert world.state(flow, "k").lines == ("ask:0 1 f None", "ask:0 4 f None")
    again = world.reopen()
    assert again.frame(intent.id, "f", None, seq=4) == "dropped", "also after a restart"
    world.ok(intent, Answer(1))
    assert world.frame(intent, "late") == "dropped"
    assert world.diagnostics()[-1]["code"] == "stream.unknown_intent"


# --- timers --------------------------------------------------------------------------------------------------


@rx.schema("t/Set@1")
@dataclass(frozen=True)
class Set:
    k: str
    at_ns: int


@rx.workflow("t/clock@1", state=Log, events=[Set], key="k", effects=[rx.timer])
def clock(state, event, ctx):
    state = state or Log()
    match event:
        case Set(_, at_ns):
            return rx.Output(state, effects=[rx.timer(at_ns, ref=str(at_ns))])
        case rx.Receipt(value=fired):
            return rx.Output(Log((*state.lines, f"{fired.delivered_at_ns} at {ctx.now_ns}")))


def test_timers_fire_in_order_at_their_deadline_and_survive_a_reopen():
    world = rx.testing.World(rx.App("x", [clock]))
    start = world.reopen().now
    now_ns = int(start.timestamp()) * 10**9
    second = 10**9
    for after in (3, 1, 2, -5):
        world.send(Set("k", now_ns + after * second))
    world = world.reopen()
    assert len(world.open("sys/timer.set@1")) == 3
    assert world.state(clock, "k").lines == (f"{now_ns - 5 * second} at {now_ns}",), (
        "a past deadline fires at once"
    )
    world.advance("2s")
    world.advance("1h")
    assert world.state(clock, "k").lines[1:] == tuple(
        f"{now_ns + n * second} at {now_ns + n * second}" for n in (1, 2, 3)
    )
    world.assert_replays()


# --- deletion and statuses -----------------------------------------------------------------------------------


def test_deleting_a_cell_cancels_what_it_had_open():
    world = rx.testing.World(app())
    world.send(OrderCreated("o", 1))
    (intent,) = world.open()
    world.send(OrderCancelled("o"))
    assert world.open() == []
    assert world.state(order, "o") is None
    assert world.cells(order) == []
    last = world.journal(order, "o")[-1]
    assert (last.cancelled, last.status) == ([intent.id], "completed")
    assert world.ok(intent, ChargeReceipt("p")) == "stale"
    world.send(OrderCreated("o", 2))
    assert world.status(order, "o") == "waiting"
    assert world.state(order, "o").amount_cents == 2
    world.assert_replays()


def test_effects_of_the_deleting_step_open_and_their_receipts_find_no_state():
    states: list[Any] = []

    @rx.workflow("t/gone@1", state=Log, events=[Go], key="k", effects=[ask])
    def gone(state, event, ctx):
        states.append((state, type(event).__name__))
        if isinstance(event, Go):
            if state is None:
                return rx.Output(Log(), effects=[ask(event, ref="old")])
            return rx.delete(effects=[ask(event, ref="a"), ask(event, ref="b")])
        return rx.Output(state)

    world = rx.testing.World(rx.App("x", [gone]))
    world.send(Go("k"))
    world.send(Go("k"))
    assert [i.ref for i in world.open()] == ["a", "b"]
    assert world.status(gone, "k") == "waiting"
    for intent in world.open():
        world.ok(intent, Answer(1))
    assert states[2:] == [(None, "Receipt"), (None, "Receipt")]
    assert world.cells(gone) == []
    world.assert_replays()


def test_statuses_follow_open_effects_and_the_terminal_predicate():
    world = rx.testing.World(app())
    assert world.status(order, "o") is None
    world.send(OrderCreated("o", 1))
    assert world.status(order, "o") == "waiting"
    world.ok(world.open()[0], ChargeReceipt("p"))
    assert world.status(order, "o") == "completed"
    assert world.status(ledger) == "running", "idle, not terminal"
    assert world.status(notes, "o") == "waiting"


def test_a_terminal_state_cancels_nothing():
    @rx.workflow("t/end@1", state=Log, events=[Go], key="k", effects=[ask], terminal=lambda s: True)
    def end(state, event, ctx):
        return rx.Output(Log(), effects=[ask(event)] if isinstance(event, Go) else [])

    world = rx.testing.World(rx.App("x", [end]))
    world.send(Go("k"))
    assert world.status(end, "k") == "waiting"
    world.ok(world.open()[0], Answer(1))
    assert world.status(end, "k") == "completed"


# --- secrets ---------------------------------------------------------------------------------------------------


@rx.schema("t/Login@1")
@dataclass(frozen=True)
class Login:
    user: str
    password: rx.Secret


login = rx.effect("t/login@1", params=Login, receipt=None)


@rx.workflow("t/auth@1", state=Log, events=[Go], key="k", effects=[login])
def auth(state, event, ctx):
    return rx.Output(Log(), effects=[login(Login("ann", rx.secret("db")))] if isinstance(event, Go) else [])


def test_a_secret_is_journaled_by_name_only():
    world = rx.testing.World(rx.App("x", [auth]), secrets={"db": "hunter2hunter2"})
    world.send(Go("k"))
    (intent,) = world.open()
    assert intent.params == Login("ann", rx.secret("db"))
    opened = world._host.intent(intent.id)[1].params["params"]["password"]
    assert opened == {"$tag": "secret", "$value": {"alias": "db", "version": 1}}
    assert b"hunter2" not in world._host.store.image()
    assert world.secret("db") == "hunter2hunter2"
    by_function = rx.testing.World(rx.App("x", [auth]), secrets={"db": "other"}.get)
    assert by_function.secret("db") == "other"
    with pytest.raises(SecretMissing):
        by_function.secret("nope")


def test_an_application_with_secrets_does_not_start_without_a_resolver():
    with pytest.raises(SecretMissing):
        rx.testing.World(rx.App("x", [auth]))
