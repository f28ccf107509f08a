"""Odd answers of models, tools and children to an agent: the node fails over them with words of ours, or goes on; the run
can be shown, and decides the same again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.probes.odd import DEADLINE_S, ODD
from tests.probes.odd import MARKS as ANYWHERE

from treadle import Engine
from treadle.agent import Skill
from treadle.performers.agent.api import (
    AskReply,
    AskRequest,
    ChooseReply,
    ChooseRequest,
    TurnReply,
    TurnRequest,
)
from treadle.testing import assert_replays

A = "name: A, instruction: go, skills: [t], max_turns: 3"
B = "name: B, instruction: go, requires: {output_required: [input.never], on_fail: skip}"
FLOWS = {
    "plain": f"nodes: {{a: {{{A}}}}}\nedges: []",
    "judged": f"nodes: {{a: {{{A}, eval: [{{name: j, kind: judge, rubric: good}}]}}}}\nedges: []",
    "routed": f"nodes:\n  a: {{{A}}}\n  b: {{{B}}}\n  c: {{{B}}}\n"
    "edges: [{from: a, to: b, when: so}, {from: a, to: c, when: otherwise}]",
}
ECHO = "dialect: process\nname: echo\nversion: '1'\nsteps: [{complete: {$: start}}]\n"
Script = dict[str, Any]
ENDS = ("NODE_FAILED", "ROUTE_FAILED")
# Nor a mistake of ours over what an answer is.
MARKS = (*ANYWHERE, "AttributeError", "TypeError", "has no attribute")


class Model:
    """A provider that answers as the case at hand says."""

    default_model = small_model = "m"
    keeps_history = True

    def __init__(self, script: Script) -> None:
        self.script = script

    async def turn(self, request: TurnRequest) -> Any:
        answer: Callable[[int], Any] = self.script.get("turn", lambda turn: TurnReply(data={}))
        return answer(request.turn)

    async def choose(self, request: ChooseRequest) -> Any:
        return self.script.get("choose", ChooseReply(choice="b"))

    async def ask(self, request: AskRequest) -> Any:
        return self.script.get("ask", AskReply(text="yes"))

    async def close(self) -> None:
        """Nothing is open."""


def _calls(calls: Any, **more: Any) -> Script:
    return {"turn": lambda turn: TurnReply(calls=calls, **more) if turn == 1 else TurnReply(data={})}


def _call(**call: Any) -> Script:
    return _calls([{"id": "1", "tool": "give", "input": {}, **call}])


def _always(reply: Any) -> Script:
    return {"turn": lambda turn: reply}


CASES: dict[str, Callable[[Any], Script]] = {
    "an answer": _always,
    "data": lambda v: _always(TurnReply(data=v)),
    "a field of data": lambda v: _always(TurnReply(data={"x": v})),
    "an error of its own": lambda v: _always(TurnReply(status="failed", data={"error": v})),
    "a status": lambda v: _always(TurnReply(status=v, data={})),
    "text": lambda v: _always(TurnReply(text=v, data={})),
    "usage": lambda v: _always(TurnReply(usage=v, data={})),
    "tokens": lambda v: _always(TurnReply(usage={"input_tokens": v, "output_tokens": v, "usd": v}, data={})),
    "its own form": lambda v: _calls([{"id": "1", "tool": "give", "input": {}}], native=v),
    "calls": _calls,
    "a call": lambda v: _calls([v]),
    "the tool of a call": lambda v: _call(tool=v),
    "the id of a call": lambda v: _call(id=v),
    "the input of a call": lambda v: _call(input=v),
    "what a tool gives": lambda v: {**_call(), "gives": v},
    "what a tool reports": lambda v: {**_call(), "reports": v},
    "a choice": lambda v: {"choose": ChooseReply(choice=v)},
    "an answer to a choice": lambda v: {"choose": v},
    "a judgement": lambda v: {"ask": AskReply(text=v)},
    "an answer to a judge": lambda v: {"ask": v},
}


class House:
    """An engine, the folder of its flows, and what the tools of its runs do."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.scripts: dict[str, Script] = {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "echo.yaml").write_text(ECHO)
    for name, text in FLOWS.items():
        (folder / f"{name}.yaml").write_text(f"id: {name}\nname: {name}\nentry: a\n{text}\n")
    skill = Skill("t", name="T", description="t")

    @skill.tool("give", description="g", input_schema={"type": "object"}, idempotent=True)
    async def give(input: dict[str, Any], ctx: Any) -> Any:
        script = found.scripts[ctx.run_id]
        if "reports" in script:
            ctx.progress(script["reports"])
        return script.get("gives")

    engine = Engine(f"sqlite:///{folder / 't.db'}")
    found = House(engine, folder)
    engine.register(skill)
    engine.deploy(folder)
    async with engine:
        yield found
        await assert_replays(engine)
        assert (await engine.doctor(deep=True))["ok"]


async def _odd(house: House, case: str, what: str) -> None:
    id, script = f"{case}, {what}", CASES[case](ODD[what])
    house.scripts[id], house.engine.models[id] = script, Model(script)
    flow = "judged" if "ask" in script else "routed" if "choose" in script else "plain"
    run = await house.engine.start(flow, None, id=id, model=id)
    shown = await run.settled(timeout=DEADLINE_S)
    told = json.dumps([shown, await house.engine.events_after(id, 0)])
    assert shown["status"] in ("completed", "failed"), what
    assert (shown["error"] or {"code": ENDS[0]})["code"] in ENDS, (what, shown["error"])
    assert not [mark for mark in MARKS if mark in told], (what, shown["error"])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES)
async def test_an_odd_answer_costs_its_node_at_most(house: House, case: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(_odd(house, case, what) for what in ODD))


USAGE = {
    "as many tokens as there can be": "{input_tokens: 9223372036854775807, output_tokens: 9223372036854775807}",
    "more dollars than there are": "{usd: 1.7e+308}",
    "less than nothing": "{usd: -1.0, input_tokens: -5}",
    "text": "{usd: much, input_tokens: '5'}",
    "a list": "[1]",
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("usage", USAGE)
async def test_what_a_child_says_it_has_cost_is_a_number_that_can_be_kept(house: House, usage: str) -> None:
    """A result may look like that of an agent, whoever made it: what its parent adds up stays a number."""
    name = usage.replace(" ", "-")
    nodes = "\n".join(
        f"  n{n}: {{name: N, run: {{workflow: echo, input: {{trace: {{usage: {USAGE[usage]}}}}}}}}}"
        for n in range(4)
    )
    edges = ", ".join(f"{{from: n{n}, to: n{n + 1}}}" for n in range(3))
    file = house.folder / f"{name}.yaml"
    file.write_text(f"id: {name}\nname: {name}\nentry: n0\nnodes:\n{nodes}\nedges: [{edges}]\n")
    run = await house.engine.start(house.engine.load(file)[0], None, id=name)
    assert (await run.settled(timeout=DEADLINE_S))["status"] == "completed"
    assert (await house.engine.replay(name))["equal"]
