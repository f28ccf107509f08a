"""How far data walks through the house: modules entered, changes of module, of thread, encodes and decodes.

    python benchmarks/walks.py

Counts, not times: only changes of thread depend on the machine, so each walk is taken several times and the median given. A
walk is taken once before it is counted, so that what is loaded once is loaded. Calls are seen by a profiler on every thread; encodes and decodes are calls of
`treadle.kernel.values`. A change of thread is one between two calls of ours that follow each other in time.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measures import make_engine, steps

PATIENCE_S = 60.0
TIMES = 9
CHAIN = 200
ENCODES = {"encode", "digest", "copied"}
DECODES = {"decode", "decode_trusted", "copied"}
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


class Walk:
    """What calls of ours happened while it lasted, in order, on all threads."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str, int]] = []

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__") or ""
            if module.startswith("treadle."):
                self._calls.append((module, frame.f_code.co_name, threading.get_ident()))

    def begin(self) -> None:
        self._calls.clear()
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)

    def modules(self) -> set[str]:
        """Where it has been."""
        return {module for module, _, _ in self._calls}

    def end(self) -> dict[str, int]:
        sys.setprofile(None)
        threading.setprofile(None)
        calls = list(self._calls)
        modules = [module for module, _, _ in calls]
        values = [name for module, name, _ in calls if module == "treadle.kernel.values"]
        return {
            "modules": len(set(modules)),
            "transitions": sum(a != b for a, b in pairwise(modules)),
            "threads": sum(a[2] != b[2] for a, b in pairwise(calls)),
            "calls": len(calls),
            "encodes": sum(name in ENCODES for name in values),
            "decodes": sum(name in DECODES for name in values),
        }


async def counted(
    folder: Path, name: str, journey: Callable[[Any], Awaitable[None]], times: int = 1
) -> dict[str, float]:
    """One walk, counted. Threads see the profiler from their start on, so the engine is made under it."""
    walk = Walk()
    walk.begin()
    seen = []
    async with make_engine(folder, name, lane="thread") as engine:
        await journey(engine)
        for _ in range(times):
            walk.begin()
            await journey(engine)
            seen.append(walk.end())
    return {key: statistics.median(one[key] for one in seen) for key in seen[0]}


async def main() -> None:
    from treadle.testing.toy import TOY

    async def toy(engine: Any, runs: int, count: int) -> None:
        started = await asyncio.gather(*(engine.start(TOY, steps(count)) for _ in range(runs)))
        await asyncio.gather(*(run.result(PATIENCE_S) for run in started))

    with tempfile.TemporaryDirectory() as found:
        folder = Path(found)

        async def playbook(engine: Any, name: str, text: str, given: dict[str, Any]) -> None:
            file = folder / f"{name}.yaml"
            if not file.exists():
                file.write_text(text)
                engine.tool("count")(count)
                engine.deploy(str(file))
            run = await engine.start(name, given)
            await run.result(PATIENCE_S)

        walks = [
            (
                "start to result of a two-step playbook",
                lambda engine: playbook(engine, "walk", PLAYBOOK, {}),
                1,
            ),
            (
                "one step of a playbook, a plain function",
                lambda engine: playbook(engine, "chain", STEPS, {"steps": CHAIN}),
                CHAIN,
            ),
            ("one toy step, one run", lambda engine: toy(engine, 1, CHAIN), CHAIN),
            ("one toy step, 50 runs at once", lambda engine: toy(engine, 50, 40), 2000),
        ]
        print("| walk | modules | transitions | thread switches | calls | encodes / decodes |")
        print("|---|--:|--:|--:|--:|--:|")
        for number, (name, journey, per) in enumerate(walks):
            seen = await counted(folder, f"walk-{number}", journey, TIMES)
            each = {key: round(value if key == "modules" else value / per, 2) for key, value in seen.items()}
            print(
                f"| {name} | {each['modules']:g} | {each['transitions']:g} | {each['threads']:g} | {each['calls']:g} "
                f"| {each['encodes']:g} / {each['decodes']:g} |"
            )


def count(n: int) -> int:
    return n + 1


if __name__ == "__main__":
    asyncio.run(main())
