"""Manifests written by hand in AIR are taken as they are (REACTIVE.md §8.1), and what they describe runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import reactive_air as air

from treadle import reactive as rx
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.kernel.errors import DefinitionError, TreadleError
from treadle.kernel.model import Started
from treadle.testing import Driver


def answer(status: int = 200) -> rx.HttpAnswer:
    return rx.HttpAnswer(status, {}, None, rx.HttpTimings(1, 2))


def refused(workflow: rx.Workflow, manifest: Any) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as caught:
        rx.App("x", [workflow], manifest=manifest)
    return [(problem["path"], problem["message"]) for problem in caught.value.details["problems"]]


def changed(manifest: list[dict[str, Any]], name: str, **change: Any) -> list[dict[str, Any]]:
    """The manifest with one of its definitions changed."""
    made = copy.deepcopy(manifest)
    next(node for node in made if node.get("name") == name).update(change)
    return made


# --- taken as it is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workflow", "manifest"),
    [
        (air.counter, air.COUNTER),
        (air.hello, air.HELLO),
        (air.saga, air.SAGA),
        (air.fetching(1), air.fetch_air("demo/Fetch_v1_wasm@1")),
        (air.retry, air.RETRY),
        (air.flow, air.FLOW),
    ],
    ids=["counter", "hello-timer", "saga", "safe-upgrade", "retry-backoff", "hardening"],
)
def test_a_manifest_written_by_hand_is_taken_with_its_own_names(workflow, manifest):
    app = rx.App("x", [workflow], manifest=manifest)
    names = {kind: [n["name"] for n in manifest if n["$kind"] == kind] for kind in ("defmodule", "defschema")}
    assert [ref["name"] for ref in app.manifest["modules"]] == names["defmodule"]
    assert sorted(ref["name"] for ref in app.manifest["schemas"]) == sorted(names["defschema"])
    for node in manifest[1:]:
        if node["$kind"] == "defschema":
            assert app.nodes[node["name"]]["type"] == node["type"]
        if node["$kind"] == "defworkflow":
            assert app.nodes[node["name"]]["impl"] == node["impl"]
            assert app.nodes[node["name"]]["event"] == node["event"]
    assert (
        app.manifest["routing"]["subscriptions"][0]["event"]
        == manifest[0]["routing"]["subscriptions"][0]["event"]
    )
    again = rx.App("x", [workflow], manifest=copy.deepcopy(manifest))
    assert again.digest == app.digest


def test_definitions_may_stand_in_the_manifest_or_beside_it():
    inside = dict(air.COUNTER[0])
    for part, kind in (("schemas", "defschema"), ("modules", "defmodule"), ("workflows", "defworkflow")):
        inside[part] = [node for node in air.COUNTER if node["$kind"] == kind]
    beside = rx.App("x", [air.counter], manifest=air.COUNTER)
    assert rx.App("x", [air.counter], manifest=inside).digest == beside.digest


def test_a_list_that_is_none_is_told_also_where_definitions_stand_beside_the_manifest():
    damaged = copy.deepcopy(air.COUNTER)
    damaged[0]["schemas"] = 5
    assert ("schemas", "is a list, not int") in refused(air.counter, damaged)


def test_a_definition_that_the_manifest_does_not_name_is_told():
    stray = air.schema("demo/Stray@1", {"record": {}})
    assert refused(air.counter, [*air.COUNTER, stray]) == [
        (f"$[{len(air.COUNTER)}]", "is no definition that the manifest names")
    ]


def test_one_module_may_hold_several_workflows_and_changes_with_each():
    def two(version: int) -> rx.App:
        one = air.fetching(1)
        other = rx.workflow(
            "demo/Other@1", state=air.Fetch, events=[air.FetchStart], effects=[], version=version
        )
        given = {"$kind": "manifest", "modules": [{"name": "demo/all@1"}], "routing": {"subscriptions": []}}
        return rx.App("x", [one, other(lambda state, event: rx.Output(state))], manifest=given)

    assert [ref["name"] for ref in two(1).manifest["modules"]] == ["demo/all@1"]
    assert two(1).digest != two(2).digest


def test_a_family_that_is_one_event_is_that_events_schema():
    @rx.workflow("demo/Only@1", state=air.Fetch, events=[air.FetchStart], effects=[])
    def only(state, event):
        return rx.Output(air.Fetch(event.url))

    nodes = [
        air.module("demo/m@1"),
        air.workflow(
            "demo/Only@1", "demo/m@1", state="demo/FetchState@1", event="demo/FetchStart@1", emits=[]
        ),
    ]
    world = rx.testing.World(
        rx.App(
            "x", [only], manifest=air.air(nodes, {"event": "demo/FetchStart@1", "workflow": "demo/Only@1"})
        )
    )
    world.send("demo/FetchStart@1", {"url": "u"})
    assert world.state(only) == air.Fetch("u")


# --- where code and manifest disagree ------------------------------------------------------------------------


def test_each_difference_is_listed_with_its_place():
    manifest = changed(
        air.SAGA,
        "demo/SagaState@1",
        type={
            "record": {
                "order_id": {"int": {}},
                "base": {"text": {}},
                "statuses": {"list": {"nat": {}}},
                "x": {},
            }
        },
    )
    manifest = changed(manifest, "demo/Saga@1", effects_emitted=["sys/timer.set@1"], state="demo/SagaStart@1")
    manifest[0]["routing"]["subscriptions"].append({"event": "demo/Nope@1", "workflow": "demo/Saga@1"})
    manifest[0]["routing"]["subscriptions"].append({"event": "demo/SagaStart@1", "workflow": "demo/None@1"})
    at = "schemas[0].type.record"
    assert refused(air.saga, manifest) == [
        (f"{at}.order_id", "the code has {'text': {}}"),
        (f"{at}.pc", "is missing; the code has {'text': {}}"),
        (f"{at}.statuses.list", "the code has {'int': {}}"),
        (f"{at}.x", "is not in the code"),
        ("workflows[0].state", "the code has 'demo/SagaState@1'"),
        ("workflows[0].effects_emitted", "the code does not declare sys/timer.set@1"),
        ("workflows[0].effects_emitted", "the code also declares sys/http.request@1"),
        (
            "routing.subscriptions[1]",
            "demo/Saga@1 takes neither demo/Nope@1 nor is that its family demo/SagaEvent@1",
        ),
        ("routing.subscriptions[2]", "demo/None@1 is no workflow of this application"),
    ]


@pytest.mark.parametrize(
    ("arms", "says"),
    [
        ({"Start": {"ref": "demo/TimerStart@1"}}, "has no arm for sys/EffectReceiptEnvelope@1"),
        ({"Receipt": air.RECEIPT}, "has no arm for demo/TimerStart@1"),
        ({"Start": {"record": {}}, "Receipt": air.RECEIPT}, "is {ref: SCHEMA}"),
        (
            {"A": {"ref": "demo/TimerStart@1"}, "B": {"ref": "demo/TimerStart@1"}, "Receipt": air.RECEIPT},
            "has an arm already",
        ),
        ({"Start": {"ref": "demo/Other@1"}, "Receipt": air.RECEIPT}, "does not take demo/Other@1"),
        (
            {
                "Start": {"ref": "demo/TimerStart@1"},
                "Receipt": air.RECEIPT,
                "F": {"ref": "sys/EffectStreamFrame@1"},
            },
            "frames=True",
        ),
    ],
)
def test_a_family_that_does_not_go_with_the_code_is_refused(arms, says):
    manifest = changed(air.HELLO, "demo/TimerEvent@1", type={"variant": arms})
    assert any(
        says in message
        for path, message in refused(air.hello, manifest)
        if path.startswith("schemas[2].type")
    )


def test_the_family_says_whether_a_payload_that_does_not_fit_is_told():
    """Seed §3.5: without an arm for sys/EffectReceiptRejected@1 the instance fails."""

    def after(manifest: list[dict[str, Any]]) -> str | None:
        world = rx.testing.World(rx.App("x", [air.flow], manifest=manifest))
        world.send(air.FlowStart("a", "u"))
        world.receipt(world.open()[0], "ok", {"status": "no number"})
        world.assert_replays()
        return world.status(air.flow, "a")

    assert after(air.FLOW) == "failed"
    arms = next(node for node in air.FLOW if node.get("name") == "demo/FlowEvent@1")["type"]["variant"]
    arms = {**arms, "Rejected": {"ref": "sys/EffectReceiptRejected@1"}}
    assert after(changed(air.FLOW, "demo/FlowEvent@1", type={"variant": arms})) == "running"


def test_a_name_of_a_module_that_is_not_there_is_refused():
    impl = {"module": "demo/gone@1", "entrypoint": "step"}
    assert refused(air.counter, changed(air.COUNTER, "demo/CounterSM@1", impl=impl)) == [
        ("workflows[0].impl.module", "demo/gone@1 is no module of this manifest")
    ]


# --- what they describe runs ---------------------------------------------------------------------------------


def test_counter_counts_down_by_events_that_say_nothing():
    world = rx.testing.World(rx.App("counter", [air.counter], manifest=air.COUNTER))
    world.send("demo/CounterEvent@1", {"$tag": "Start", "$value": {"target": 4}})
    world.send("demo/CounterEvent@1", {"$tag": "Tick"})
    world.send("demo/CounterEvent@1", "Tick")
    world.send("demo/CounterTick@1", None)
    assert world.state(air.counter) == air.Counter(air.Pc.Counting, 1)
    world.send(air.CounterTick())
    assert world.state(air.counter) == air.Counter(air.Pc.Done, 0)
    assert len({record.digest for record in world.journal(air.counter)}) == 5
    world.assert_replays()


def test_a_timer_gives_back_its_key():
    world = rx.testing.World(rx.App("hello", [air.hello], manifest=air.HELLO))
    world.send(air.HelloStart(1_000, "greeting"))
    (intent,) = world.open()
    assert intent.params == {"deliver_at_ns": intent.due_ns, "key": "greeting"}
    world.advance("1s")
    assert world.state(air.hello) == air.Hello("greeting")
    world.assert_replays()


@pytest.mark.parametrize(("version", "key"), [(1, "the ref"), (2, None)])
def test_a_cell_that_version_1_began_is_given_the_ref_for_a_key(version, key):
    @rx.workflow("demo/Old@1", state=air.Hello, events=[air.HelloStart], effects=[rx.timer])
    def old(state, event, ctx):
        if isinstance(event, air.HelloStart):
            return rx.Output(air.Hello(), effects=[rx.timer(ctx.now_ns, ref="the ref")])
        return rx.Output(air.Hello(event.value.key))

    app, machine = rx.App("x", [old]), ReactiveMachine()
    machine.attach(app)
    driver = Driver(machine, app.definition("demo/Old@1").body)
    first = {"schema": "demo/TimerStart@1", "value": {"after_ns": 1, "key": "k"}}
    driver.feed(Started(input=first, seed=b"seed", machine=version))
    driver.ok(driver.open()[0])
    assert driver.state == {"fired": key}
    driver.assert_replays()


@pytest.mark.parametrize("statuses", [(200, 201), (200, 409, 200), (402,), (200, 500, 503)])
def test_a_saga_gives_back_what_it_took(statuses):
    world = rx.testing.World(rx.App("saga", [air.saga], manifest=air.SAGA))
    world.send("demo/SagaEvent@1", {"Start": {"order_id": "o-1", "base": "http://shop"}})
    for status in statuses:
        (intent,) = world.open("sys/http.request@1")
        world.ok(intent, answer(status))
    ends = {(200, 201): "done", (200, 409, 200): "refunded", (402,): "failed", (200, 500, 503): "failed"}
    assert world.state(air.saga, "o-1").pc == ends[statuses]
    assert world.state(air.saga, "o-1").statuses == list(statuses)
    assert world.status(air.saga, "o-1") == "completed"
    world.assert_replays()


def test_an_upgrade_waits_for_the_late_receipt_and_then_runs_the_new_version():
    one = rx.App("fetch", [air.fetching(1)], manifest=air.fetch_air("demo/Fetch_v1_wasm@1"))
    two = rx.App("fetch", [air.fetching(2)], manifest=air.fetch_air("demo/Fetch_v2_wasm@1"))
    world = rx.testing.World(one)
    world.send(air.FetchStart("http://a"))
    world.snapshot()
    number = world.propose(two)
    assert world.shadow(number)["allowlists"] == {"demo/Fetch@1": ["sys/http.request@1"]}
    world.approve(number)
    with pytest.raises(TreadleError) as caught:
        world.apply(number)
    assert caught.value.details["blockers"][0]["intents"] == [world.open()[0].id]
    world = world.reopen()
    world.ok(world.open()[0], answer())
    world.apply(number)
    world.send(air.FetchStart("http://b"))
    world.ok(world.open()[0], answer())
    world.ok(world.open()[0], answer(204))
    assert world.state("demo/Fetch@1") == air.Fetch("http://b", [200, 204])
    world.assert_replays()


def test_retries_back_off_by_timers_that_name_their_attempt():
    world = rx.testing.World(rx.App("retry", [air.retry], manifest=air.RETRY))
    world.send(air.RetryStart("r", "http://a"))
    world.ok(world.open()[0], answer(503))
    assert world.open()[0].params["key"] == "attempt 2"
    world.advance("2s")
    world.error(world.open()[0], "no route")
    assert world.open() != []
    world.advance("3s")
    assert world.open("sys/http.request@1") == []
    world.advance("1s")
    assert [i.idempotency_key for i in world.open()] == ["r:3"]
    world.ok(world.open()[0], answer(200))
    assert world.state(air.retry, "r") == air.Retry("r", "http://a", 3, "done")
    world.assert_replays()


def test_flows_side_by_side_get_their_own_answers_and_approvals():
    world = rx.testing.World(rx.App("flows", [air.flow], manifest=air.FLOW))
    for id in ("a", "b"):
        world.send("demo/FlowEvent@1", {"$tag": "Start", "$value": {"id": id, "url": "http://same"}})
    a, b = world.open()
    assert a.params == b.params
    assert a.id != b.id
    world.send("demo/FlowEvent@1", {"Approve": {"id": "b"}})
    world.ok(b, answer(202))
    assert world.status(air.flow, "b") == "completed"
    assert world.state(air.flow, "a") == air.Flow("a")
    world = world.reopen()
    world.ok(a.id, answer(200))
    world.send(air.Approval("a"))
    assert world.state(air.flow, "a") == air.Flow("a", 200, True)
    assert world.receipt(a.id, "ok", answer()) == "stale"
    world.assert_replays()
