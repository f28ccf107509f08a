"""How fast playbooks run when their tasks cost nothing: durable on SQLite, synchronous=FULL.

    python benchmarks/playbook.py [--json] [--quick]
    python benchmarks/playbook.py --items 1000000 [--local]     # only a loop of so many items

Prints, from one run on one machine: bare single-row FULL commits per second (the yardstick), steps
per second with 100 executions of 10 steps at once and in one long execution, the cost of a step at
10, 100, 1,000 and 10,000 steps of one execution, and a parallel loop of 100,000 items with the
memory it took. Steps are registered Python callables.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from calibrate import commits

from treadle import Engine

SECONDS = 1.5


def chain(length: int) -> dict[str, Any]:
    """Steps one after the other, each with the result of the one before as its argument."""
    steps = []
    for index in range(length):
        step: dict[str, Any] = {
            "step": f"s{index}",
            "tool": {"kind": "add", "n": "{{ args.n | default(0) }}"},
        }
        if index < length - 1:
            arc = {
                "step": f"s{index + 1}",
                "when": "{{ event.name == 'step.done' }}",
                "args": {"n": "{{ event.result }}"},
            }
            step["next"] = {"arcs": [arc]}
        steps.append(step)
    return {"metadata": {"name": f"chain{length}"}, "workflow": steps}


def cycle() -> dict[str, Any]:
    """One step that routes to itself until it has run as often as the input says."""
    again = {"step": "s", "when": "{{ event.result < workload.rounds }}", "args": {"n": "{{ event.result }}"}}
    step = {"step": "s", "tool": {"kind": "add", "n": "{{ args.n | default(0) }}"}, "next": {"arcs": [again]}}
    return {"metadata": {"name": "cycle"}, "workload": {"rounds": 1}, "workflow": [step]}


def loop(exec: str = "distributed") -> dict[str, Any]:
    spec = {"mode": "parallel", "max_in_flight": 100, "policy": {"exec": exec}}
    step = {
        "step": "each",
        "loop": {"in": "{{ range(workload.items) }}", "iterator": "n", "spec": spec},
        "tool": {"kind": "add", "n": "{{ iter.n }}"},
    }
    return {"metadata": {"name": "loop"}, "workload": {"items": 1}, "workflow": [step]}


def prepare(folder: Path, name: str, playbook: dict[str, Any]) -> tuple[Engine, str]:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(playbook))
    engine = Engine(f"sqlite:///{folder}/{name}.db")

    @engine.tool("add", idempotent=True)
    def add(n: int = 0) -> int:
        return n + 1

    (definition,) = engine.deploy(str(file))
    return engine, definition.name


async def timed(engine: Engine, name: str, inputs: list[dict[str, Any]]) -> tuple[float, list[Any]]:
    """Seconds from the first start to the last end, then the results: reading them is not timed."""
    ids = [f"{name}-{time.perf_counter_ns()}-{index}" for index in range(len(inputs))]
    with ExitStack() as stack:
        watches = [stack.enter_context(engine.watch(id, end=True)) for id in ids]
        start = time.perf_counter()
        runs = await asyncio.gather(
            *(engine.start(name, given, id=id) for id, given in zip(ids, inputs, strict=True))
        )
        for watch in watches:
            await watch.changed(poll_s=1800)
        took = time.perf_counter() - start
    return took, [await run.result(timeout=60) for run in runs]


async def many_at_once(folder: Path, runs: int, steps: int) -> float:
    engine, name = prepare(folder, "many", chain(steps))
    async with engine:
        await timed(engine, name, [{}])
        took, results = await timed(engine, name, [{}] * runs)
    assert results == [steps] * runs
    return runs * steps / took


async def one_execution(folder: Path, rounds: int, label: str) -> float:
    """Seconds per step of one execution."""
    engine, name = prepare(folder, label, cycle())
    async with engine:
        await timed(engine, name, [{"rounds": 5}])
        took, results = await timed(engine, name, [{"rounds": rounds}])
    assert results == [rounds]
    return took / rounds


async def parallel_loop(folder: Path, items: int, *, exec: str = "distributed") -> dict[str, float]:
    engine, name = prepare(folder, "loop", loop(exec))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with engine:
        took, (result,) = await timed(engine, name, [{"items": items}])
    assert result["stats"] == {"total": items, "success": items, "failed": 0}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    size = sum(file.stat().st_size for file in folder.rglob("loop.db*") if file.is_file())
    return {"items_per_s": items / took, "memory_grown_mib": grown / 1024, "store_mib": size / 2**20}


async def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"bare_commits_per_s": commits(folder, SECONDS, 1)}
    found["steps_per_s_100_runs_of_10"] = await many_at_once(folder, 100, 10)
    found["steps_per_s_100_runs_of_100"] = await many_at_once(folder / "b", 100, 20 if quick else 100)
    costs = {}
    for rounds in (10, 100, 1_000) if quick else (10, 100, 1_000, 10_000):
        samples = [
            await one_execution(folder, rounds, f"one{rounds}-{n}") for n in range(5 if rounds < 1_000 else 1)
        ]
        costs[str(rounds)] = sorted(samples)[len(samples) // 2] * 1e6
    found["us_per_step_by_length"] = costs
    found["steps_per_s_one_run"] = 1e6 / costs["1000"]
    found["loop"] = await parallel_loop(folder, 5_000 if quick else 100_000)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "b").mkdir()
        if "--items" in sys.argv:
            items = int(sys.argv[sys.argv.index("--items") + 1])
            exec = "local" if "--local" in sys.argv else "distributed"
            print(json.dumps(asyncio.run(parallel_loop(folder, items, exec=exec)), indent=1))
            return
        found = asyncio.run(measure(folder, quick="--quick" in sys.argv))
    if "--json" in sys.argv:
        print(json.dumps(found, indent=1))
        return
    bare = found["bare_commits_per_s"]
    print(f"bare FULL commits                {bare:10,.0f} /s")
    for key, label in (
        ("steps_per_s_100_runs_of_10", "100 executions of 10 steps"),
        ("steps_per_s_100_runs_of_100", "100 executions of 100 steps"),
        ("steps_per_s_one_run", "one execution"),
    ):
        print(f"{label:32} {found[key]:10,.0f} steps/s   {found[key] / bare:5.2f} × bare")
    for rounds, cost in found["us_per_step_by_length"].items():
        print(f"cost of a step at {int(rounds):6,} steps   {cost:10,.0f} µs")
    print(
        f"parallel loop                    {found['loop']['items_per_s']:10,.0f} items/s   +{found['loop']['memory_grown_mib']:.0f} MiB"
    )


if __name__ == "__main__":
    main()
