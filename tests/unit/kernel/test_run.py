"""One run: identity, admission, receipts, signals, snapshots, replay, fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle.kernel.errors import (
    DecisionRefused,
    JournalCorrupt,
    KernelBug,
    LimitExceeded,
    ReplayDiffers,
    TreadleError,
    ValueRefused,
)
from treadle.kernel.history import Stored, fork, opened_by, replay, restore, snapshot_of
from treadle.kernel.limits import SIGNALS_BUFFERED_MAX, STEP_BYTES_MAX, STEP_EVENTS_MAX, STEP_INTENTS_MAX
from treadle.kernel.machine import Machine
from treadle.kernel.model import (
    Context,
    Continue,
    Decision,
    Domain,
    Event,
    Intent,
    OpenIntent,
    Receipt,
    Rejected,
    Started,
)
from treadle.kernel.roles import JudgingMachine
from treadle.kernel.run import advance, fault
from treadle.kernel.state import RunState
from treadle.kernel.values import Value, decode
from treadle.testing.driver import Driver

Answer = Callable[[Any, Event, Context], Decision]


class Probe(JudgingMachine):
    """A machine whose every answer is given by the test."""

    dialect = "probe"

    def __init__(self, start: Answer, step: Answer | None = None, **traits: Any) -> None:
        self._start, self._step, self._traits = start, step or keep, traits

    def load(self, body: Value) -> Any:
        return body

    def start(self, definition: Any, event: Started, ctx: Context) -> Decision:
        return self._start(event.input, event, ctx)

    def step(self, definition: Any, state: Value, event: Event, ctx: Context) -> Decision:
        return self._step(state, event, ctx)

    def kinds(self, definition: Any) -> frozenset[str] | None:
        return self._traits.get("kinds")

    def takes_rejected(self, definition: Any) -> bool:
        return bool(self._traits.get("takes_rejected"))

    def receipt_problem(self, definition: Any, intent: OpenIntent, receipt: Receipt) -> dict[str, Any] | None:
        if receipt.value == "invalid":
            return TreadleError("not valid", cls="user", code="INVALID").to_value()
        return None


def keep(state: Any, event: Event, ctx: Context) -> Decision:
    return Decision(state=state)


def opens(*intents: Intent, **more: Any) -> Answer:
    return lambda state, event, ctx: Decision(state=state, intents=list(intents), **more)


def call(ref: str = "a", **fields: Any) -> Intent:
    return Intent(kind="call", params=fields.pop("params", {}), ref=ref, **fields)


def drive(machine: Machine, input: Value = None, **more: Any) -> Driver:
    return Driver(machine, {"body": 1}, **more).start(input)


# --- identity ------------------------------------------------------------------------------------------


def test_two_positions_two_steps_and_two_runs_never_share_an_id() -> None:
    twice = opens(call("a"), call("b"))

    def again(state: Any, event: Event, ctx: Context) -> Decision:
        return twice(state, event, ctx) if ctx.seq < 4 else Decision(state=state)

    ids: list[str] = []
    for run in ("r1", "r2"):
        driver = drive(Probe(twice, again), id=run)
        while waiting := driver.open("call"):
            ids += [intent.id for intent in waiting if intent.id not in ids]
            driver.ok(waiting[0])
    assert len(ids) == len(set(ids)) == 2 * 6


def test_id_names_run_definition_key_kind_params_and_idempotency_key() -> None:
    def only(intent: Intent, body: Value = 1, **more: Any) -> str:
        driver = Driver(Probe(opens(intent)), {"body": body}, **more).start()
        return driver.open()[0].id

    base = only(call())
    others = [
        only(call(), body=2),
        only(call(), key=["k"]),
        only(call(), id="r2"),
        only(Intent(kind="model", params={}, ref="a")),
        only(call(params={"x": 1})),
        only(call(idempotency_key="k")),
    ]
    assert len({base, *others}) == 7
    assert only(call()) == base, "an equal replay gives an equal id"
    assert only(call("b")) == base, "the ref is the machine's own label"


# --- admission -------------------------------------------------------------------------------------------


def refused(machine: Machine, error: type[BaseException] = DecisionRefused) -> Any:
    driver = Driver(machine, {"body": 1})
    with pytest.raises(error) as caught:
        driver.start()
    assert driver.journal == [], "a refused decision leaves no record"
    return caught.value


def test_a_decision_within_the_limits_is_admitted_and_one_above_is_not() -> None:
    def many(count: int) -> Probe:
        return Probe(opens(*(call(str(n)) for n in range(count))))

    assert len(drive(many(STEP_INTENTS_MAX)).open()) == STEP_INTENTS_MAX
    assert "65 intents" in str(refused(many(STEP_INTENTS_MAX + 1), LimitExceeded))

    def talkative(count: int) -> Probe:
        return Probe(lambda s, e, c: Decision(state=None, events=[{"type": "x"}] * count))

    assert len(drive(talkative(STEP_EVENTS_MAX)).events) == STEP_EVENTS_MAX
    refused(talkative(STEP_EVENTS_MAX + 1), LimitExceeded)
    refused(
        Probe(lambda s, e, c: Decision(state=None, result="x" * STEP_BYTES_MAX, status="completed")),
        LimitExceeded,
    )


def test_a_kind_that_is_not_declared_is_refused_by_name() -> None:
    machine = Probe(opens(call()), kinds=frozenset({"model"}))
    assert "'call'" in str(refused(machine))
    timer = Probe(opens(Intent(kind="timer", params={}, due_ns=1)), kinds=frozenset())
    assert drive(timer).open("timer"), "what the engine owns needs no declaration"


def test_params_are_checked() -> None:
    refused(Probe(opens(Intent(kind="timer", params={}))))
    refused(Probe(opens(Intent(kind="signal", params={}))))
    refused(Probe(opens(call(params={"x": object()}))), ValueRefused)


@pytest.mark.parametrize("part", ["state", "events", "result", "error", "more", "log"])
def test_a_decision_is_made_of_values_in_all_its_parts(part: str) -> None:
    lazy = (item for item in "ab")
    made: dict[str, Any] = {"state": {}}
    made[part] = [{"type": "x", "data": lazy}] if part == "events" else {"inner": lazy}
    refused(Probe(lambda state, event, ctx: Decision(**made)), ValueRefused)


def test_a_state_that_is_no_value_is_found_when_a_snapshot_is_due() -> None:
    def spoils(state: Any, event: Event, ctx: Context) -> Decision:
        return Decision(state={"lazy": iter([1])}, intents=[call("a", params={"pad": "x" * 70_000})])

    driver = drive(Probe(opens(call("a")), spoils), {})
    driver.ok(driver.open()[0])
    record = driver.journal[-1].record()
    assert (record["kind"], record["error"]["code"]) == ("fault", "VALUE_REFUSED")
    driver.assert_replays()


def test_the_words_of_an_exception_that_nobody_expected_are_not_recorded() -> None:
    def breaks(state: Any, event: Event, ctx: Context) -> Decision:
        raise KeyError(object())

    driver = drive(Probe(opens(call("a")), breaks))
    driver.ok(driver.open()[0])
    assert "0x" not in str(driver.journal[-1].record()["error"])
    driver.assert_replays()


def test_cancelling_what_is_not_open_is_refused_and_changes_nothing() -> None:
    driver = drive(Probe(opens(call()), lambda s, e, c: Decision(state=s, cancel=["ghost"])))
    before = snapshot_of(driver.run)
    with pytest.raises(DecisionRefused, match="ghost"):
        driver.feed(Domain(schema="x"))
    assert snapshot_of(driver.run) == before
    assert len(driver.journal) == 1


def test_a_run_that_ends_takes_its_open_work_back_and_opens_none() -> None:
    driver = drive(Probe(opens(call("a"), call("b")), lambda s, e, c: Decision(state=s, status="completed")))
    driver.ok(driver.open(ref="a")[0])
    assert driver.status == "completed"
    assert driver.open() == []
    assert len(driver.journal[-1].record()["cancelled"]) == 1
    refused(Probe(opens(call(), status="completed")))


def test_the_last_step_may_still_send_and_start() -> None:
    start = Intent(kind="start", params={"workflow": "w"}, ref="s")
    driver = drive(Probe(opens(start, status="completed")))
    assert driver.open() == []
    assert [i["kind"] for i in driver.journal[-1].record()["opened"]] == ["start"]


def test_status_is_running_while_a_worker_holds_something_and_waiting_otherwise() -> None:
    timer = Intent(kind="timer", params={}, ref="t", due_ns=1)
    driver = drive(Probe(opens(call(), timer)))
    assert driver.status == "running"
    driver.ok(driver.open("call")[0])
    assert driver.status == "waiting"


def test_who_works_for_a_run_is_counted_as_its_work_comes_and_goes() -> None:
    """Also over a snapshot, a fault and an end; what is performed is never looked for among all that is open."""

    def counted(run: RunState) -> bool:
        return run.performed == sum(intent.kind == "call" for intent in run.open.values())

    def step(state: Any, event: Event, ctx: Context) -> Decision:
        if ctx.seq > 2:
            raise ValueError("no")
        return Decision(state=state, intents=[call("d")], cancel=["b"])

    timer = Intent(kind="timer", params={}, ref="t", due_ns=1)
    machine = Probe(opens(call("a"), call("b"), call("c"), timer), step)
    driver = drive(machine)
    assert (driver.run.performed, driver.run.working) == (3, True)
    driver.ok(driver.open("call", ref="a")[0])
    assert (driver.run.performed, restore(snapshot_of(driver.run)).performed) == (2, 2)
    assert counted(driver.run)
    driver.ok(driver.open("call", ref="c")[0])
    assert (driver.status, driver.run.performed, driver.run.working) == ("failed", 0, False)


# --- receipts ----------------------------------------------------------------------------------------------


def test_a_receipt_for_an_intent_that_is_not_open_never_reaches_the_machine() -> None:
    driver = drive(Probe(opens(call())))
    intent = driver.open()[0]
    driver.ok(intent)
    with pytest.raises(KernelBug):
        advance(driver.run, driver.machine, driver.definition, Receipt(intent=intent.id), at_ns=0)


def test_the_machine_finds_its_intent_in_the_context_and_it_is_settled_already() -> None:
    seen: list[Any] = []

    def step(state: Any, event: Event, ctx: Context) -> Decision:
        assert ctx.intent is not None
        seen.append((ctx.intent.ref, sorted(i.ref for i in ctx.open.values()), ctx.seq))
        return Decision(state=state)

    driver = drive(Probe(opens(call("a"), call("b")), step))
    driver.ok(driver.open(ref="a")[0])
    assert seen == [("a", ["b"], 2)]


def test_a_machine_that_raises_on_a_receipt_fails_its_run_and_replays_so() -> None:
    def broken(state: Any, event: Event, ctx: Context) -> Decision:
        state["half"] = True
        raise ValueError("no")

    driver = drive(Probe(opens(call("a"), call("b")), broken), {})
    driver.ok(driver.open(ref="a")[0], "payload")
    record = driver.journal[-1].record()
    assert (record["kind"], driver.status) == ("fault", "failed")
    assert record["event"]["value"] == "payload", "the raw payload is kept"
    assert record["error"]["code"] == "MACHINE_ERROR"
    assert len(record["cancelled"]) == 1
    assert driver.run.state == {}, "nothing of the half step is kept"
    driver.assert_replays()


def test_a_fault_is_recorded_however_large_what_caused_it_is() -> None:
    driver = drive(Probe(opens(call())))
    large = [{"type": "x", "text": "y" * STEP_BYTES_MAX}]
    driver.feed(Receipt(intent=driver.open()[0].id, events=large))
    assert driver.status == "failed"
    assert driver.journal[-1].record()["error"]["code"] == "LIMIT_EXCEEDED"
    driver.assert_replays()


def test_a_fault_is_recorded_even_if_its_error_is_no_value() -> None:
    def broken(state: Any, event: Event, ctx: Context) -> Decision:
        raise TreadleError("no", details={"thing": object()})

    driver = drive(Probe(opens(call()), broken))
    driver.ok(driver.open()[0])
    assert driver.status == "failed"
    assert driver.journal[-1].record()["error"]["message"] == "no"


def test_a_receipt_that_does_not_validate_is_a_fault_unless_the_machine_takes_them() -> None:
    driver = drive(Probe(opens(call())))
    driver.ok(driver.open()[0], "invalid")
    assert driver.journal[-1].record()["kind"] == "fault"
    assert driver.run.error is not None
    assert driver.run.error["code"] == "INVALID"
    driver.assert_replays()

    seen: list[Event] = []

    def step(state: Any, event: Event, ctx: Context) -> Decision:
        seen.append(event)
        return Decision(state=state, status="completed")

    driver = drive(Probe(opens(call()), step, takes_rejected=True))
    driver.ok(driver.open()[0], "invalid")
    (event,) = seen
    assert isinstance(event, Rejected)
    assert (event.payload, event.error and event.error["code"]) == ("invalid", "INVALID")
    assert driver.journal[-1].record()["kind"] == "rejected"
    assert driver.open() == []
    driver.assert_replays()


def test_time_in_a_journal_never_goes_back() -> None:
    driver = drive(Probe(opens(call("a"), call("b"))))
    first = driver.journal[0].record()["at"]
    driver.now_ns -= 10**12
    driver.ok(driver.open(ref="a")[0])
    assert driver.journal[1].record()["at"] == first


def test_entropy_is_the_same_on_every_replay_and_on_no_other_step() -> None:
    drawn: list[bytes] = []

    def draw(state: Any, event: Event, ctx: Context) -> Decision:
        drawn.append(ctx.entropy)
        return Decision(state=state, intents=[call()] if ctx.seq == 1 else [])

    driver = drive(Probe(draw, draw))
    driver.ok(driver.open()[0])
    assert len(drawn) == len(set(drawn)) == 2
    assert all(len(entropy) == 64 for entropy in drawn)
    once = list(drawn)
    replay(driver._fresh(), driver.machine, lambda _: driver.definition, driver.journal)
    assert drawn[2:] == once


# --- slices --------------------------------------------------------------------------------------------------


def test_a_decision_above_the_limits_goes_on_in_its_own_next_records() -> None:
    def slices(state: Any, event: Event, ctx: Context) -> Decision:
        first = event.more if isinstance(event, Continue) else 0
        if isinstance(event, Receipt):
            return Decision(state=state)
        last = min(first + STEP_INTENTS_MAX, 150)
        intents = [call(str(n)) for n in range(first, last)]
        return Decision(state=state, intents=intents, more=last if last < 150 else None)

    driver = drive(Probe(slices, slices))
    assert [record.record()["kind"] for record in driver.journal] == ["started", "continue", "continue"]
    assert len({intent.id for intent in driver.open()}) == 150
    driver.assert_replays()
    copy, step = fork(driver.run, id="copy", definition=driver.digest, seed=b"s", at_ns=driver.now_ns)
    assert len(copy.open) == len(step.opened) == 150, "and it can be forked"


# --- signals ---------------------------------------------------------------------------------------------------


def await_signal(name: str, ref: str = "s") -> Intent:
    return Intent(kind="signal", params={"name": name}, ref=ref)


def collector(*names: str) -> Probe:
    """Awaits the signals one after another and keeps what they brought."""

    def start(state: Any, event: Event, ctx: Context) -> Decision:
        return Decision(state={"got": [], "left": list(names[1:])}, intents=[await_signal(names[0])])

    def step(state: Any, event: Event, ctx: Context) -> Decision:
        if not isinstance(event, Receipt):
            return Decision(state=state)
        state["got"].append(event.value)
        if not state["left"]:
            return Decision(state=state, status="completed", result=state["got"])
        return Decision(state=state, intents=[await_signal(state["left"].pop(0))])

    return Probe(start, step)


def test_a_signal_that_is_awaited_settles_the_await() -> None:
    driver = drive(collector("go"))
    driver.signal("go", 1)
    assert (driver.status, driver.run.result) == ("completed", [1])
    assert [r.record()["kind"] for r in driver.journal] == ["started", "signal"]
    driver.assert_replays()


def test_signals_that_come_early_are_kept_first_in_first_out_by_name() -> None:
    driver = drive(collector("wait", "a", "a", "b"))
    for name, data in (("a", 1), ("b", 2), ("a", 3), ("other", 4)):
        driver.signal(name, data)
    assert len(driver.run.signals) == 4
    driver.signal("wait", 0)
    assert driver.run.result == [0, 1, 3, 2]
    assert driver.run.signals == (), "a run that ended keeps none"
    driver.assert_replays()


def test_a_buffered_signal_does_not_change_what_the_run_is() -> None:
    stalled = TreadleError("stuck", cls="user", code="STUCK").to_value()
    driver = drive(Probe(opens(await_signal("x"), status="stalled", error=stalled)))
    driver.signal("y")
    assert driver.status == "stalled"
    assert driver.run.error == stalled
    driver.assert_replays()


def test_the_buffer_is_bounded() -> None:
    driver = drive(collector("never"))
    driver.run.signals = ({"name": "x"},) * SIGNALS_BUFFERED_MAX
    with pytest.raises(LimitExceeded):
        driver.signal("x")


# --- snapshots, replay, fork ---------------------------------------------------------------------------------------


def busy_driver() -> Driver:
    """A run that used timers, calls, signals, slices and a rejected receipt."""

    def start(state: Any, event: Event, ctx: Context) -> Decision:
        timer = Intent(kind="timer", params={}, ref="t", due_ns=ctx.now_ns + 10**9)
        return Decision(
            state={"log": []}, intents=[call("a"), call("b"), timer, await_signal("go")], more="rest"
        )

    def step(state: Any, event: Event, ctx: Context) -> Decision:
        state["log"].append([event.kind, ctx.intent.ref if ctx.intent else None, ctx.now_ns])
        events = [{"type": "logged", "seq": ctx.seq}]
        if isinstance(event, Continue):
            return Decision(state=state, events=events, intents=[call("c"), await_signal("go", "s2")])
        if len(ctx.open) == 1:
            return Decision(state=state, events=events, cancel=[next(iter(ctx.open.values())).ref])
        return Decision(state=state, events=events)

    driver = drive(Probe(start, step, takes_rejected=True))
    driver.signal("early", 1).ok(driver.open(ref="a")[0], {"x": b"bytes"}).signal("go", 2)
    driver.ok(driver.open(ref="b")[0], "invalid").advance(2).signal("go", 3).signal("late", 4)
    return driver


def test_snapshot_and_tail_are_the_same_as_genesis_at_every_cut() -> None:
    driver = busy_driver()
    assert len(driver.journal) >= 8
    driver.assert_replays()


def test_a_snapshot_is_canonical_and_restores_equal() -> None:
    driver = busy_driver()
    body = snapshot_of(driver.run)
    assert decode(body)
    assert snapshot_of(restore(body)) == body


def test_open_work_is_found_without_running_the_machine() -> None:
    driver = busy_driver()
    open_: dict[str, OpenIntent] = {}
    for stored in driver.journal:
        record = stored.record()
        for id in record.get("cancelled", ()):
            open_.pop(id)
        open_.update((intent.id, intent) for intent in opened_by(record))
        if "intent" in record["event"]:
            del open_[record["event"]["intent"]]
    settled_by_signal = {id for id, intent in open_.items() if intent.kind == "signal"}
    assert {id: i for id, i in open_.items() if id not in settled_by_signal} == {
        id: i for id, i in driver.run.open.items() if i.kind != "signal"
    }


def replay_with(driver: Driver, machine: Machine, journal: list[Stored] | None = None) -> RunState:
    return replay(driver._fresh(), machine, lambda _: driver.definition, journal or driver.journal)


def test_the_first_difference_is_reported_with_what_was_expected_and_what_came() -> None:
    driver = drive(Probe(opens(call("a"), call("b"))))
    driver.ok(driver.open(ref="a")[0]).ok(driver.open(ref="b")[0])

    def other(state: Any, event: Event, ctx: Context) -> Decision:
        return Decision(state=state, events=[{"type": "new"}] if ctx.seq >= 2 else [])

    with pytest.raises(ReplayDiffers) as caught:
        replay_with(driver, Probe(opens(call("a"), call("b")), other))
    assert caught.value.cls == "consistency"
    assert caught.value.details["seq"] == 2
    assert caught.value.details["expected"] == {"events": None}
    assert caught.value.details["got"] == {"events": [{"type": "new"}]}


def test_another_intent_another_status_or_a_refusal_is_a_difference() -> None:
    driver = drive(Probe(opens(call("a"))))
    driver.ok(driver.open()[0])
    with pytest.raises(ReplayDiffers, match="opened"):
        replay_with(driver, Probe(opens(call("a", params={"x": 1}))))
    with pytest.raises(ReplayDiffers, match="status"):
        replay_with(driver, Probe(opens(call("a")), lambda s, e, c: Decision(state=s, status="completed")))

    def refuses(state: Any, event: Event, ctx: Context) -> Decision:
        raise TreadleError("no more", cls="user", code="NO")

    with pytest.raises(ReplayDiffers, match="refused now"):
        replay_with(driver, Probe(opens(call("a")), refuses))

    def breaks(state: Any, event: Event, ctx: Context) -> Decision:
        raise KeyError("oops")

    with pytest.raises(ReplayDiffers):
        replay_with(driver, Probe(opens(call("a")), breaks))


def test_a_fault_that_no_longer_fails_is_a_difference() -> None:
    def breaks(state: Any, event: Event, ctx: Context) -> Decision:
        raise KeyError("oops")

    driver = drive(Probe(opens(call("a")), breaks))
    driver.ok(driver.open()[0])
    with pytest.raises(ReplayDiffers) as caught:
        replay_with(driver, Probe(opens(call("a"))))
    assert caught.value.details["expected"]["error"]["code"] == "MACHINE_ERROR"


def test_the_recorded_words_of_a_fault_stand_but_not_what_they_are_about() -> None:
    """An author's code may quote Python, which words things otherwise in its next version."""

    def fails(message: str, code: str = "NO", details: Any = None) -> Any:
        def step(state: Any, event: Event, ctx: Context) -> Decision:
            raise TreadleError(message, cls="user", code=code, details=details or {})

        return step

    driver = drive(Probe(opens(call("a")), fails("'NoneType' object has no attribute 'x'")))
    driver.ok(driver.open()[0])
    replay_with(driver, Probe(opens(call("a")), fails("None has no x")))
    for other in (fails("None has no x", code="YES"), fails("None has no x", details={"at": 1})):
        with pytest.raises(ReplayDiffers):
            replay_with(driver, Probe(opens(call("a")), other))


