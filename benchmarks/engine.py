"""How fast the engine is on this machine, beside a bare commit loop, on the toy dialect.

    python benchmarks/engine.py            everything; some minutes
    python benchmarks/engine.py --quick    the same at a smaller scale, for a first impression
    python benchmarks/engine.py --only sequential concurrent
    python benchmarks/engine.py --json     one JSON document on stdout, progress on stderr

Every store is SQLite with synchronous=FULL on the file system of --folder (default: a temporary one).
Rates of steps are shown beside the bare loop that ran just before and after them, because disks differ more
than engines do, and from one minute to the next. Beware of figures taken under a load above zero.
Nothing is asserted about time: a figure is something to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measures import FULL, MEASURES, QUICK, Scale, crash

Figures = dict[str, Any]


def rows(found: Figures, scale: Scale) -> list[tuple[str, str, str, str]]:
    """(section, what, figure, remark) for everything that was measured."""

    def rate(name: str) -> tuple[str, str]:
        bare = found.get(f"{name}_bare")
        remark = f"{found[name] / bare:.2f} × the {bare:,.0f} /s of the bare loop around it" if bare else ""
        return f"{found[name]:,.0f} /s", remark

    table: list[tuple[str, str, str, str]] = []

    def add(section: str, what: str, name: str, show: Any) -> None:
        if name in found:
            figure, remark = show(name)
            table.append((section, what, figure, remark))

    def unit(text: str) -> Any:
        return lambda name: (text.format(found[name]), "")

    add("commits", "bare single-row FULL commit loop", "bare", rate)
    add("commits", "the same beside a busy thread", "bare_busy", rate)
    for what, name in (("one run", "sequential"), (f"{scale.runs_concurrent} runs at once", "concurrent")):
        for lane, suffix in (("function", ""), ("coroutine", "_coroutine")):
            add("steps", f"{what}, {lane}, idle", f"{name}{suffix}", rate)
            add("steps", f"{what}, {lane}, busy thread beside", f"{name}{suffix}_busy", rate)
    add("steps", "playbooks of 50 steps, one after the other", "playbook_sequential", rate)
    add("steps", f"playbooks, {found.get('playbook_runs', 0)} at once", "playbook_concurrent", rate)
    add("steps", "bytes on disk per step", "bytes_per_step", unit("{:,.0f} B"))
    for length in (10, 1_000, scale.length):
        name = f"ms_at_{length}"
        add(
            "length",
            f"a step at run length {length:,}",
            name,
            lambda n: (f"{found[n]:.3f} ms", f"{found[n] / found['ms_at_10']:.2f} × length 10"),
        )
    for count in (10_000, scale.waiting):
        add("waiting", f"start, up to {count:,} waiting runs", f"start_rate_{count}", rate)
        add("waiting", f"wake among {count:,}", f"wake_rate_{count}", rate)
        add(
            "waiting",
            f"memory with {count:,}",
            f"rss_mb_{count}",
            lambda n, count=count: (
                f"{found[n]:,.0f} MB",
                f"{found[f'rss_before_mb_{count}']:,.0f} MB before the first",
            ),
        )
        add("waiting", f"disk per run, {count:,}", f"store_bytes_per_run_{count}", unit("{:,.0f} B"))
    for label in ("short", "long"):
        name = f"recovery_{label}"
        add(
            "recovery",
            f"{scale.in_flight:,} in flight, tail of {found.get(f'{name}_tail', 0):.0f} records",
            f"{name}_s",
            unit("{:.2f} s"),
        )
    for what, name in (
        ("a Python that does nothing", "cold_python_ms"),
        ("import treadle", "cold_import_ms"),
        ("from treadle import Engine", "cold_engine_ms"),
        ("treadle --help, whole process", "cold_help_ms"),
    ):
        add("cold start", what, name, unit("{:,.1f} ms"))
    return table


def print_table(table: list[tuple[str, str, str, str]]) -> None:
    wide = max(len(row[1]) for row in table)
    section = ""
    for row in table:
        if row[0] != section:
            section = row[0]
            print(f"\n{section}")
        print(f"  {row[1]:<{wide}}  {row[2]:>16}  {row[3]}".rstrip())


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
    }


def in_own_process(name: str, *, quick: bool, folder: Path) -> Figures:
    command = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
    # Or what is loaded late would be compiled in the middle of a measurement.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        command + (["--quick"] if quick else []), stdout=subprocess.PIPE, env=env, text=True, check=False
    )
    if done.returncode != 0:
        print(f"{name}: failed, see above", file=sys.stderr)
        return {}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(arguments: argparse.Namespace, folder: Path) -> Figures:
    found: Figures = {}
    for name in arguments.only or MEASURES:
        print(f"measuring {name}: {MEASURES[name].__doc__}".split("\n")[0], file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as own:
            found |= in_own_process(name, quick=arguments.quick, folder=Path(own))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller scale")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), help="some measurements only")
    parser.add_argument("--folder", type=Path, help="where the stores go; its disk is what is measured")
    parser.add_argument("--one", choices=list(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--crash", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    if arguments.crash:
        crash(Path(arguments.crash[0]), int(arguments.crash[1]), int(arguments.crash[2]))
    if arguments.one:
        print(json.dumps(MEASURES[arguments.one](arguments.folder, scale)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="treadle-bench-") as folder:
        found = measure(arguments, Path(folder))
    found["machine"] = machine()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    print_table(rows(found, scale))


if __name__ == "__main__":
    main()
