"""`python -m treadle.testing.sim SEED` and `--seeds N [--from M]`."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .canaries import hunted, seeds_to_find
from .drill import Drill
from .narrow import NarrowDrill
from .sums import Sums
from .world import SimulationFailed, simulate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m treadle.testing.sim", description="the fault simulator")
    parser.add_argument("seed", type=int, nargs="?", help="run this one seed and say what happened in it")
    parser.add_argument("--seeds", type=int, default=0, help="run this many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--limited", action="store_true", help="with a line in front of the runs")
    parser.add_argument("--applications", action="store_true", help="applies and snapshots, not the drill")
    parser.add_argument("--cores", type=int, default=1, help="how many processes share the store")
    parser.add_argument("--canaries", action="store_true", help="find each planted bug within --seeds N")
    options = parser.parse_args(arguments)
    if options.seed is None and not options.seeds:
        parser.error("name a seed, or --seeds N")
    # Faults are made on purpose here; what the core says of each is no news.
    for name in ("treadle.core", "treadle.schedules"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if options.canaries:
        return _hunt(options.seeds, options.cores)
    make = NarrowDrill if options.limited else Sums if options.applications else Drill
    if options.seed is not None:
        print(simulate(options.seed, make, cores=options.cores))
        return 0
    began, records, deaths = time.monotonic(), 0, 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            outcome = simulate(seed, make, cores=options.cores)
        except SimulationFailed as failure:
            print(f"seed {seed} failed: {failure}", file=sys.stderr)
            return 1
        records, deaths = records + outcome.records, deaths + outcome.deaths
    took = time.monotonic() - began
    print(f"{options.seeds} seeds passed in {took:.0f} s: {records} records, {deaths} deaths of a process")
    return 0


def _hunt(seeds: int, cores: int) -> int:
    """Plants one bug after another; 1 if one of them is not found."""
    missed = 0
    for canary, make in hunted(cores):
        found = seeds_to_find(canary, make, seeds_max=seeds, cores=cores)
        if found is None:
            missed += 1
            print(f"NOT FOUND in {seeds} seeds: {canary.__name__}", file=sys.stderr, flush=True)
        else:
            print(f"{canary.__name__}: found with seed {found[0] - 1}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
