"""One measurement of one peer, in a process and an environment of its own.

    python driver.py PEER WORKLOAD FOLDER SIZES(JSON)      → the last line of stdout is one JSON object

The driver knows the workloads, the peers know themselves. Every result is checked: a figure of a wrong answer is an error.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from workloads import Sizes

from peers import work
from peers.line import Lines
from peers.peer import Peer

Figures = dict[str, Any]
# Who can say that a step touches nothing outside.
PURE = {"W1pure": ("treadle_process", "treadle_playbook"), "W8pure": ("treadle_agent",)}


async def pooled(count: int, at_once: int, make: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """So many calls, `at_once` of them in flight, their results in order."""
    found: list[Any] = [None] * count
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            found[number] = await make(number)

    await asyncio.gather(*(client() for _ in range(min(at_once, count))))
    return found


async def sustained(seconds: float, clients: int, once: Callable[[], Awaitable[None]]) -> tuple[int, float]:
    """Clients that each do it again and again: how often they did, in how many seconds."""
    done, begun = 0, time.perf_counter()

    async def client() -> None:
        nonlocal done
        while True:
            await once()
            done += 1
            if time.perf_counter() - begun >= seconds:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    return done, time.perf_counter() - begun


def expect(what: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        raise SystemExit(f"wrong answer: {what} is {str(got)[:200]}, not {str(wanted)[:200]}")


def cpu_s() -> float:
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def family_mb() -> float:
    """Resident memory of this process and of the servers it started: they share its process group."""
    total, group = 0, os.getpgid(0)
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getpgid(int(status.parent.name)) != group:
                continue
            for line in status.read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        except OSError:  # it has ended meanwhile
            continue
    return total / 1024


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def steps(peer: Peer, sizes: Sizes, folder: Path, clients: int, program: str = "chain") -> Figures:
    async def once() -> None:
        expect("the chain", await peer.chain(sizes.steps), sizes.steps)

    await peer.open(folder, program)
    await sustained(0.0, min(clients, 10), once)
    cpu = cpu_s()
    done, took = await sustained(sizes.seconds, clients, once)
    own_ms = (cpu_s() - cpu) * 1000 / (done * sizes.steps)
    await peer.close()
    return {"steps_per_s": done * sizes.steps / took, "runs": done, "own_cpu_ms_per_step": own_ms}


async def w1x1(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    return await steps(peer, sizes, folder, 1)


async def w1x100(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    return await steps(peer, sizes, folder, sizes.at_once)


async def w1pure(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    return await steps(peer, sizes, folder, 1, program="pure")


async def w2steps(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    return await _wide(peer, sizes, folder, "fan", lambda width: peer.fan(width))


async def w2children(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    return await _wide(peer, sizes, folder, "children", lambda width: peer.children(width))


async def _wide(
    peer: Peer, sizes: Sizes, folder: Path, program: str, spread: Callable[[int], Awaitable[int]]
) -> Figures:
    await peer.open(folder, program)
    expect("the sum", await spread(sizes.width), sizes.width)  # what is loaded once is loaded now
    begun = time.perf_counter()
    expect("the sum", await spread(sizes.width), sizes.width)
    took = time.perf_counter() - begun
    await peer.close()
    return {"seconds": took}


async def w3(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    await peer.open(folder, "wait")
    runs = [f"wait-{number}" for number in range(sizes.waiting)]
    await peer.wait("warm")
    await peer.wake("warm")
    expect("what it was sent", await peer.woken("warm"), 7)
    before_mb = family_mb()
    begun = time.perf_counter()
    await pooled(len(runs), 256, lambda number: peer.wait(runs[number]))
    start_s = time.perf_counter() - begun
    waiting_mb = family_mb()
    begun = time.perf_counter()
    await pooled(len(runs), 256, lambda number: peer.wake(runs[number]))
    got = await pooled(len(runs), 256, lambda number: peer.woken(runs[number]))
    wake_s = time.perf_counter() - begun
    expect("what they were sent", got, [7] * len(runs))
    await peer.close()
    return {"start_s": start_s, "wake_s": wake_s, "memory_mb": waiting_mb, "memory_before_mb": before_mb}


async def w4before(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    """The first life: starts everything and says so; the one who asked kills it."""
    work.trace(folder / "steps.log", seconds=sizes.slow_s, hang=True)
    await peer.open(folder / "store", "slow")
    starting = [asyncio.ensure_future(peer.slow(run, sizes.slow_steps)) for run in slow_runs(sizes)]
    await asyncio.gather(*starting)
    print("started", flush=True)
    await asyncio.sleep(sizes.patience_s)
    raise SystemExit("nobody killed this process")


async def w4after(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    """The second life: everything is taken up and ends."""
    work.trace(folder / "steps.log", seconds=sizes.slow_s, hang=False)
    await peer.open(folder / "store", "slow")
    opened = time.time()
    got = await asyncio.gather(*(peer.slow_result(run, sizes.slow_steps) for run in slow_runs(sizes)))
    done = time.time()
    await peer.close()
    return {"opened_at": opened, "done_at": done, "results": dict(zip(slow_runs(sizes), got, strict=True))}


def slow_runs(sizes: Sizes) -> list[str]:
    return [f"slow-{number}" for number in range(sizes.in_flight)]


async def w5(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    await peer.open(folder, "chain")
    expect("the chain", await peer.chain(1), 1)
    return {"done_at": time.time()}


async def w6(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    """What the second lot of runs adds, so that what an empty store takes is not counted."""

    async def lot() -> int:
        await peer.open(folder, "chain")
        await pooled(sizes.disk_runs, sizes.at_once, lambda number: peer.chain(sizes.steps))
        await peer.close()
        return bytes_in(folder)

    first = await lot()
    second = await lot()
    return {"bytes_per_step": (second - first) / (sizes.disk_runs * sizes.steps), "bytes_in_all": second}


async def w7(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    """One long run. A peer may hold the event loop for all of it, so a thread ends the measurement."""

    def too_long() -> None:
        print(json.dumps({"figures": long_run(list(work.marks), sizes), "about": peer.about}), flush=True)
        os._exit(0)

    await peer.open(folder, "chain")
    work.mark()
    ours = type(peer).__module__.startswith("peers.on_treadle")
    watch = threading.Timer(sizes.length_s if ours else sizes.length_peers_s, too_long)
    watch.start()
    expect("the chain", await peer.chain(sizes.length), sizes.length)
    watch.cancel()
    return long_run(list(work.marks), sizes)


def long_run(marks: list[float], sizes: Sizes) -> Figures:
    """The cost of a step along the run, each a mean of up to a thousand; the first hundred warm up and do not count."""
    reached = len(marks)
    window, warm = max(20, min(1_000, reached // 10)), min(100, reached // 10)

    def micros(end: int) -> float:
        return (marks[end - 1] - marks[end - 1 - window]) / window * 1e6

    ends = [n for n in (1_000, 3_000, 10_000, 30_000, 100_000) if warm + 2 * window <= n < reached]
    first = micros(warm + window + 1) if reached > warm + 2 * window else 0.0
    return {
        "steps": reached,
        "finished": reached == sizes.length,
        "first_us": first,
        "us_at": {str(n): micros(n) for n in [*ends, reached]} if first else {},
        "last_over_first": micros(reached) / first if first else None,
    }


async def w8(peer: Peer, sizes: Sizes, folder: Path, program: str = "nodes") -> Figures:
    async def once() -> None:
        expect("nodes answered", await peer.nodes(sizes.nodes), sizes.nodes)

    await peer.open(folder, program)
    await once()
    done, took = await sustained(sizes.seconds, 1, once)
    await peer.close()
    return {"nodes_per_s": done * sizes.nodes / took}


async def w8pure(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    return await w8(peer, sizes, folder, program="pure")


async def w9(peer: Peer, sizes: Sizes, folder: Path) -> Figures:
    host, port, path, body = await peer.serve(folder)
    lines, taken = Lines(host, port), []

    async def once() -> None:
        begun = time.perf_counter()
        await lines.ask("POST", path, body)
        taken.append(time.perf_counter() - begun)

    await sustained(0.0, sizes.connections, once)
    before = len(taken)
    done, took = await sustained(sizes.seconds, sizes.connections, once)
    timed = sorted(taken[before:])
    due = time.perf_counter() + sizes.patience_s / 2
    while (completed := await peer.served(folder)) < len(taken):
        if time.perf_counter() > due:
            raise SystemExit(f"only {completed} of {len(taken)} runs were completed")
        await asyncio.sleep(0.05)
    lines.close()
    await peer.close()
    p50, p99 = (timed[int(len(timed) * share)] * 1000 for share in (0.5, 0.99))
    return {"starts_per_s": done / took, "p50_ms": p50, "p99_ms": p99}


MEASURES: dict[str, Callable[[Peer, Sizes, Path], Awaitable[Figures]]] = {
    "W1x1": w1x1,
    "W1x100": w1x100,
    "W1pure": w1pure,
    "W2steps": w2steps,
    "W2children": w2children,
    "W3": w3,
    "W4before": w4before,
    "W4after": w4after,
    "W5": w5,
    "W6": w6,
    "W7": w7,
    "W8": w8,
    "W8pure": w8pure,
    "W9": w9,
}


def peer_named(name: str) -> Peer:
    peer: Peer = importlib.import_module(f"peers.on_{name}").Peer()
    return peer


def main() -> None:
    name, workload, where, sizes = sys.argv[1:]
    peer = peer_named(name)
    why = peer.cannot.get(workload[:2]) or peer.cannot.get(workload)
    if why is None and name not in PURE.get(workload, (name,)):
        why = "steps cannot be declared so"
    if why is not None:
        print(json.dumps({"cannot": why, "about": peer.about}), flush=True)
        return
    folder = Path(where)
    folder.mkdir(parents=True, exist_ok=True)
    figures = asyncio.run(MEASURES[workload](peer, Sizes(**json.loads(sizes)), folder))
    print(json.dumps({"figures": figures, "about": peer.about}), flush=True)
    os._exit(0)  # what a peer leaves running in threads is no part of the measurement


if __name__ == "__main__":
    main()
