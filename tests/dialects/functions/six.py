"""Six workflows, with children of every dialect: what test_boundaries.py crashes at each of their commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from treadle import flow
from treadle import reactive as rx

# Every call of a step, by its name and arguments.
CALLS: Counter[str] = Counter()


@flow.step(name="six.do", retry={"attempts": 2, "delay": "3s", "on": "Busy"})
async def do(what: str) -> str:
    CALLS[f"do {what} {flow.current().attempt}"] += 1
    if what.startswith("bad"):
        raise ValueError(what)
    if what.startswith("busy") and flow.current().attempt == 1:
        raise Busy(what)
    return what.upper()


@flow.step(name="six.undo")
def undo(what: str) -> None:
    CALLS[f"undo {what} 1"] += 1


class Busy(Exception):
    """Goes by."""


@flow.workflow(name="six.saga")
async def saga(ctx: flow.Context) -> None:
    for what in ("a", "busy", "bad"):
        ctx.state["at"] = what
        ctx.compensate(undo, await do(what))


@flow.workflow(name="six.many")
async def many(ctx: flow.Context) -> list[Any]:
    found = await flow.gather(do("x"), do("busy y"), flow.race(do("z"), ctx.sleep("1h")))
    ctx.event("gathered", n=len(found))
    raced = await flow.race(slow=ctx.sleep("2h"), quick=ctx.sleep("1m"))
    return [found, str(ctx.uuid()), raced]


@flow.workflow(name="six.signals")
async def signals(ctx: flow.Context) -> list[Any]:
    found: list[Any] = [await ctx.signal("one"), await ctx.signal("late", timeout="1h", default="never")]
    async for item in ctx.signals("item", timeout="10m"):
        found.append(await do(item))
        if len(found) == 4:
            break
    return found


@flow.workflow(name="six.human")
async def human(ctx: flow.Context) -> str:
    answer = await ctx.ask("review", roles=["boss"], payload={"n": 1}, timeout="3d")
    again = await ctx.ask("late", roles=["nobody"], timeout="1d", default="nobody")
    return f"{answer['ok']} {again} {await do('h')}"


@flow.workflow(name="six.endless")
async def endless(ctx: flow.Context, n: int) -> int:
    ctx.state["n"] = n
    await do(f"round {n}")
    await ctx.sleep("1h")
    if n < 3:
        ctx.continue_as(n + 1)
    return n


# --- children of every dialect ---


@rx.schema("six/Went@1")
@dataclass(frozen=True, slots=True)
class Went:
    name: str


@rx.schema("six/Trips@1")
@dataclass(frozen=True, slots=True)
class Trips:
    count: int = 0


@rx.workflow("six/trips@1", state=Trips, events=[Went], key="name", effects=[])
def trips(state: Trips | None, event: Went) -> rx.Output[Trips]:
    return rx.Output(Trips((state.count if state else 0) + 1))


app = rx.App("six", [trips])

PLAYBOOK = """
metadata: {name: six_playbook, version: "1"}
workflow:
  - step: count
    tool: {kind: counted, what: "{{ workload.what }}"}
    next: {arcs: [{step: end, when: "{{ event.name == 'step.done' }}"}]}
  - step: end
    tool: {kind: noop}
"""

PROCESS = """
dialect: process
name: six_process
version: 1.0.0
steps:
  - wait: 1h
  - complete: {waited: true}
"""

AGENT = """
id: six_agent
name: One question
entry: ask
edges: []
nodes:
  ask:
    name: Ask
    instruction: Say hello.
"""
SCRIPT = {"run": {"ask": [{"data": {"said": "hello"}}]}}


@flow.workflow(name="six.child")
async def child(ctx: flow.Context, what: str) -> str:
    return await do(what)


@flow.workflow(name="six.parent")
async def parent(ctx: flow.Context) -> list[Any]:
    found: list[Any] = [await ctx.run(child, "c")]
    try:
        await ctx.run(child, "bad c")
    except flow.ChildFailed as error:
        found.append(error.code)
    found.append(await ctx.run("six_playbook", {"what": "p"}) is not None)
    await ctx.run("six_process")
    found.append(await ctx.run("six_agent") is not None)
    await ctx.publish(Went("six"))
    return [*found, await do("end")]


CASES: dict[str, tuple[Any, Any]] = {
    "saga": (saga, None),
    "many": (many, None),
    "signals": (signals, None),
    "human": (human, None),
    "parent": (parent, None),
    "endless": (endless, 1),
}
