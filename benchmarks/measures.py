"""What is measured, one function each. Every measurement runs in a process of its own (see engine.py),
so that memory is its own and nothing warms up anything else.

A step here is a whole one: the run asks for work, the request is committed (SQLite, WAL, synchronous=FULL),
a worker performs it, the receipt is committed and decided on. The work itself does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from calibrate import commits

CHUNK = 1_000
HOUR_S = 3_600
PATIENCE_S = 1_800


@dataclass(frozen=True)
class Scale:
    """How much work each measurement does."""

    seconds_bare: float = 3.0
    steps_sequential: int = 6_000
    runs_concurrent: int = 100
    steps_concurrent: int = 400
    length: int = 100_000
    waiting: int = 1_000_000
    wakes: int = 10_000
    in_flight: int = 1_000
    cold_starts: int = 7


FULL = Scale()
QUICK = Scale(
    seconds_bare=0.5,
    steps_sequential=600,
    steps_concurrent=30,
    length=5_000,
    waiting=20_000,
    wakes=2_000,
    in_flight=100,
    cold_starts=3,
)

Figures = dict[str, float]


@contextlib.contextmanager
def busy_thread(busy: bool) -> Iterator[None]:
    """A neighbour that computes in pure Python all the time, as a CPU-heavy tool in the process would."""
    stop = threading.Event()

    def spin() -> None:
        total = 0
        while not stop.is_set():
            total += sum(range(1_000))

    if not busy:
        yield
        return
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def rss_mb() -> float:
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def size_of(folder: Path, name: str) -> int:
    """Bytes of a closed store, once its write-ahead log is folded back."""
    connection = sqlite3.connect(folder / f"{name}.db")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return sum(file.stat().st_size for file in folder.glob(f"{name}.db*"))


# --- the yardstick ---


def commits_per_second(folder: Path, seconds: float) -> float:
    """Single-row commits, one after the other, with nothing else: what the disk gives at this moment."""
    return commits(folder, seconds, 1)


def beside_bare(folder: Path, scale: Scale, name: str, measure: Callable[[], float]) -> Figures:
    """A rate, and what the bare loop did just before and just after it: neighbours on the same disk
    come and go, so a yardstick from another minute would say nothing."""
    before = commits_per_second(folder, scale.seconds_bare / 2)
    rate = measure()
    after = commits_per_second(folder, scale.seconds_bare / 2)
    return {name: rate, f"{name}_bare": (before + after) / 2}


def bare(folder: Path, scale: Scale) -> Figures:
    """What the disk gives to a program that only commits single rows, alone and beside a busy thread."""
    alone = commits_per_second(folder, scale.seconds_bare)
    with busy_thread(True):
        return {"bare": alone, "bare_busy": commits_per_second(folder, scale.seconds_bare)}


# --- steps ---


def make_engine(
    folder: Path, name: str, *, work: Callable[[Any], Any] | None = None, lane: str = "thread", **options: Any
) -> Any:
    from treadle.engine import Engine
    from treadle.testing import toy
    from treadle.work.job import Done

    async def perform(job: Any) -> Done:
        if work is not None:
            work(job)
        return Done(value=True)

    engine = Engine(f"sqlite:///{folder}/{name}.db", **options)
    toy.install(engine)
    threaded = (lambda intent, definition: True) if lane == "thread" else None
    engine.worker.register("work", perform, dialect="toy", threaded=threaded)
    return engine


def steps(count: int) -> dict[str, Any]:
    return {"do": [["work", count]], "keep": False}


async def _rate(engine: Any, *, runs: int, count: int) -> float:
    from treadle.testing.toy import TOY

    await (await engine.start(TOY, steps(20))).result(PATIENCE_S)  # what is loaded once is loaded now
    begin = time.perf_counter()
    started = await asyncio.gather(*(engine.start(TOY, steps(count)) for _ in range(runs)))
    await asyncio.gather(*(run.result(PATIENCE_S) for run in started))
    return runs * count / (time.perf_counter() - begin)


def _in_every_way(folder: Path, scale: Scale, name: str, *, runs: int, count: int) -> Figures:
    """Plain functions (a worker thread) and coroutines, each alone and beside a busy thread."""

    async def measure(lane: str, busy: bool) -> float:
        with busy_thread(busy):
            async with make_engine(folder, f"{name}-{lane}-{busy}", lane=lane) as engine:
                return await _rate(engine, runs=runs, count=count)

    def rate(lane: str, busy: bool) -> float:
        return asyncio.run(measure(lane, busy))

    found: Figures = {}
    for lane, suffix in (("thread", ""), ("loop", "_coroutine")):
        for busy in (False, True):
            label = f"{name}{suffix}{'_busy' if busy else ''}"
            found |= beside_bare(folder, scale, label, partial(rate, lane, busy))
    return found


def sequential(folder: Path, scale: Scale) -> Figures:
    """Steps a second of one run alone."""
    found = _in_every_way(folder, scale, "sequential", runs=1, count=scale.steps_sequential)
    found["bytes_per_step"] = size_of(folder, "sequential-thread-False") / (scale.steps_sequential + 20)
    return found


def concurrent(folder: Path, scale: Scale) -> Figures:
    """Steps a second of 100 runs at once."""
    return _in_every_way(
        folder, scale, "concurrent", runs=scale.runs_concurrent, count=scale.steps_concurrent
    )


def playbook(folder: Path, scale: Scale) -> Figures:
    """The same with a real dialect on top: playbooks whose steps run a tool that does nothing."""
    chain = 50
    lines = ["metadata: {name: chain}", "workflow:"]
    for number in range(chain):
        lines += [f"  - step: s{number}", "    tool: {kind: noop}"]
        if number + 1 < chain:
            lines.append(f"    next: {{arcs: [{{step: s{number + 1}}}]}}")
    path = folder / "chain.yaml"
    path.write_text("\n".join(lines) + "\n", "utf-8")

    async def measure(at_once: int, rounds: int) -> float:
        from treadle.engine import Engine

        async with Engine(f"sqlite:///{folder}/playbook.db") as engine:
            (definition,) = engine.load(str(path))
            await (await engine.start(definition)).result(PATIENCE_S)
            begin = time.perf_counter()
            for _ in range(rounds):
                started = await asyncio.gather(*(engine.start(definition) for _ in range(at_once)))
                await asyncio.gather(*(run.result(PATIENCE_S) for run in started))
            return rounds * at_once * chain / (time.perf_counter() - begin)

    rounds = max(2, scale.steps_sequential // chain // 2)
    runs = max(20, scale.runs_concurrent * scale.steps_concurrent // chain // 4)
    return {
        **beside_bare(folder, scale, "playbook_sequential", lambda: asyncio.run(measure(1, rounds))),
        **beside_bare(folder, scale, "playbook_concurrent", lambda: asyncio.run(measure(runs, 1))),
        "playbook_runs": runs,
    }


def length(folder: Path, scale: Scale) -> Figures:
    """Milliseconds a step when the run is 10, 1,000 and 100,000 records long."""
    times: list[float] = []

    async def measure() -> Figures:
        from treadle.testing.toy import TOY

        def stamp(job: Any) -> None:
            times.append(time.perf_counter())

        async with make_engine(folder, "length", work=stamp) as engine:
            short: list[float] = []
            for _ in range(100):
                times.clear()
                await (await engine.start(TOY, steps(20))).result(PATIENCE_S)
                short.append((times[14] - times[5]) / 9)
            times.clear()
            await (await engine.start(TOY, steps(scale.length))).result(PATIENCE_S)
        last = len(times) - 1
        return {
            "ms_at_10": statistics.mean(short) * 1000,
            "ms_at_1000": (times[1_500] - times[1_000]) / 500 * 1000,
            f"ms_at_{scale.length}": (times[last] - times[last - 1_000]) / 1_000 * 1000,
        }

    return asyncio.run(measure())


# --- runs that wait ---


class StoppableClock:
    """The system's clock, which can be put forward to a moment and stopped there."""

    def __init__(self) -> None:
        self.stopped_at_ns: int | None = None

    def now_ns(self) -> int:
        return time.time_ns() if self.stopped_at_ns is None else self.stopped_at_ns


