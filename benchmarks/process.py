"""How fast processes run, how many of them can wait, and how fast the inbox answers. SQLite, synchronous=FULL.

    python benchmarks/process.py [--quick] [--only slices|waiting|inbox] [--json]

Prints, from one run on one machine: how many bare FULL commits per second the disk takes (the
yardstick); run-to-wait slices per second with 100 runs at once (each slice: an event is admitted,
steps run up to the next wait, all of it is committed); how many waiting runs start and wake per
second and what they cost in memory; the time of an inbox query among a million tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from calibrate import commits

from treadle import Engine
from treadle.process import process, result, start, state, task

CHUNK = 1_000
PARTS = ("slices", "waiting", "inbox")


@dataclass(frozen=True)
class Scale:
    bare_s: float = 3.0
    runs: int = 100
    rounds: int = 300
    waiting: int = 100_000
    tasks: int = 1_000_000
    queries: int = 200


QUICK = Scale(bare_s=0.5, rounds=40, waiting=4_000, tasks=50_000, queries=50)


@process("Calls", version="1.0.0")
def calls(p: Any) -> None:
    p.set(state.sum, 0)
    with p.each("i", in_=start.rounds):
        p.call("nothing", payload={"i": p.i}, into="r")
        with p.when(result.r.i >= 0):
            p.set(state.sum, state.sum + result.r.i)
    p.complete(state.sum)


@process("Timers", version="1.0.0")
def timers(p: Any) -> None:
    p.set(state.sum, 0)
    with p.each("i", in_=start.rounds):
        p.wait("0s")
        p.set(state.sum, state.sum + p.i)
    p.complete(state.sum)


@process("Sleeper", version="1.0.0")
def sleeper(p: Any) -> None:
    p.wait("1h")
    p.set(state.woken, True)
    p.complete(start.n)


@process("Asker", version="1.0.0")
def asker(p: Any) -> None:
    p.reference(start.ref)
    p.ask(task("decide", roles=["clerk"], payload={"n": start.n}, timeout="30d"))
    p.complete(start.n)


class Clock:
    """Time that is moved by hand."""

    def __init__(self) -> None:
        self.now = time.time_ns()

    def now_ns(self) -> int:
        return self.now


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def slices(folder: Path, definition: Any, scale: Scale) -> float:
    """Slices per second, all runs at once."""
    engine = Engine(f"sqlite:///{folder}/{definition.name}.db")
    engine.transport("nothing")(lambda payload: payload)
    async with engine:
        given = {"rounds": list(range(scale.rounds))}
        await (await engine.start(definition, {"rounds": [0]})).result(timeout=60)
        begin = time.perf_counter()
        started = await asyncio.gather(*(engine.start(definition, given) for _ in range(scale.runs)))
        for run in started:
            assert await run.result(timeout=600) == sum(range(scale.rounds))
        return scale.runs * (scale.rounds + 1) / (time.perf_counter() - begin)


async def _in_chunks(count: int, make: Any) -> None:
    for first in range(0, count, CHUNK):
        await asyncio.gather(*(make(n) for n in range(first, min(first + CHUNK, count))))


async def waiting(folder: Path, scale: Scale) -> dict[str, float]:
    """Half of the runs wait for a timer, half for a person; then all of them go on."""
    clock, half = Clock(), scale.waiting // 2
    engine = Engine(f"sqlite:///{folder}/waiting.db", clock=clock)
    engine.deploy(sleeper)
    engine.deploy(asker)
    async with engine:
        before, begin = resident_mb(), time.perf_counter()
        await _in_chunks(half, lambda n: engine.start("Sleeper", {"n": n}, id=f"s{n}"))
        await _in_chunks(half, lambda n: engine.start("Asker", {"n": n, "ref": f"R{n}"}, id=f"a{n}"))
        took, held = time.perf_counter() - begin, resident_mb()
        rows = await engine.tasks(role="clerk", limit=half)
        begin = time.perf_counter()
        clock.now += 3601 * 10**9
        await engine.look(lambda view: None)
        with engine.watch("") as watch:
            while await _due(engine, clock.now):
                await watch.changed(poll_s=0.05)
        timers_s = time.perf_counter() - begin
        begin = time.perf_counter()
        ids = [row["id"] for row in rows]
        await _in_chunks(half, lambda n: engine.task_complete(ids[n], {}, user="ann", roles=["admin"]))
        return {
            "waiting_started_per_s": 2 * half / took,
            "waiting_rss_mb": held,
            "waiting_rss_growth_mb": held - before,
            "woken_by_timer_per_s": half / timers_s,
            "woken_by_person_per_s": half / (time.perf_counter() - begin),
        }


async def _due(engine: Engine, now_ns: int) -> bool:
    """Whether a timer that is due has not fired yet."""
    next_ns = await engine.look(lambda view: view.store.timer_next())
    return next_ns is not None and next_ns <= now_ns


async def inbox(folder: Path, scale: Scale) -> dict[str, float]:
    """Queries among many tasks. The rows are copies of a real one, written straight into the store:
    a seventh of them open or claimed, with a hundred roles, a thousand people, a reference each."""
    path = folder / "inbox.db"
    engine = Engine(f"sqlite:///{path}")
    engine.deploy(asker)
    async with engine:
        await engine.start("Asker", {"n": 0, "ref": "R"})
    _fill(path, scale.tasks)
    async with Engine(f"sqlite:///{path}") as engine:
        kinds: dict[str, Any] = {
            "all": lambda n: {},
            "role": lambda n: {"role": f"role{n % 100}"},
            "assignee": lambda n: {"assignee": f"user{n % 1009}"},
            "reference": lambda n: {"reference": f"ref{n * 7919 % scale.tasks}", "status": None},
            "status": lambda n: {"status": ["completed"]},
            "role_and_assignee": lambda n: {"role": f"role{n % 100}", "assignee": f"user{n % 1009}"},
        }
        found = {}
        for kind, make in kinds.items():
            took = []
            for n in range(scale.queries):
                begin = time.perf_counter()
                await engine.tasks(**make(n), limit=50)
                took.append((time.perf_counter() - begin) * 1000)
            found[f"inbox_{kind}_p50_ms"] = statistics.median(took)
            found[f"inbox_{kind}_p95_ms"] = sorted(took)[int(len(took) * 0.95)]
        return found


def _fill(path: Path, count: int) -> None:
    connection = sqlite3.connect(path)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(tasks)")]
    row = dict(zip(columns, connection.execute("SELECT * FROM tasks").fetchone(), strict=True))
    marks = ", ".join("?" * len(columns))

    def copies() -> Any:
        for n in range(count):
            opened, claimed = n % 7 == 0, n % 14 == 0
            fresh = {
                "no": row["no"] + 1 + n,
                "id": f"{n:032x}",
                "reference": f"ref{n}",
                "roles": row["roles"].replace("clerk", f"role{n % 100}"),
                "status": "claimed" if claimed else "open" if opened else "completed",
                "assignee": f"user{n % 1009}" if claimed or not opened else None,
            }
            yield tuple({**row, **fresh}[name] for name in columns)

    connection.executemany(f"INSERT INTO tasks VALUES ({marks})", copies())
    connection.execute(
        "INSERT INTO task_roles SELECT 'role' || ((no - ?) % 100), status, no FROM tasks WHERE no > ?",
        (row["no"] + 1, row["no"]),
    )
    connection.commit()
    connection.close()


async def measure(scale: Scale, parts: tuple[str, ...]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {"bare_commits_per_s": commits(folder, scale.bare_s, 1)}
        if "slices" in parts:
            found["slices_of_calls_per_s"] = await slices(folder, calls, scale)
            found["slices_of_timers_per_s"] = await slices(folder, timers, scale)
        if "waiting" in parts:
            found |= await waiting(folder, scale)
        if "inbox" in parts:
            found |= await inbox(folder, scale)
        found["bare_commits_again_per_s"] = bare_again(folder)
        return found


def bare_again(folder: Path) -> float:
    """The yardstick once more: on a shared machine it moves."""
    again = folder / "again"
    again.mkdir()
    return commits(again, 0.5, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    found = asyncio.run(measure(scale, (options.only,) if options.only else PARTS))
    if options.json:
        print(json.dumps({"scale": asdict(scale), **found}, indent=2))
        return
    for key, value in found.items():
        print(f"{key:32} {value:12,.1f}")


if __name__ == "__main__":
    main()
