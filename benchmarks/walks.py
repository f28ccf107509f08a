"""How far data walks through the house: modules entered, changes of module, of thread, encodes and decodes.

    python benchmarks/walks.py
    python benchmarks/walks.py --where --only guest

Counts, not times: only changes of thread depend on the machine, so each walk is taken several times and the median given. A
walk is taken once before it is counted, so that what is loaded once is loaded. Calls are seen by a profiler on every thread; encodes and decodes are calls of
`treadle.kernel.values`. A change of thread is one between two calls of ours that follow each other in time.
`--where` lists, for the last walk of each kind, the modules entered with what was called there, every encode and decode with who asked for it, and every change of thread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Hit, app
from measures import make_engine, steps

PATIENCE_S = 60.0
TIMES = 9
CHAIN = 200
ENCODES = {"encode", "digest", "copied"}
DECODES = {"decode", "decode_trusted", "copied"}
VALUES = "treadle.kernel.values"
PLAYBOOK = """
metadata: {name: walk, path: walk}
workload: {}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'value': 1}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""
STEPS = """
metadata: {name: chain, path: chain}
workload: {steps: 1}
workflow:
  - step: s
    tool: {kind: count, n: "{{ args.n | default(0) }}"}
    next: {arcs: [{step: s, when: "{{ event.result < workload.steps }}", args: {n: "{{ event.result }}"}}]}
"""
TASK = """
dialect: process
name: approval
version: 1.0.0
tasks: {approve: {roles: [clerk]}}
steps:
  - task: approve
"""
TRIAGE = Path(__file__).resolve().parents[1] / "examples" / "agent" / "triage"


class Call(NamedTuple):
    """One call of ours: of what, on which thread, and for encodes and decodes who asked."""

    module: str
    name: str
    thread: int
    asked_by: str = ""


class Walk:
    """What calls of ours happened while it lasted, in order, on all threads."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._taken: list[dict[str, int]] = []
        self._last: list[Call] = []

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__") or ""
            if module.startswith("treadle."):
                asked_by = asker(frame) if module == VALUES else ""
                self._calls.append(Call(module, frame.f_code.co_name, threading.get_ident(), asked_by))

    def begin(self) -> None:
        self._calls.clear()
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def modules(self) -> set[str]:
        """Where it has been."""
        return {call.module for call in self._last}

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        # A copy: other threads go on telling.
        self._last = list(self._calls)
        self._taken.append(self._counts())

    def counts(self) -> dict[str, float]:
        """Medians; the first time, what is loaded once was loaded."""
        return {key: statistics.median(one[key] for one in self._taken[1:]) for key in self._taken[0]}

    def least(self) -> dict[str, int]:
        """Of each the least that was seen: where the machine is busy, threads change more often, and what waits looks again."""
        return {key: min(one[key] for one in self._taken[1:]) for key in self._taken[0]}

    def where(self) -> Iterator[str]:
        """The last time, in words."""
        calls = self._last
        rooms: dict[str, Counter[str]] = {}
        for call in calls:
            rooms.setdefault(call.module, Counter())[call.name] += 1
        yield f"modules ({len(rooms)}), in the order they were entered:"
        for module, names in rooms.items():
            yield f"  {module}: " + ", ".join(f"{name} {count}" for name, count in names.items())
        yield "encodes and decodes, with who asked:"
        asked = Counter((call.name, call.asked_by) for call in calls if is_codec(call))
        for (name, asked_by), count in asked.items():
            yield f"  {count} {name} by {asked_by}"
        yield "changes of thread:"
        for a, b in pairwise(calls):
            if a.thread != b.thread:
                yield f"  {a.thread % 10_000}: {a.module}.{a.name} -> {b.thread % 10_000}: {b.module}.{b.name}"

    def _counts(self) -> dict[str, int]:
        calls = self._last
        values = [call.name for call in calls if call.module == VALUES]
        return {
            "modules": len({call.module for call in calls}),
            "transitions": sum(a.module != b.module for a, b in pairwise(calls)),
            "threads": sum(a.thread != b.thread for a, b in pairwise(calls)),
            "calls": len(calls),
            "encodes": sum(name in ENCODES for name in values),
            "decodes": sum(name in DECODES for name in values),
        }


def is_codec(call: Call) -> bool:
    return call.module == VALUES and call.name in ENCODES | DECODES


def asker(frame: FrameType) -> str:
    """Who called, from the first frame outside the values on, with the one before it."""
    told = []
    back = frame.f_back
    while back is not None and len(told) < 2:
        module = back.f_globals.get("__name__") or ""
        if module != VALUES:
            told.append(f"{module}.{back.f_code.co_name}:{back.f_lineno}")
        back = back.f_back
    return " < ".join(told)


async def by_a_guest(folder: Path, walk: Walk) -> None:
    """A task is completed through an engine beside that of the owner."""
    from treadle import Engine

    file = folder / "approval.yaml"
    file.write_text(TASK)
    url = f"sqlite:///{folder}/guest.db"
    owner = Engine(url)
    owner.deploy(str(file))
    async with owner, Engine(url) as guest:
        for _ in range(TIMES + 1):
            run = await owner.start("approval")
            while not (tasks := await owner.tasks(run=run.id)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await owner.task_claim(tasks[0]["id"], user="ann", roles=["clerk"])
            walk.begin()
            await guest.task_complete(tasks[0]["id"], {}, user="ann", roles=["clerk"])
            walk.end()
            await run.result(PATIENCE_S)


async def to_a_cell(folder: Path, walk: Walk) -> None:
    """An event for one cell, until it is durable."""
    from treadle import Engine

    engine = Engine(f"sqlite:///{folder}/cells.db")
    engine.deploy(app)
    async with engine:
        for _ in range(TIMES + 1):
            walk.begin()
            await engine.publish(Hit(1))
            walk.end()


async def triage(folder: Path, walk: Walk) -> None:
    """An agent's example, from start to result."""
    from treadle import Engine

    async with Engine(f"sqlite:///{folder}/triage.db") as engine:
        engine.deploy(str(TRIAGE / "flow.yaml"))
        for _ in range(TIMES + 1):
            walk.begin()
            run = await engine.start("triage", model=f"scripted:{TRIAGE / 'script.json'}", offline=True)
            await run.result(PATIENCE_S)
            walk.end()