async def _wait_and_wake(folder: Path, count: int, wakes: int) -> Figures:
    from treadle.testing.toy import TOY

    woken = threading.Semaphore(0)
    clock = StoppableClock()
    name = f"wait-{count}"
    engine = make_engine(folder, name, work=lambda job: woken.release(), clock=clock)
    async with engine:
        before_mb = rss_mb()
        begin = time.perf_counter()
        due_ns = 0
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            await asyncio.gather(
                *(engine.start(TOY, {"do": ["timer", "work"], "keep": False}) for _ in range(size))
            )
            if first + size == wakes:
                due_ns = time.time_ns() + HOUR_S * 10**9
                await asyncio.sleep(0.001)
        started_s = time.perf_counter() - begin
        waiting_mb = rss_mb()
        begin = time.perf_counter()
        clock.stopped_at_ns = due_ns  # so that these wake, and no other
        await engine.look(lambda view: None)
        await asyncio.to_thread(lambda: [woken.acquire() for _ in range(wakes)])
        woken_s = time.perf_counter() - begin
    return {
        f"start_rate_{count}": count / started_s,
        f"wake_rate_{count}": wakes / woken_s,
        f"rss_before_mb_{count}": before_mb,
        f"rss_mb_{count}": waiting_mb,
        f"store_bytes_per_run_{count}": size_of(folder, name) / count,
    }


