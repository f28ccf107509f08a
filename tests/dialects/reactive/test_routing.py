"""Routing, families, manifests (seed §5, §6, §7.3; rules 2, 3, 6, 28, 30, 31, 36)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from reactive_shop import Order, OrderCreated, app, ledger, notes, order

from treadle import reactive as rx
from treadle.kernel.errors import DefinitionError, InputInvalid
from treadle.kernel.values import digest


@rx.schema("t/Ping@1")
@dataclass(frozen=True)
class Ping:
    name: str
    n: int = 0


@rx.schema("t/Pong@1")
@dataclass(frozen=True)
class Pong:
    name: str


@rx.schema("t/Seen@1")
@dataclass(frozen=True)
class Seen:
    events: list[str]


def recorder(name: str, **more: Any) -> rx.Workflow:
    more = {"events": [Ping, Pong], "key": "name", "effects": []} | more

    @rx.workflow(name, state=Seen, **more)
    def step(state, event):
        return rx.Output(Seen([*(state.events if state else []), type(event).__name__]))

    return step


def test_subscriptions_are_derived_in_list_order():
    assert app().manifest["routing"]["subscriptions"] == [
        {"event": "com.acme/OrderCreated@1", "workflow": "com.acme/order@1", "key_field": "order_id"},
        {"event": "com.acme/OrderCancelled@1", "workflow": "com.acme/order@1", "key_field": "order_id"},
        {"event": "com.acme/OrderSettled@1", "workflow": "com.acme/ledger@1"},
        {"event": "com.acme/Booked@1", "workflow": "com.acme/notes@1", "key_field": "order_id"},
    ]


def test_all_matches_fire_in_manifest_order():
    one, two = recorder("t/one@1"), recorder("t/two@1")
    lines = [
        {"event": "t/Ping@1", "workflow": "t/two@1", "key_field": "name"},
        {"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "name"},
    ]
    routed = rx.App("x", [one, two], subscriptions=lines).route("t/Ping@1", {"name": "k", "n": 0})
    assert [(d.workflow, d.key, d.run) for d in routed] == [
        ("t/two@1", "k", "t/two@1/k"),
        ("t/one@1", "k", "t/one@1/k"),
    ]


def test_op_is_accepted_for_workflow():
    lines = [{"event": "t/Ping@1", "op": "t/one@1", "key_field": "name"}]
    assert rx.App("x", [recorder("t/one@1")], subscriptions=lines).manifest["routing"]["subscriptions"] == [
        {"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "name"}
    ]


def test_a_family_subscription_takes_the_family_and_each_bare_arm():
    one = recorder("t/one@1", family="t/OneEvent@1")
    lines = [{"event": "t/OneEvent@1", "workflow": "t/one@1", "key_field": "$value.name"}]
    world = rx.testing.World(rx.App("x", [one], subscriptions=lines))
    world.send("t/OneEvent@1", {"$tag": "Pong", "$value": {"name": "k"}})
    world.send("t/OneEvent@1", {"Ping": {"name": "k", "n": 1}})
    world.send(Ping("k"))
    assert world.state(one, "k") == Seen(["Pong", "Ping", "Ping"])


def test_the_default_family_is_named_after_the_workflow():
    assert recorder("t/one@2").family == "t/oneEvent@2"
    node = rx.App("x", [recorder("t/one@2")]).nodes["t/oneEvent@2"]
    assert node["type"]["variant"] == {"Ping": {"ref": "t/Ping@1"}, "Pong": {"ref": "t/Pong@1"}}
    arms = app().nodes["com.acme/orderEvent@1"]["type"]["variant"]
    assert {ref["ref"] for ref in arms.values()} >= {
        "sys/EffectReceiptEnvelope@1",
        "sys/EffectReceiptRejected@1",
    }


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"event": "t/Ping@1", "workflow": "t/none@1", "key_field": "name"}], "no workflow"),
        ([{"event": "t/Seen@1", "workflow": "t/one@1", "key_field": "name"}], "takes neither"),
        ([{"event": "t/Ping@1", "workflow": "t/one@1"}], "keyed"),
        ([{"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "nope"}], "no field"),
        ([{"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "n"}], "the key is"),
        ([{"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "name", "x": 1}], "takes event"),
        ([{"event": "t/oneEvent@1", "workflow": "t/one@1", "key_field": "name"}], "inside the arm"),
        ([{"event": "t/oneEvent@1", "workflow": "t/one@1", "key_field": "$value.n"}], "n is"),
        ([{"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "name"}] * 2, "twice"),
        (
            [
                {"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "name"},
                {"event": "t/oneEvent@1", "workflow": "t/one@1", "key_field": "$value.name"},
            ],
            "twice",
        ),
    ],
)
def test_bad_subscriptions_are_refused_at_load(lines, says):
    with pytest.raises(DefinitionError, match=says):
        rx.App("x", [recorder("t/one@1")], subscriptions=lines)


def test_an_unkeyed_workflow_is_one_instance_and_takes_no_key_field():
    single = recorder("t/one@1", key=None)
    world = rx.testing.World(rx.App("x", [single]))
    world.send(Ping("a"))
    world.send(Ping("b"))
    assert world.state(single) == Seen(["Ping", "Ping"])
    with pytest.raises(DefinitionError, match="unkeyed"):
        rx.App(
            "x", [single], subscriptions=[{"event": "t/Ping@1", "workflow": "t/one@1", "key_field": "name"}]
        )


def test_effects_must_be_declared_and_may_be_empty():
    with pytest.raises(TypeError, match="effects"):
        rx.workflow("t/x@1", state=Seen, events=[Ping])  # type: ignore[call-arg]
    assert recorder("t/x@1", effects=[]).node("m")["effects_emitted"] == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"key": "nope"}, "no field"),
        ({"key": "n", "events": [Ping, Pong]}, "no field"),
        ({"events": []}, "at least one"),
        ({"events": [Ping, Ping]}, "twice"),
        ({"events": [int]}, "rx.schema"),
        ({"effects": ["payment/charge@1"]}, "effects"),
        ({"determinism": "loose"}, "determinism"),
        ({"family": "nope"}, "family"),
    ],
)
def test_bad_workflows_are_refused_at_decoration(more, says):
    with pytest.raises(DefinitionError, match=says):
        recorder("t/x@1", **more)


def test_a_float_is_no_key():
    @rx.schema("t/Measured@1")
    @dataclass
    class Measured:
        at: float

    with pytest.raises(DefinitionError, match="float"):
        recorder("t/x@1", events=[Measured], key="at")


def test_keys_may_be_nested_and_of_other_types():
    @rx.schema("t/Inner@1")
    @dataclass(frozen=True)
    class Inner:
        id: UUID

    @rx.schema("t/Wrapped@1")
    @dataclass(frozen=True)
    class Wrapped:
        inner: Inner

    flow = recorder("t/x@1", events=[Wrapped], key="inner.id")
    world = rx.testing.World(rx.App("x", [flow]))
    world.send(Wrapped(Inner(UUID(int=7))))
    assert world.cells(flow)[0].key == UUID(int=7)
    assert world.state(flow, UUID(int=7)) == Seen(["Wrapped"])
    assert world.send(Wrapped(Inner(UUID(int=8))))[0].run == f"t/x@1/{UUID(int=8)}"


def test_a_key_that_does_not_match_is_refused():
    world = rx.testing.World(app())
    with pytest.raises(InputInvalid, match="the key is"):
        world.send("com.acme/OrderCreated@1", {"order_id": "a", "amount_cents": 1}, key="b")
    assert world.journal(order) == []


def test_an_event_without_a_subscriber_is_kept_in_the_applications_own_run():
    world = rx.testing.World(rx.App("x", [recorder("t/one@1")], subscriptions=[]))
    assert world.send(Ping("k")) == []
    last = world.journal()[-1]
    assert (last.workflow, last.kind, last.event["schema"]) == ("x", "event", "t/Ping@1")


def test_an_unknown_schema_is_refused():
    with pytest.raises(InputInvalid, match="no schema"):
        rx.testing.World(app()).send("com.acme/Nope@1", {})


# --- manifest ---------------------------------------------------------------------------------------


def test_the_manifest_names_definitions_by_the_digest_of_their_canonical_node():
    shop = app()
    for part in ("schemas", "modules", "workflows", "effects"):
        for ref in shop.manifest[part]:
            assert ref["hash"] == digest(shop.nodes[ref["name"]])
    assert shop.digest == digest(shop.manifest)
    assert shop.manifest["$kind"] == "manifest"
    node = shop.nodes["com.acme/order@1"]
    assert node["effects_emitted"] == ["payment/charge@1", "sys/timer.set@1"]
    assert node["key_schema"] == {"text": {}}
    assert node["state"] == "com.acme/Order@1"
    assert {"module", "entrypoint"} == node["impl"].keys()


def test_digests_do_not_depend_on_who_derives_them_but_on_order_source_and_version():
    assert app().digest == app().digest
    assert rx.App("shop", [ledger, order, notes]).digest != app().digest
    assert (
        rx.App("x", [recorder("t/a@1", version=1)]).digest
        != rx.App("x", [recorder("t/a@1", version=2)]).digest
    )

    def other(state: Any, event: Any) -> rx.Output[Any]:
        return rx.Output(state)

    declared = {"state": Seen, "events": [Ping], "effects": []}
    source = rx.workflow("t/a@1", **declared)(other)
    assert (
        rx.App("x", [source]).digest
        != rx.App("x", [rx.workflow("t/a@1", **declared)(recorder("t/b@1").step)]).digest
    )


def test_a_manifest_written_by_hand_is_accepted_and_its_routing_used():
    written = {
        "$kind": "manifest",
        "air_version": "2",
        "workflows": ["com.acme/order@1", {"name": "com.acme/ledger@1"}, app().manifest["workflows"][2]],
        "routing": {
            "subscriptions": [
                {"event": "com.acme/Booked@1", "op": "com.acme/notes@1", "key_field": "order_id"}
            ]
        },
    }
    shop = rx.App("shop", [order, ledger, notes], manifest=written)
    assert shop.manifest["routing"]["subscriptions"] == [
        {"event": "com.acme/Booked@1", "workflow": "com.acme/notes@1", "key_field": "order_id"}
    ]
    assert rx.App("shop", [order, ledger, notes], manifest=app().manifest).digest == app().digest


def spelled_out(**changes: Any) -> dict[str, Any]:
    node = {**app().nodes["com.acme/order@1"], **changes}
    return {name: value for name, value in node.items() if value is not None}


@pytest.mark.parametrize(
    ("part", "entry", "path"),
    [
        ("workflows", spelled_out(effects_emitted=None), "workflows[0].effects_emitted"),
        ("workflows", spelled_out(effects_emitted=[]), "workflows[0].effects_emitted"),
        ("workflows", spelled_out(impl=None), "workflows[0].impl"),
        ("workflows", spelled_out(state=None), "workflows[0].state"),
        ("workflows", spelled_out(event=None), "workflows[0].event"),
        ("workflows", spelled_out(key_schema={"int": {}}), "workflows[0].key_schema"),
        ("workflows", spelled_out(surprise=1), "workflows[0].surprise"),
        ("workflows", {"name": "com.acme/order@1", "hash": "sha256:" + "0" * 64}, "workflows[0]"),
        ("workflows", "com.acme/nope@1", "workflows[0]"),
        ("effects", "payment.charge", "effects[0]"),
        ("schemas", {"name": "com.acme/Order@1", "what": 1}, "schemas[0]"),
    ],
)
def test_a_manifest_that_disagrees_with_the_code_is_refused(part, entry, path):
    rest = ["com.acme/ledger@1", "com.acme/notes@1"] if part == "workflows" else []
    written = {"$kind": "manifest", part: [entry, *rest], "routing": {"subscriptions": []}}
    with pytest.raises(DefinitionError) as caught:
        rx.App("shop", [order, ledger, notes], manifest=written)
    assert caught.value.code == "MANIFEST_DIFFERS"
    assert path in [problem["path"] for problem in caught.value.details["problems"]]


def test_unknown_fields_of_a_manifest_are_refused():
    with pytest.raises(DefinitionError, match="unknown field"):
        rx.App("shop", [order, ledger, notes], manifest={"$kind": "manifest", "routes": []})


def test_nothing_may_be_defined_under_sys():
    with pytest.raises(DefinitionError):
        rx.effect("sys/mine@1", params=None, receipt=None)


def test_names_of_applications_and_workflows_are_unique():
    with pytest.raises(DefinitionError, match="twice"):
        rx.App("x", [recorder("t/a@1"), recorder("t/a@1")])
    with pytest.raises(DefinitionError, match="name"):
        rx.App("a/b", [])


def test_definitions_are_one_for_each_workflow_and_one_for_the_application():
    found = app().definitions()
    assert [d.name for d in found] == ["shop", "com.acme/order@1", "com.acme/ledger@1", "com.acme/notes@1"]
    assert found[1].body == {"app": "shop", "manifest": app().digest, "workflow": "com.acme/order@1"}


def broken(**change: Any) -> dict[str, Any]:
    return {**app().manifest, **change}


ORDER_NODE = {"$kind": "defworkflow", "name": "com.acme/order@1", "impl": {}}


@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        ([], "$"),
        (broken(air_version="1"), "air_version"),
        (broken(schemas=None), "schemas"),
        (broken(workflows=[5]), "workflows[0]"),
        (broken(workflows=[ORDER_NODE]), "workflows[0].impl"),
        (broken(schemas=[{"$kind": "defschema", "name": "sys/EffectReceiptEnvelope@1"}]), "schemas[0]"),
        (broken(secrets=[{"x": 1}]), "secrets[0]"),
        (broken(secrets=[{"name": 1, "binding_id": "b"}]), "secrets[0]"),
        (broken(routing=[]), "routing"),
        (broken(routing={"subscriptions": {}}), "routing.subscriptions"),
    ],
)
def test_a_manifest_that_breaks_its_own_rules_is_refused(manifest, path):
    with pytest.raises(DefinitionError) as refused:
        rx.App("shop", [order, ledger, notes], manifest=manifest)
    assert refused.value.code == "MANIFEST_DIFFERS"
    assert path in [problem["path"] for problem in refused.value.details["problems"]]


@pytest.mark.parametrize(
    "line",
    [
        "x",
        {"event": "com.acme/OrderCreated@1", "workflow": "com.acme/order@1", "op": "com.acme/notes@1"},
        {"event": "com.acme/OrderCreated@1", "workflow": "com.acme/order@1", "key_field": 5},
        {"event": "com.acme/OrderCreated@1", "workflow": []},
    ],
)
def test_a_subscription_of_the_wrong_form_is_refused(line):
    with pytest.raises(DefinitionError) as refused:
        rx.App("shop", [order, ledger, notes], subscriptions=[line])
    assert refused.value.code == "ROUTING_INVALID"


def test_what_cannot_be_a_workflow_is_refused():
    async def slow(state, event):
        return rx.Output(state)

    def drips(state, event):
        yield rx.Output(state)

    given: dict[str, Any] = {"state": Order, "events": [OrderCreated], "effects": []}
    for name, step, code in (
        ("sys/mine@1", lambda state, event: rx.Output(state), "NAME_RESERVED"),
        ("t/slow@1", slow, "WORKFLOW_INVALID"),
        ("t/drips@1", drips, "WORKFLOW_INVALID"),
    ):
        with pytest.raises(DefinitionError) as refused:
            rx.workflow(name, **given)(step)
        assert refused.value.code == code
