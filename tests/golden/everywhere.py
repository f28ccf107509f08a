"""A store with runs of every dialect, whose errors quote Python where they can; and its replay.

    python tests/golden/everywhere.py make FILE.db
    python tests/golden/everywhere.py replay FILE.db

One Python makes it, others replay it (`test_pythons.py`): what one decided, all decide.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle import flow as durable
from treadle import reactive as rx
from treadle.kernel.errors import TreadleError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRIAGE = EXAMPLES / "agent" / "triage"
PATIENCE_S = 120


@rx.schema("everywhere/Go@1")
@dataclass(frozen=True, slots=True)
class Go:
    name: str


@rx.schema("everywhere/State@1")
@dataclass(frozen=True, slots=True)
class State:
    names: tuple[str, ...] = ()


work = rx.effect("everywhere/work@1", params=Go, receipt=Go)


@work.executor
async def do_work(call: rx.Call[Go]) -> Go:
    return call.params


@rx.workflow("everywhere/flow@1", state=State, events=[Go], key="name", effects=[work])
def flow(state: State | None, event: Any) -> rx.Output[State]:
    if isinstance(event, rx.Receipt):
        nothing: Any = None
        nothing.missing  # noqa: B018  # what Python says of it differs from version to version
    return rx.Output(State((event.name,)), effects=[work(Go(event.name))])


app = rx.App("everywhere", [flow])


@durable.step
def halves(number: int) -> float:
    return number / 2


@durable.step
def fails(number: int) -> int:
    return number + None  # type: ignore[operator]


@durable.workflow(version="1")
async def function(ctx: durable.Context, count: int) -> dict[str, Any]:
    """Steps side by side, a failure that is caught, chance and time; with an even number it fails itself."""
    found = await durable.gather(*(halves(number) for number in range(count)))
    ctx.state["sum"] = sum(found)
    try:
        await fails(count)
    except durable.StepFailed:
        ctx.state["caught"] = True
    await ctx.sleep(0.01)
    if count % 2 == 0:
        raise ValueError(f"{count} is even: {nothing_of(count)}")
    return {"sum": sum(found), "dice": ctx.random.randint(1, 6), "year": ctx.now().year > 2000}


def nothing_of(count: int) -> int:
    return count - count


PLAYBOOKS = {
    "values": """
        {"x": "{{ {'a': [1.5, none, 'é']} }}", "y": "{{ 7 / 2 }}", "z": "{{ [3, 1, 2] | sort | join('-') }}"}
    """,
    "type": "\"{{ 1 + 'a' }}\"",
    "zero": '"{{ 1 / 0 }}"',
    "key": "\"{{ {'a': 1}['b'].c + 1 }}\"",
    "json": "\"{{ 'nope' | fromjson }}\"",
    "date": "\"{{ 'nope' | int('x') }}\"",
}
PROCESS = """
dialect: process
name: everywhere
steps:
  - set: {state.total: {$: start.count * 2}}
  - if: {$: state.total > 3}
    then: [{complete: {total: {$: state.total / 3}}}]
    else: [{fail: {$: state.total.missing.name + 1}}]
"""


async def make(path: str) -> None:
    folder = Path(path).parent
    engine = Engine(f"sqlite:///{path}")
    engine.deploy(app)
    async with engine:
        runs = []
        for name, result in PLAYBOOKS.items():
            file = folder / f"{name}.yaml"
            step = f"{{step: a, tool: {{kind: noop, result: {result.strip()}}}}}"
            file.write_text(f"metadata: {{name: {name}}}\nworkflow:\n  - {step}\n", "utf-8")
            runs.append(await engine.start(engine.load(str(file))[0]))
        process = folder / "process.yaml"
        process.write_text(PROCESS, "utf-8")
        runs += [await engine.start(engine.load(str(process))[0], {"count": count}) for count in (1, 5)]
        runs += [await engine.start(function, count) for count in (3, 4)]
        model = f"scripted:{TRIAGE / 'script.json'}"
        runs.append(await engine.start(engine.load(str(TRIAGE / "flow.yaml"))[0], model=model))
        await engine.publish(Go("a"))
        cell = await engine.cell(flow, "a")
        assert cell is not None
        for run in (*runs, cell):
            try:
                await run.result(timeout=PATIENCE_S)
            except TreadleError:
                continue  # some are meant to fail


async def replay(path: str) -> dict[str, Any]:
    """What came of each run, and of deciding it again."""
    engine = Engine(f"sqlite:///{path}", work=False)
    for file in sorted((EXAMPLES / "reactive").glob("*.py")):
        engine.deploy(str(file))
    engine.deploy(app)
    engine.deploy(function)
    async with engine:
        rows = await engine.list(limit=1000)
        found = {row["id"]: await engine.replay(row["id"]) for row in rows}
    return {
        "python": sys.version.split()[0],
        "dialects": sorted({row["dialect"] for row in rows}),
        "failed": sum(row["status"] == "failed" for row in rows),
        "equal": sum(answer["equal"] is True for answer in found.values()),
        "differs": {run: answer for run, answer in found.items() if answer["equal"] is not True},
    }


if __name__ == "__main__":
    if sys.argv[1] == "make":
        asyncio.run(make(sys.argv[2]))
    else:
        print(json.dumps(asyncio.run(replay(sys.argv[2])), default=str))
