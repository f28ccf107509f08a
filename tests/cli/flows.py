"""Small definitions that the tests of the command line share."""

from __future__ import annotations

ETL = """
metadata: {name: etl}
workload: {day: today}
workflow:
  - step: extract
    tool: {kind: noop}
    next: {arcs: [{step: load}]}
  - step: load
    tool: {kind: noop}
"""

GATED = """
metadata: {name: gated}
workflow:
  - step: gate
    spec: {policy: {admit: {rules: [{when: "{{ ctx.approved }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
    tool: {kind: noop}
"""

FAILING = """
metadata: {name: failing}
workflow:
  - step: boom
    tool: {kind: shell, command: "exit 7"}
"""

PARTIAL = """
metadata: {name: partial}
executor: {spec: {policy: {failure: {mode: best_effort}}}}
workflow:
  - step: begin
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: good}, {step: bad}]}
  - step: good
    tool: {kind: noop}
  - step: bad
    tool: {kind: shell, command: "exit 7"}
"""

BROKEN = """
metadata: {name: broken}
workflow:
  - step: a
    when: "{{ x }}"
    tool: {kind: noop}
    next: {arcs: [{step: nowhere}]}
"""

RENEWAL = """
dialect: process
name: PolicyRenewal
version: 1.2.0
start: {schema: {type: object, required: [policy_id]}}
tasks:
  approve:
    roles: [underwriter]
    payload: {policy: {$: state.policy_id}}
    schema: {type: object, required: [answer]}
steps:
  - set: {state.policy_id: {$: start.policy_id}}
  - reference: {$: start.policy_id}
  - task: approve
  - await: {signal: documents, into: docs}
  - complete: {renewed: {$: "payload.answer"}, docs: {$: result.docs}}
"""

STALLING = """
dialect: process
name: Stalling
steps:
  - call: {transport: http, url: "http://127.0.0.1:9/", into: quote}
  - complete: {total: {$: result.quote.total}}
"""

TIMED = """
dialect: process
name: Timed
steps:
  - wait: 1h
  - complete: {}
"""

TRIAGE = """
id: triage
name: Triage
entry: gather
nodes:
  gather: {name: Gather, instruction: Look around}
  draft: {name: Draft, instruction: Write it}
edges:
  - {from: gather, to: gather, when: more is needed, max_iterations: 3}
  - {from: gather, to: draft, when: enough is found}
"""

SCRIPT = """
{"run": {"gather": [{"data": {"n": 1}, "usage": {"input_tokens": 10, "output_tokens": 5}}, {"data": {"n": 3}}],
         "draft": [{"data": {"text": "hello"}}]},
 "evaluate": {"gather": ["gather", "draft"]}}
"""

SHOP = """
from dataclasses import dataclass, replace
from typing import Literal

from treadle import reactive as rx


@rx.schema("com.acme/OrderCreated@1")
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: str
    cents: int


@rx.schema("com.acme/Order@1")
@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    pc: Literal["charging", "done"] = "charging"


@rx.schema("com.acme/Charge@1")
@dataclass(frozen=True, slots=True)
class Charge:
    cents: int


@rx.schema("com.acme/Charged@1")
@dataclass(frozen=True, slots=True)
class Charged:
    ok: bool


charge = rx.effect("payment/charge@1", params=Charge, receipt=Charged)


@rx.workflow("com.acme/order@1", state=Order, events=[OrderCreated], key="order_id", effects=[charge],
             terminal=lambda o: o.pc == "done")
def order(o, event, ctx):
    match o, event:
        case None, OrderCreated(order_id, cents):
            return rx.Output(Order(order_id), effects=[charge(Charge(cents), ref="charge")])
        case Order(pc="charging"), rx.Receipt(status="ok"):
            return rx.Output(replace(o, pc="done"))
        case _:
            return rx.Output(o)


@charge.executor
async def do_charge(call):
    return Charged(True)


app = rx.App("shop", [order])
"""