def test_a_journal_with_a_changed_missing_or_swapped_record_is_corrupt() -> None:
    driver = busy_driver()
    first, second, third, *rest = driver.journal
    for broken in (
        [first, third, *rest],
        [first, Stored(2, second.body + b"\x00", second.digest), third],
        [first, Stored(2, third.body, third.digest)],
        [Stored(1, first.body, bytes(32))],
    ):
        with pytest.raises(JournalCorrupt):
            replay_with(driver, driver.machine, broken)


def test_a_fork_goes_on_from_the_same_state_with_ids_of_its_own() -> None:
    driver = drive(Probe(opens(call("a"), call("b")), lambda s, e, c: Decision(state=s)), {"n": 1})
    driver.ok(driver.open(ref="a")[0])
    before = snapshot_of(driver.run)
    copy, step = fork(driver.run, id="copy", definition=driver.digest, seed=b"other", at_ns=driver.now_ns)
    assert snapshot_of(driver.run) == before, "the source is as it was"
    assert (copy.state, copy.seq, copy.status) == ({"n": 1}, 1, driver.status)
    assert [i.ref for i in copy.open.values()] == ["b"]
    assert not copy.open.keys() & driver.run.open.keys()
    origin = decode(step.body)["event"]["forked_from"]
    assert (origin["run"], origin["seq"]) == ("r1", 2)
    advance(
        copy, driver.machine, driver.definition, Receipt(intent=next(iter(copy.open))), at_ns=driver.now_ns
    )
    assert driver.open(ref="b"), "and stays as it was"