async def counted(
    folder: Path, name: str, journey: Callable[[Any], Awaitable[None]], walk: Walk | None = None
) -> dict[str, float]:
    """An engine of the toy dialect, on which a journey is taken. Threads see the profiler from their start on, so it is made
    under it."""
    walk = Walk() if walk is None else walk
    walk.begin()
    async with make_engine(folder, name, lane="thread") as engine:
        for _ in range(TIMES + 1):
            walk.begin()
            await journey(engine)
            walk.end()
    return walk.counts()


def journeys(folder: Path) -> list[tuple[str, Callable[[Walk], Awaitable[object]], int]]:
    """What each is called, how it is taken, and how many steps it has."""
    from treadle.testing.toy import TOY

    async def toy(engine: Any, runs: int, count: int) -> None:
        started = await asyncio.gather(*(engine.start(TOY, steps(count)) for _ in range(runs)))
        await asyncio.gather(*(run.result(PATIENCE_S) for run in started))

    async def playbook(engine: Any, name: str, text: str, given: dict[str, Any]) -> None:
        file = folder / f"{name}.yaml"
        if not file.exists():
            file.write_text(text)
            engine.tool("count")(count)
            engine.deploy(str(file))
        run = await engine.start(name, given)
        await run.result(PATIENCE_S)

    def stepwise(name: str, journey: Callable[[Any], Awaitable[None]]) -> Callable[[Walk], Awaitable[object]]:
        return lambda walk: counted(folder, name, journey, walk)

    return [
        (
            "start to result of a two-step playbook",
            stepwise("walk", lambda engine: playbook(engine, "walk", PLAYBOOK, {})),
            1,
        ),
        (
            "one step of a playbook, a plain function",
            stepwise("chain", lambda engine: playbook(engine, "chain", STEPS, {"steps": CHAIN})),
            CHAIN,
        ),
        ("one toy step, one run", stepwise("toy", lambda engine: toy(engine, 1, CHAIN)), CHAIN),
        ("one toy step, 50 runs at once", stepwise("toys", lambda engine: toy(engine, 50, 40)), 2000),
        ("a task completed by a guest", lambda walk: by_a_guest(folder, walk), 1),
        ("an event published to one cell, until durable", lambda walk: to_a_cell(folder, walk), 1),
        ("an agent's example (triage), start to result", lambda walk: triage(folder, walk), 1),
    ]


async def main(only: str, where: bool) -> None:
    print("| walk | modules | transitions | thread switches | calls | encodes / decodes |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as found:
        for name, journey, per in journeys(Path(found)):
            if only not in name:
                continue
            walk = Walk()
            walk.begin()
            await journey(walk)
            seen = walk.counts()
            each = {key: round(value if key == "modules" else value / per, 2) for key, value in seen.items()}
            print(
                f"| {name} | {each['modules']:g} | {each['transitions']:g} | {each['threads']:g} | {each['calls']:g} "
                f"| {each['encodes']:g} / {each['decodes']:g} |"
            )
            if where:
                print("\n".join(walk.where()))


def count(n: int) -> int:
    return n + 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", default="", help="walks with this in their name")
    options.add_argument("--where", action="store_true", help="where each walk has been")
    asked = options.parse_args()
    asyncio.run(main(asked.only, asked.where))
