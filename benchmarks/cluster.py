"""Many machines on one PostgreSQL, measured on this one: growth, ceilings, latencies.

    python benchmarks/cluster.py                     everything: about 40 minutes, on a quiet machine
    python benchmarks/cluster.py --quick             tiny sizes, about 3 minutes: does it all work?
    python benchmarks/cluster.py --only ceiling workers
    python benchmarks/cluster.py --only workers --again    the other figures of the file stay, and the page says so
    python benchmarks/cluster.py --out FILE.json     where the raw figures go (default: docs/benchmarks/cluster.json)
    python benchmarks/cluster.py --postgres URL      a server that is there already, for databases of ours

Without `--postgres` a server is started with its own settings, durable ones, in a folder of its own. Every measurement has a
database of its own, but for `records`, which goes on in that of `waiting`. Subjects take turns within a round. What fails is
noted, and the rest goes on; the JSON is written after each figure. The report (docs/benchmarks/cluster.md) is made by
`cluster_report.py` from the JSON alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cluster_measures as measures
from calibrate import calibrate
from cluster_house import Postgres, nats_server, postgres
from cluster_sizes import BUSES, MEASURES, OURS, SIZES, SUBJECTS, ClusterSizes
from compare import Process, commit, machine, say, turned
from environments import Environment, Unavailable, environment
from workloads import Sizes

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "cluster.json"
Found = dict[str, Any]
SAID_MAX: Final = 500


class Notes:
    """What was measured, in the order in which it was. `keep` is handed all of it after each figure."""

    def __init__(
        self, pg: Postgres, folder: Path, sizes: ClusterSizes, keep: Callable[[Found], None]
    ) -> None:
        self._pg, self._folder, self._sizes, self._keep = pg, folder, sizes, keep
        self.found: Found = {
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": commit(),
            "machine": machine(),
            "postgres": pg.about(),
            "sizes": sizes.as_dict(),
            "subjects": {},
            "unavailable": {},
            "calibrations": [],
            "samples": [],
            "again": {},
        }

    def go_on_from(self, before: Found, measures: list[str]) -> None:
        """What was measured earlier stays, but for these measures."""
        when = {key: self.found[key] for key in ("made", "commit")}
        for kind in ("calibrations", "samples"):
            self.found[kind] = [one for one in before[kind] if one["measure"] not in measures]
        self.found |= {key: before[key] for key in ("made", "commit", "subjects", "unavailable")}
        self.found["again"] = before.get("again", {}) | dict.fromkeys(measures, when)

    def calibrate(self, measure: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as bare:
            given = calibrate(Path(bare), self._sizes.calibrate_s)
        given["postgres_commits_per_s"] = self._pg.single_commits_per_s(self._sizes.calibrate_s)
        self.found["calibrations"].append({"measure": measure, **given})

    def take(self, measure: str, subject: str, figures: Callable[[Path], Found]) -> None:
        begun = time.monotonic()
        sample: Found = {"measure": measure, "subject": subject}
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as own:
            try:
                sample["figures"] = figures(Path(own))
            except (Exception, SystemExit) as error:
                sample["failed"] = f"{error}"[-SAID_MAX:] or type(error).__name__
        sample |= {"seconds": time.monotonic() - begun, "load": os.getloadavg()[0]}
        self.found["samples"].append(sample)
        shown = sample.get("failed") or ", ".join(
            f"{key} {value:.4g}" for key, value in sample["figures"].items()
        )
        say(f"{measure:10} {subject:20} {shown}")
        self._keep(self.found)


def ceiling(pg: Postgres, notes: Notes, sizes: ClusterSizes, subjects: list[str]) -> None:
    """The workload W1x100 of `compare.py`, by its own driver, on PostgreSQL; and the engine with long runs."""
    environments: dict[str, Environment] = {}
    for subject in subjects:
        try:
            environments[subject] = environment("treadle_process" if subject in OURS else subject)
        except Unavailable as error:
            notes.found["unavailable"][subject] = str(error)
            say(f"{subject} cannot be had: {error}")
    same = Sizes(seconds=sizes.seconds, steps=sizes.steps, at_once=sizes.at_once, patience_s=sizes.patience_s)
    for number in range(sizes.rounds):
        notes.calibrate("ceiling")
        for subject in turned(list(environments), number):
            drive = partial(driven, pg, notes, environments[subject], subject)
            notes.take("ceiling", subject, partial(drive, same))
            if subject == "treadle_toy":
                notes.take(
                    "ceiling", "treadle_toy_long", partial(drive, replace(same, steps=sizes.steps_long))
                )


def driven(pg: Postgres, notes: Notes, where: Environment, subject: str, sizes: Sizes, folder: Path) -> Found:
    with pg.database() as store:
        variables = {**where.variables, "BENCH_POSTGRES": store}
        told = Environment(where.python, variables, where.packages)
        got = Process(told, subject, "W1x100", folder, sizes).result(sizes.patience_s)
    if "figures" not in got:
        raise SystemExit(str(got.get("failed") or got.get("cannot")))
    notes.found["subjects"][subject] = {"about": got["about"], "packages": where.packages}
    figures: Found = got["figures"]
    return figures


def members(pg: Postgres, notes: Notes, sizes: ClusterSizes) -> None:
    for number in range(sizes.rounds):
        for count in turned(list(sizes.members), number):
            notes.take("members", f"{count}", partial(measures.members, pg, sizes, count))


def workers(pg: Postgres, notes: Notes, sizes: ClusterSizes, buses: list[str], folder: Path) -> None:
    for bus in buses:
        with nats_server(folder) if bus == "nats" else contextlib.nullcontext() as nats:
            for count in sizes.workers:
                notes.take(
                    "workers",
                    f"{bus} {count}",
                    partial(measures.workers, pg, sizes, count, bus, nats),
                )


@contextlib.contextmanager
def shared_store(pg: Postgres, only: list[str]) -> Iterator[str]:
    """`records` goes on where `waiting` was."""
    if {"waiting", "records"} & set(only):
        with pg.database() as store:
            yield store
    else:
        yield ""


def measure(
    pg: Postgres,
    folder: Path,
    sizes: ClusterSizes,
    only: list[str],
    subjects: list[str],
    buses: list[str],
    keep: Callable[[Found], None] = lambda found: None,
    before: Found | None = None,
) -> Found:
    notes = Notes(pg, folder, sizes, keep)
    if before is not None:
        notes.go_on_from(before, only)
    with shared_store(pg, only) as store:
        for name in only:
            if name != "ceiling":
                notes.calibrate(name)
            if name == "ceiling":
                ceiling(pg, notes, sizes, subjects)
            elif name == "members":
                members(pg, notes, sizes)
            elif name == "workers":
                workers(pg, notes, sizes, buses, folder)
            elif name == "elsewhere":
                notes.take(name, "two servers", partial(measures.elsewhere, pg, sizes))
            elif name == "waiting":
                notes.take(name, f"{sizes.waiting:,} runs", partial(measures.waiting, pg, sizes, store))
            else:
                notes.take(name, "one server", partial(measures.records, pg, sizes, store))
    notes.found["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    keep(notes.found)
    return notes.found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--sizes", choices=list(SIZES), default="full", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument("--again", action="store_true", help="the figures of other measures in the file stay")
    parser.add_argument("--subjects", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--buses", nargs="+", choices=list(BUSES), default=list(BUSES))
    parser.add_argument("--postgres", metavar="URL", help="a server that is there already")
    parser.add_argument("--folder", type=Path, help="where the stores go; its disk is what is measured")
    parser.add_argument("--out", type=Path, help="where the raw figures go")
    parser.add_argument("--no-report", action="store_true", help="the raw figures only")
    given = parser.parse_args()
    sizes = SIZES["quick" if given.quick else given.sizes]
    out: Path = given.out or (
        OUT if sizes is SIZES["full"] else Path(tempfile.gettempdir()) / "treadle-cluster.json"
    )
    out.parent.mkdir(parents=True, exist_ok=True)

    before = json.loads(out.read_text("utf-8")) if given.again else None

    def keep(found: Found) -> None:
        out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")

    # Whoever is told to end stops what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(dir=given.folder, prefix="treadle-cluster-") as folder,
        postgres(given.postgres, given.folder) as pg,
    ):
        measure(pg, Path(folder), sizes, given.only, given.subjects, given.buses, keep, before)
    say(f"raw figures: {out}")
    if not given.no_report:
        from cluster_report import report

        print(report(out))


if __name__ == "__main__":
    main()
