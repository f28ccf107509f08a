"""A million cells: how much memory they take, and what an event costs on a cold cell and on a hot one.

    python benchmarks/cells.py --cells 1000000

Fills a store with cells by publishing one event to each (group commit, many in flight), then publishes to
cells that are in the cache and to cells that are not, with the same number in flight, and prints p50 and p95
from publish to durable decision. Memory is the process's own (VmRSS); it must not grow with the cells.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle import reactive as rx

IN_FLIGHT = 64


@rx.schema("bench/Hit@1")
@dataclass(frozen=True, slots=True)
class Hit:
    page: int


@rx.schema("bench/Page@1")
@dataclass(frozen=True, slots=True)
class Page:
    page: int
    hits: int
    title: str = "a page with a title of some length, so that a state is not only numbers"


@rx.workflow("bench/page@1", state=Page, events=[Hit], key="page", effects=[])
def page(state: Page | None, event: Hit) -> rx.Output[Page]:
    return rx.Output(Page(event.page, 1 if state is None else state.hits + 1))


app = rx.App("bench", [page])


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def publish_all(engine: Engine, keys: Any, took: list[float] | None = None) -> None:
    """Publishes to every key, IN_FLIGHT at a time; `took` gets the seconds from publish to durable."""
    waiting = iter(keys)

    async def one() -> None:
        for key in waiting:
            begun = time.perf_counter()
            await engine.publish(Hit(key))
            if took is not None:
                took.append(time.perf_counter() - begun)

    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))


def figures(took: list[float]) -> dict[str, float]:
    ranked = sorted(took)
    return {
        "p50_ms": round(statistics.median(ranked) * 1000, 3),
        "p95_ms": round(ranked[int(len(ranked) * 0.95)] * 1000, 3),
    }


async def measure(store: str, count: int, samples: int, hot_runs: int) -> dict[str, Any]:
    engine = Engine(store, hot_runs=hot_runs)
    engine.deploy(app)
    async with engine:
        await publish_all(engine, range(min(count, hot_runs)))
        warm_mb = resident_mb()
        begun = time.perf_counter()
        await publish_all(engine, range(min(count, hot_runs), count))
        filling_s = time.perf_counter() - begun
        full_mb = resident_mb()
        rng = random.Random(1)
        hot_keys = range(count - min(256, hot_runs // 2), count)
        await publish_all(engine, hot_keys)
        begun = time.perf_counter()
        hot: list[float] = []
        await publish_all(engine, rng.choices(hot_keys, k=samples), hot)
        hot_s = time.perf_counter() - begun
        cold_keys = rng.sample(range(count - hot_runs), samples)
        begun = time.perf_counter()
        cold: list[float] = []
        await publish_all(engine, cold_keys, cold)
        cold_s = time.perf_counter() - begun
    found = {
        "cells": count,
        "cache": hot_runs,
        "in_flight": IN_FLIGHT,
        "created_per_s": round(max(1, count - hot_runs) / filling_s),
        "hot": {**figures(hot), "events_per_s": round(samples / hot_s)},
        "cold": {**figures(cold), "events_per_s": round(samples / cold_s)},
        "memory_mb": {"cache_full": round(warm_mb), "all_cells": round(full_mb)},
    }
    found["cold_over_hot_p50"] = round(found["cold"]["p50_ms"] / found["hot"]["p50_ms"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--cache", type=int, default=4_096)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(f"sqlite:///{folder}/cells.db", given.cells, given.samples, given.cache))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
