"""Six small machines with manifests written by hand in AIR: a counter, a timer, a saga, an upgrade, retries with
back-off, and flows side by side.

Each manifest has its own module names and arm names, as people write them; the code only has to agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from treadle import reactive as rx

NOUGHT = "sha256:" + "0" * 64
RECEIPT = {"ref": "sys/EffectReceiptEnvelope@1"}


def schema(name: str, type: dict[str, Any]) -> dict[str, Any]:
    return {"$kind": "defschema", "name": name, "type": type}


def module(name: str) -> dict[str, Any]:
    artifact = {"kind": "wasm_module", "hash": NOUGHT}
    return {"$kind": "defmodule", "name": name, "runtime": {"kind": "wasm", "artifact": artifact}}


def workflow(
    name: str, module: str, *, state: str, event: str, emits: list[str], **more: Any
) -> dict[str, Any]:
    return {
        "$kind": "defworkflow",
        "name": name,
        "state": state,
        "event": event,
        "context": "sys/WorkflowContext@1",
        "effects_emitted": emits,
        "impl": {"module": module, "entrypoint": "step"},
        **more,
    }


def air(
    nodes: list[dict[str, Any]], *lines: dict[str, Any], effects: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """A manifest that names its definitions, with the definitions beside it."""

    def named(kind: str) -> list[dict[str, str]]:
        return [{"name": node["name"]} for node in nodes if node["$kind"] == kind]

    manifest = {
        "$kind": "manifest",
        "air_version": "2",
        "schemas": [
            *named("defschema"),
            *({"name": "sys/HttpRequestParams@1"} for e in effects if "http" in e),
        ],
        "modules": named("defmodule"),
        "workflows": named("defworkflow"),
        "effects": [{"name": name} for name in effects],
        "routing": {"subscriptions": list(lines)},
    }
    return [manifest, *nodes]


TEXT, NAT, INT, UNIT = {"text": {}}, {"nat": {}}, {"int": {}}, {"unit": {}}


# --- counter: events of a family, one of them without a word -------------------------------------------------


@rx.schema("demo/CounterPc@1")
class Pc(Enum):
    Idle = 0
    Counting = 1
    Done = 2


@rx.schema("demo/CounterState@1")
@dataclass(frozen=True)
class Counter:
    pc: Pc
    remaining: rx.Nat


@rx.schema("demo/CounterStart@1")
@dataclass(frozen=True)
class CounterStart:
    target: rx.Nat


@rx.schema("demo/CounterTick@1")
@dataclass(frozen=True)
class CounterTick:
    pass


@rx.workflow("demo/CounterSM@1", state=Counter, events=[CounterStart, CounterTick], effects=[])
def counter(state, event, ctx):
    match state, event:
        case _, CounterStart(target):
            return rx.Output(Counter(Pc.Counting if target else Pc.Done, target))
        case Counter(Pc.Counting, left), CounterTick():
            return rx.Output(Counter(Pc.Counting if left > 1 else Pc.Done, left - 1))
        case _:
            return rx.Output(state)


COUNTER = air(
    [
        schema("demo/CounterPc@1", {"variant": {"Idle": UNIT, "Counting": UNIT, "Done": UNIT}}),
        schema("demo/CounterState@1", {"record": {"pc": {"ref": "demo/CounterPc@1"}, "remaining": NAT}}),
        schema("demo/CounterStart@1", {"record": {"target": NAT}}),
        schema("demo/CounterTick@1", UNIT),
        schema(
            "demo/CounterEvent@1",
            {"variant": {"Start": {"ref": "demo/CounterStart@1"}, "Tick": {"ref": "demo/CounterTick@1"}}},
        ),
        module("demo/CounterSM_wasm@1"),
        workflow(
            "demo/CounterSM@1",
            "demo/CounterSM_wasm@1",
            state="demo/CounterState@1",
            event="demo/CounterEvent@1",
            emits=[],
        ),
    ],
    {"event": "demo/CounterEvent@1", "workflow": "demo/CounterSM@1"},
)


# --- hello timer: the key goes out and comes back ------------------------------------------------------------


@rx.schema("demo/TimerState@1")
@dataclass(frozen=True)
class Hello:
    fired: str | None = None


@rx.schema("demo/TimerStart@1")
@dataclass(frozen=True)
class HelloStart:
    after_ns: rx.Nat
    key: str


@rx.workflow("demo/TimerSM@1", state=Hello, events=[HelloStart], effects=["sys/timer.set@1"])
def hello(state, event, ctx):
    match event:
        case HelloStart(after_ns, key):
            return rx.Output(Hello(), effects=[rx.timer(ctx.now_ns + after_ns, ref="t", key=key)])
        case rx.Receipt(status="ok", value=rx.TimerFired(key=key)):
            return rx.Output(Hello(key))
        case _:
            return rx.Output(state)


HELLO = air(
    [
        schema("demo/TimerState@1", {"record": {"fired": {"option": TEXT}}}),
        schema("demo/TimerStart@1", {"record": {"after_ns": NAT, "key": TEXT}}),
        schema("demo/TimerEvent@1", {"variant": {"Start": {"ref": "demo/TimerStart@1"}, "Receipt": RECEIPT}}),
        module("demo/TimerSM_wasm@1"),
        workflow(
            "demo/TimerSM@1",
            "demo/TimerSM_wasm@1",
            state="demo/TimerState@1",
            event="demo/TimerEvent@1",
            emits=["sys/timer.set@1"],
        ),
    ],
    {"event": "demo/TimerStart@1", "workflow": "demo/TimerSM@1"},
    effects=("sys/timer.set@1",),
)


# --- saga: charge, reserve, and give the money back if nothing can be reserved ------------------------------


@rx.schema("demo/SagaState@1")
@dataclass(frozen=True)
class Saga:
    order_id: str
    base: str
    pc: str = "charging"
    statuses: list[int] = field(default_factory=list)


@rx.schema("demo/SagaStart@1")
@dataclass(frozen=True)
class SagaStart:
    order_id: str
    base: str


NEXT = {
    "charging": ("reserving", "failed"),
    "reserving": ("done", "refunding"),
    "refunding": ("refunded", "failed"),
}


@rx.workflow(
    "demo/Saga@1",
    state=Saga,
    events=[SagaStart],
    key="order_id",
    effects=[rx.http_request],
    terminal=lambda s: s.pc in ("done", "refunded", "failed"),
)
def saga(state, event, ctx):
    match event:
        case SagaStart(order_id, base) if state is None:
            state = Saga(order_id, base)
            return rx.Output(state, effects=[saga_call(state)])
        case rx.Receipt(ref=ref, status="ok", value=rx.HttpAnswer(status=status)) if ref == state.pc:
            well, ill = NEXT[state.pc]
            state = replace(state, pc=well if status < 400 else ill, statuses=[*state.statuses, status])
            return rx.Output(state, effects=[saga_call(state)] if state.pc in NEXT else [])
        case rx.Receipt(ref=ref) if ref == state.pc:
            return rx.Output(replace(state, pc="failed"))
        case _:
            return rx.Output(state)


def saga_call(state: Saga) -> rx.Emission:
    headers = {"x-order": state.order_id}
    return rx.http_request(rx.HttpRequest("POST", f"{state.base}/{state.pc}", headers), ref=state.pc)


SAGA = air(
    [
        schema(
            "demo/SagaState@1",
            {"record": {"order_id": TEXT, "base": TEXT, "pc": TEXT, "statuses": {"list": INT}}},
        ),
        schema("demo/SagaStart@1", {"record": {"order_id": TEXT, "base": TEXT}}),
        schema("demo/OrderId@1", TEXT),
        schema("demo/SagaEvent@1", {"variant": {"Start": {"ref": "demo/SagaStart@1"}, "Receipt": RECEIPT}}),
        module("demo/Saga_wasm@1"),
        workflow(
            "demo/Saga@1",
            "demo/Saga_wasm@1",
            state="demo/SagaState@1",
            event="demo/SagaEvent@1",
            emits=["sys/http.request@1"],
            key_schema="demo/OrderId@1",
        ),
    ],
    {"event": "demo/SagaEvent@1", "workflow": "demo/Saga@1", "key_field": "$value.order_id"},
    effects=("sys/http.request@1",),
)


# --- safe upgrade: the second version asks twice ------------------------------------------------------------


@rx.schema("demo/FetchState@1")
@dataclass(frozen=True)
class Fetch:
    url: str
    done: list[int] = field(default_factory=list)


@rx.schema("demo/FetchStart@1")
@dataclass(frozen=True)
class FetchStart:
    url: str


def fetching(times: int) -> rx.Workflow:
    def fetch(state, event, ctx):
        match event:
            case FetchStart(url):
                return rx.Output(Fetch(url), effects=[rx.http_request(rx.HttpRequest("GET", url), ref="0")])
            case rx.Receipt(status="ok", value=answer):
                state = replace(state, done=[*state.done, answer.status])
                more = len(state.done) < times
                again = rx.http_request(rx.HttpRequest("GET", state.url), ref=str(len(state.done)))
                return rx.Output(state, effects=[again] if more else [])
            case _:
                return rx.Output(state)

    declared: dict[str, Any] = {"state": Fetch, "events": [FetchStart], "effects": [rx.http_request]}
    return rx.workflow("demo/Fetch@1", version=times, **declared)(fetch)


def fetch_air(module_name: str) -> list[dict[str, Any]]:
    nodes = [
        schema("demo/FetchState@1", {"record": {"url": TEXT, "done": {"list": INT}}}),
        schema("demo/FetchStart@1", {"record": {"url": TEXT}}),
        schema("demo/FetchEvent@1", {"variant": {"Start": {"ref": "demo/FetchStart@1"}, "Receipt": RECEIPT}}),
        module(module_name),
        workflow(
            "demo/Fetch@1",
            module_name,
            state="demo/FetchState@1",
            event="demo/FetchEvent@1",
            emits=["sys/http.request@1"],
        ),
    ]
    line = {"event": "demo/FetchEvent@1", "workflow": "demo/Fetch@1"}
    return air(nodes, line, effects=("sys/http.request@1",))


# --- retries with back-off: the attempt is state, the pause is a timer --------------------------------------


@rx.schema("demo/RetryState@1")
@dataclass(frozen=True)
class Retry:
    id: str
    url: str
    attempt: rx.Nat = 1
    pc: str = "asking"


@rx.schema("demo/RetryStart@1")
@dataclass(frozen=True)
class RetryStart:
    id: str
    url: str


@rx.workflow(
    "demo/Retry@1",
    state=Retry,
    events=[RetryStart],
    key="id",
    effects=[rx.http_request, rx.timer],
    terminal=lambda s: s.pc in ("done", "failed"),
)
def retry(state, event, ctx):
    match event:
        case RetryStart(id, url) if state is None:
            return rx.Output(Retry(id, url), effects=[ask(Retry(id, url))])
        case rx.Receipt(effect="sys/http.request@1", status="ok", value=rx.HttpAnswer(status=200)):
            return rx.Output(replace(state, pc="done"))
        case rx.Receipt(effect="sys/http.request@1") if state.attempt == 3:
            return rx.Output(replace(state, pc="failed"))
        case rx.Receipt(effect="sys/http.request@1"):
            wait = rx.timer(ctx.now_ns + 10**9 * 2**state.attempt, key=f"attempt {state.attempt + 1}")
            return rx.Output(replace(state, pc="waiting"), effects=[wait])
        case rx.Receipt(value=rx.TimerFired(key=key)) if key == f"attempt {state.attempt + 1}":
            state = replace(state, pc="asking", attempt=state.attempt + 1)
            return rx.Output(state, effects=[ask(state)])
        case _:
            return rx.Output(state)


def ask(state: Retry) -> rx.Emission:
    return rx.http_request(rx.HttpRequest("GET", state.url), idempotency_key=f"{state.id}:{state.attempt}")


RETRY = air(
    [
        schema("demo/RetryState@1", {"record": {"id": TEXT, "url": TEXT, "attempt": NAT, "pc": TEXT}}),
        schema("demo/RetryStart@1", {"record": {"id": TEXT, "url": TEXT}}),
        schema("demo/RetryEvent@1", {"variant": {"Work": {"ref": "demo/RetryStart@1"}, "Receipt": RECEIPT}}),
        module("demo/Retry_wasm@1"),
        workflow(
            "demo/Retry@1",
            "demo/Retry_wasm@1",
            state="demo/RetryState@1",
            event="demo/RetryEvent@1",
            emits=["sys/http.request@1", "sys/timer.set@1"],
            key_schema={"text": {}},
        ),
    ],
    {"event": "demo/RetryStart@1", "op": "demo/Retry@1", "key_field": "id"},
    effects=("sys/http.request@1", "sys/timer.set@1"),
)


# --- flows side by side: each has its own request and its own approval --------------------------------------


@rx.schema("demo/FlowState@1")
@dataclass(frozen=True)
class Flow:
    id: str
    status: rx.Nat = 0
    approved: bool = False


@rx.schema("demo/FlowStart@1")
@dataclass(frozen=True)
class FlowStart:
    id: str
    url: str


@rx.schema("demo/Approval@1")
@dataclass(frozen=True)
class Approval:
    id: str


@rx.workflow(
    "demo/FlowTracker@1",
    state=Flow,
    events=[FlowStart, Approval],
    key="id",
    effects=[rx.http_request],
    terminal=lambda s: s.approved and s.status > 0,
)
def flow(state, event, ctx):
    match event:
        case FlowStart(id, url) if state is None:
            return rx.Output(Flow(id), effects=[rx.http_request(rx.HttpRequest("GET", url), ref="get")])
        case Approval() if state is not None:
            return rx.Output(replace(state, approved=True))
        case rx.Receipt(ref="get", status="ok", value=answer):
            return rx.Output(replace(state, status=answer.status))
        case _:
            return rx.Output(state)


FLOW = air(
    [
        schema("demo/FlowState@1", {"record": {"id": TEXT, "status": NAT, "approved": {"bool": {}}}}),
        schema("demo/FlowStart@1", {"record": {"id": TEXT, "url": TEXT}}),
        schema("demo/Approval@1", {"record": {"id": TEXT}}),
        schema(
            "demo/FlowEvent@1",
            {
                "variant": {
                    "Start": {"ref": "demo/FlowStart@1"},
                    "Approve": {"ref": "demo/Approval@1"},
                    "Receipt": RECEIPT,
                }
            },
        ),
        module("demo/FlowTracker_wasm@1"),
        workflow(
            "demo/FlowTracker@1",
            "demo/FlowTracker_wasm@1",
            state="demo/FlowState@1",
            event="demo/FlowEvent@1",
            emits=["sys/http.request@1"],
            key_schema={"text": {}},
        ),
    ],
    {"event": "demo/FlowEvent@1", "workflow": "demo/FlowTracker@1", "key_field": "$value.id"},
    effects=("sys/http.request@1",),
)
