"""How far data walks through the house: modules entered, changes of module, of thread, encodes and decodes.

    python benchmarks/walks.py

Counts, not times: they do not depend on the machine. A walk is taken once before it is counted, so that what is
loaded once is loaded. Calls are seen by a profiler on every thread; encodes and decodes are calls of
`treadle.kernel.values`. A change of thread is one between two calls of ours that follow each other in time.
"""

from __future__ import annotations

import asyncio
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


async def counted(folder: Path, name: str, journey: Callable[[Any], Awaitable[None]]) -> dict[str, int]:
    """One walk, counted. Threads see the profiler from their start on, so the engine is made under it."""
    walk = Walk()
    walk.begin()
    async with make_engine(folder, name, lane="thread") as engine:
        await journey(engine)
        walk.begin()
        await journey(engine)
        return walk.end()


async def main() -> None:
    from treadle.testing.toy import TOY

    async def toy(engine: Any, runs: int, count: int) -> None:
        started = await asyncio.gather(*(engine.start(TOY, steps(count)) for _ in range(runs)))
        await asyncio.gather(*(run.result(PATIENCE_S) for run in started))

    with tempfile.TemporaryDirectory() as found:
        folder = Path(found)
        book = folder / "walk.yaml"
        book.write_text(PLAYBOOK)

        deployed: list[str] = []

        async def playbook(engine: Any) -> None:
            if not deployed:
                engine.deploy(str(book))
                deployed.append("walk")
            run = await engine.start("walk", {})
            await run.result(PATIENCE_S)

        walks = [
            ("start to result of a two-step playbook", playbook, 1),
            ("one toy step, one run", lambda engine: toy(engine, 1, 200), 200),
            ("one toy step, 50 runs at once", lambda engine: toy(engine, 50, 40), 2000),
        ]
        print("| walk | modules | transitions | thread switches | calls | encodes / decodes |")
        print("|---|--:|--:|--:|--:|--:|")
        for number, (name, journey, per) in enumerate(walks):
            seen = await counted(folder, f"walk-{number}", journey)
            each = {key: value if key == "modules" else round(value / per, 1) for key, value in seen.items()}
            print(
                f"| {name} | {each['modules']} | {each['transitions']} | {each['threads']} | {each['calls']} "
                f"| {each['encodes']} / {each['decodes']} |"
            )


if __name__ == "__main__":
    asyncio.run(main())