def waiting_few(folder: Path, scale: Scale) -> Figures:
    """10,000 runs that wait for a timer."""
    return asyncio.run(_wait_and_wake(folder, 10_000, min(scale.wakes, 10_000)))


def waiting_many(folder: Path, scale: Scale) -> Figures:
    """1,000,000 runs that wait for a timer; the first 10,000 of them wake among the others."""
    return asyncio.run(_wait_and_wake(folder, scale.waiting, scale.wakes))


# --- after a crash ---


def crash(folder: Path, runs: int, records: int) -> None:
    """Leaves a store as a crash does: every run in the middle of one more piece of work."""

    async def work() -> None:
        from treadle.testing.toy import TOY

        reached = asyncio.Event()
        done: dict[str, int] = {}
        blocked: list[str] = []

        def count(job: Any) -> None:
            done[job.run] = done.get(job.run, 0) + 1
            if done[job.run] == records:
                blocked.append(job.run)
            if len(blocked) == runs:
                reached.set()

        engine = _blocking_engine(folder, f"crash-{records}", count, lambda job: done[job.run] >= records)
        async with engine:
            await asyncio.gather(*(engine.start(TOY, steps(records + 5)) for _ in range(runs)))
            await reached.wait()
            os._exit(0)  # no goodbye: this is what SIGKILL leaves

    asyncio.run(work())


def _blocking_engine(
    folder: Path, name: str, seen: Callable[[Any], None], blocks: Callable[[Any], bool]
) -> Any:
    from treadle.work.job import Done

    engine = make_engine(folder, name, concurrency=10_000)

    async def perform(job: Any) -> Done:
        seen(job)
        if blocks(job):
            await asyncio.Event().wait()
        return Done(value=True)

    engine.worker.register("work", perform, dialect="toy")
    return engine


async def _recover(folder: Path, runs: int, records: int) -> tuple[float, int]:
    reached = asyncio.Event()
    seen: list[str] = []

    def count(job: Any) -> None:
        seen.append(job.run)
        if len(seen) == runs:
            reached.set()

    engine = _blocking_engine(folder, f"crash-{records}", count, lambda job: True)
    begin = time.perf_counter()
    async with engine:
        await reached.wait()
        took = time.perf_counter() - begin
        tail = await engine.read(lambda reads: _tail(reads, seen[0]))
    return took, tail


def _tail(reads: Any, run: str) -> int:
    no = reads.run(run).no
    found = reads.snapshot(no)
    return len(reads.journal(no, after_seq=found[0] if found is not None else 0))


def recovery(folder: Path, scale: Scale) -> Figures:
    """Seconds from opening the store to the last of 1,000 interrupted pieces of work in a worker's
    hands again: runs whose last record is a snapshot, and runs with the longest tail to fold."""
    found: Figures = {}
    for label, records in (("short", 256), ("long", 255)):
        here = Path(__file__).resolve().parent / "engine.py"
        arguments = ["--crash", str(folder), str(scale.in_flight), str(records)]
        subprocess.run([sys.executable, str(here), *arguments], check=True)
        took, tail = asyncio.run(_recover(folder, scale.in_flight, records))
        found[f"recovery_{label}_s"] = took
        found[f"recovery_{label}_tail"] = tail
    return found


# --- cold start ---


def cold(folder: Path, scale: Scale) -> Figures:
    """Milliseconds, median of several fresh processes."""

    def inside(statement: str) -> float:
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        taken = [
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
            for _ in range(scale.cold_starts)
        ]
        return statistics.median(taken) * 1000

    def outside(*command: str) -> float:
        taken: list[float] = []
        for _ in range(scale.cold_starts):
            begin = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken) * 1000

    treadle = str(Path(sys.executable).parent / "treadle")
    return {
        "cold_python_ms": outside(sys.executable, "-c", ""),
        "cold_import_ms": inside("import treadle"),
        "cold_engine_ms": inside("from treadle import Engine"),
        "cold_help_ms": outside(treadle, "--help"),
    }


MEASURES: dict[str, Callable[[Path, Scale], Figures]] = {
    "bare": bare,
    "sequential": sequential,
    "concurrent": concurrent,
    "playbook": playbook,
    "length": length,
    "waiting_few": waiting_few,
    "waiting_many": waiting_many,
    "recovery": recovery,
    "cold": cold,
}