def test_a_fault_of_the_first_step_is_a_record_too() -> None:
    run = RunState(id="r", dialect="probe", workflow="w", version=None, definition="sha256:0")
    error = TreadleError("no", code="NO").to_value()
    step = fault(run, Started(seed=b"s"), error, at_ns=5)
    assert (step.seq, run.status, run.error) == (1, "failed", error)


# --- payloads that a machine stores ----------------------------------------------------------------------


def storing(state: Any, event: Event, ctx: Context) -> Decision:
    reference = ctx.store(["x" * 100_000, ctx.seq])
    assert ctx.blob(reference) == ["x" * 100_000, ctx.seq], "a step reads what it stored itself"
    return Decision(state={"at": reference}, intents=[call()])


def reading(state: Any, event: Event, ctx: Context) -> Decision:
    return Decision(state=state, status="completed", result=len(ctx.blob(state["at"])[0]))


def test_what_a_machine_stores_is_committed_with_its_decision_and_named_in_the_record() -> None:
    driver = drive(Probe(storing, reading))
    record = decode(driver.journal[0].body)
    assert record["blobs"] == [driver.state["at"]["checksum"]]
    assert len(driver.journal[0].body) < 1_000
    driver.ok(driver.open()[0])
    assert driver.run.result == 100_000
    driver.assert_replays()


def test_a_step_that_stores_something_else_on_replay_is_a_difference() -> None:
    driver = drive(Probe(storing, reading))

    def other(state: Any, event: Event, ctx: Context) -> Decision:
        ctx.store("another payload")
        return storing(state, event, ctx)

    with pytest.raises(ReplayDiffers) as caught:
        replay(driver._fresh(), Probe(other), lambda _: None, driver.journal)
    assert "blobs" in caught.value.message


def test_a_refused_decision_stores_nothing() -> None:
    def refused(state: Any, event: Event, ctx: Context) -> Decision:
        ctx.store("x" * 100_000)
        raise TreadleError("no", cls="user", code="NO")

    driver = Driver(Probe(refused), {"body": 1})
    with pytest.raises(TreadleError):
        driver.start()
    assert driver.blobs == {}
