"""Treadle's real dialects and real peers on the same workloads, interleaved, on this machine.

    python benchmarks/compare.py                     everything (make bench): about an hour, on a quiet machine
    python benchmarks/compare.py --minutes 25        as many rounds as fit into that time, but one at least
    python benchmarks/compare.py --quick             tiny sizes, one round, about 3 minutes: does it all work?
    python benchmarks/compare.py --only W1x1 W4 --subjects treadle_process restate
    python benchmarks/compare.py --out FILE.json     where the raw figures go (default: docs/benchmarks/compare.json)

A round takes each workload, and in it each subject, one after the other, so that all meet the same minutes; before each
workload the machine is calibrated. A subject's measurement is a process, in an environment and a folder of its own.
The report (tables, charts, targets) is made by `report.py` from the JSON alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from calibrate import calibrate
from environments import OURS, SUBJECTS, Environment, Unavailable, environment
from workloads import ROUNDS_AT_MOST, SIZES, WORKLOADS, Sizes

HERE = Path(__file__).resolve().parent
Found = dict[str, Any]
DRIVER = HERE / "peers" / "driver.py"
OUT = HERE.parent / "docs" / "benchmarks" / "compare.json"
STANDSTILL_S = 1.5
PROFILED = OURS[:3]  # the agent dialect has no such steps
SLOW_S, SLOW_ROUNDS = 20.0, 2  # who takes so long is measured so often, so that the whole ends within an hour


class Process:
    """A subject's process with all that it starts: one process group, which ends as one."""

    def __init__(self, where: Environment, subject: str, workload: str, folder: Path, sizes: Sizes) -> None:
        command = [where.python, str(DRIVER), subject, workload, str(folder), json.dumps(sizes.as_dict())]
        self._errors = folder.parent / f"{folder.name}-errors.txt"
        self.spawned = time.time()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                # Compiled once and kept, as everywhere but where somebody has switched that off.
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **where.variables},
                cwd=folder,
                start_new_session=True,
            )

    def result(self, patience_s: float) -> Found:
        try:
            out, _ = self._process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done in {patience_s:.0f} s"}
        finally:
            self.kill()
        if self._process.returncode != 0:
            return {"failed": self.errors()}
        found: Found = json.loads(out.splitlines()[-1])
        return found

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to all of them, and no goodbye."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def errors(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else f"exit {self._process.returncode}"


def measure(where: Environment, subject: str, workload: str, folder: Path, sizes: Sizes) -> Found:
    if workload == "W4":
        return killed(where, subject, folder, sizes)
    process = Process(where, subject, workload, folder, sizes)
    found = process.result(sizes.patience_s)
    if workload == "W5" and "figures" in found:
        found["figures"] = {"seconds": found["figures"]["done_at"] - process.spawned}
    return found


def killed(where: Environment, subject: str, folder: Path, sizes: Sizes) -> Found:
    """A life that ends by SIGKILL with every run in its second step, and one that ends them all."""
    (folder / "store").mkdir()
    log = folder / "steps.log"
    first = Process(where, subject, "W4before", folder, sizes)
    if (said := in_flight(first, log, sizes)) is not None:
        return said
    first.kill()
    before = traces(log)
    second = Process(where, subject, "W4after", folder, sizes)
    found = second.result(sizes.patience_s)
    if "figures" in found:
        figures = found["figures"]
        found["figures"] = {
            "seconds": figures["done_at"] - second.spawned,
            "opened_s": figures["opened_at"] - second.spawned,
            **judged(figures["results"], before, traces(log), sizes),
        }
    return found


def in_flight(first: Process, log: Path, sizes: Sizes) -> Found | None:
    """Waits until every run is in its second step, or, where fewer are worked on at once, until nothing begins any
    more. Gives what there is to say if it did not come to that."""
    due, reached, since = time.time() + sizes.patience_s, -1, time.time()
    while time.time() < due:
        if not first.running():
            return first.result(1)
        begun = len({run for run, step, _ in traces(log) if step == 1})
        if begun == sizes.in_flight:
            return None
        if begun != reached:
            reached, since = begun, time.time()
        elif begun > 0 and time.time() - since > STANDSTILL_S:
            return None
        time.sleep(0.02)
    first.kill()
    return {"failed": f"only {reached} runs in flight after {sizes.patience_s:.0f} s"}


def traces(log: Path) -> list[tuple[str, int, str]]:
    """Every execution of a step: run, number, the token that it gave or would have given."""
    if not log.exists():
        return []
    lines = (line.split() for line in log.read_text().splitlines())
    return [(run, int(step), token) for run, step, token in lines]


def judged(results: dict[str, list[str]], before: list[Any], after: list[Any], sizes: Sizes) -> Found:
    """Lost: a run without its whole result. Settled twice: a step was executed again although a later one had begun
    before the kill, or a result has a token that no execution of that step gave."""
    gave = {(run, step, token) for run, step, token in after}
    reached: dict[str, int] = defaultdict(int)
    for run, step, _ in before:
        reached[run] = max(reached[run], step)
    lost = sum(len(tokens) != sizes.slow_steps + 1 for tokens in results.values())
    lost += sizes.in_flight - len(results)
    again = sum(step < reached[run] for run, step, _ in after[len(before) :])
    strange = sum(
        (run, step, token) not in gave for run, got in results.items() for step, token in enumerate(got)
    )
    return {
        "lost": lost,
        "settled_twice": again + strange,
        "in_flight": len(reached),
        "begun_before_the_kill": sum(step == 1 for step in reached.values()),
        "executed_again": len(after) - sizes.in_flight * (sizes.slow_steps + 1),
    }


def machine() -> Found:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cpus": os.cpu_count(),
        "cpu": model[0].split(": ", 1)[1] if model else platform.processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_at_start": os.getloadavg(),
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=HERE, check=False
    )
    return done.stdout.strip()


def compare(
    workloads: list[str],
    subjects: list[str],
    sizes: Sizes,
    folder: Path,
    minutes: float = float("inf"),
    keep: Callable[[Found], None] = lambda found: None,
) -> Found:
    """`keep` is handed what there is after each round."""
    begun_s = time.monotonic()
    found: Found = {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
        "sizes": sizes.as_dict(),
        "subjects": {},
        "unavailable": {},
        "calibrations": [],
        "samples": [],
    }
    environments: dict[str, Environment] = {}
    for subject in subjects:
        try:
            environments[subject] = environment(subject)
            found["subjects"][subject] = {"packages": environments[subject].packages}
        except Unavailable as error:
            found["unavailable"][subject] = str(error)
            say(f"{subject} cannot be had: {error}")
    unfit: set[tuple[str, str]] = set()  # what a subject cannot do, or not in good time, is not asked again
    for number in range(sizes.rounds):
        if number and (time.monotonic() - begun_s) / 60 * (number + 1) / number > minutes:
            say(f"no time for round {number + 1}")
            break
        for workload in workloads:
            if number >= ROUNDS_AT_MOST.get(workload, sizes.rounds):
                continue
            with tempfile.TemporaryDirectory(dir=folder) as bare:
                calibration = {
                    "round": number,
                    "workload": workload,
                    **calibrate(Path(bare), sizes.calibrate_s),
                }
            found["calibrations"].append(calibration)
            for subject in turned(list(environments), number):
                if (subject, workload) in unfit:
                    continue
                begun = time.monotonic()
                with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
                    got = measure(environments[subject], subject, workload, Path(own), sizes)
                found["subjects"][subject] |= {"about": got.pop("about")} if "about" in got else {}
                slow = number + 1 >= SLOW_ROUNDS and time.monotonic() - begun > SLOW_S
                if slow or "figures" not in got:
                    unfit.add((subject, workload))
                load = os.getloadavg()[0]
                found["samples"].append(
                    {"round": number, "workload": workload, "subject": subject, "load": load, **got}
                )
                say(f"round {number + 1} {workload:10} {subject:18} {told(workload, got)}")
        keep(found)
    found["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return found


def profiles(subjects: list[str], folder: Path, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Where the time of our own steps goes: a flame graph each beside the figures, and shares by room."""
    found = {}
    for subject in subjects:
        if subject not in PROFILED:
            continue
        out = folder / f"flame-{subject.removeprefix('treadle_')}.svg"
        command = [sys.executable, str(HERE / "flame.py"), subject, str(out), str(2.5 * sizes.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=sizes.patience_s)
        if done.returncode == 0:
            found[subject] = json.loads(done.stdout.splitlines()[-1])
        say(done.stderr.strip().splitlines()[-1] if done.stderr else f"no profile of {subject}")
    return found


def turned(subjects: list[str], number: int) -> list[str]:
    """Each round begins with another subject, so that none always follows the same neighbour's dirt."""
    cut = number % len(subjects) if subjects else 0
    return subjects[cut:] + subjects[:cut]


def told(workload: str, got: Found) -> str:
    if "figures" not in got:
        return f"cannot: {got['cannot']}" if "cannot" in got else f"FAILED: {got['failed']}"
    _, key, unit, _ = WORKLOADS[workload]
    value = got["figures"][key]
    return "—" if value is None else f"{value:,.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--sizes", choices=list(SIZES), default="full", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--subjects", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--folder", type=Path, help="where the stores go; its disk is what is measured")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no round that would end later"
    )
    parser.add_argument("--out", type=Path, help="where the raw figures go")
    parser.add_argument("--no-report", action="store_true", help="the raw figures only")
    given = parser.parse_args()
    sizes = SIZES["quick" if given.quick else given.sizes]
    out: Path = given.out or (
        OUT if sizes is SIZES["full"] else Path(tempfile.gettempdir()) / "treadle-compare.json"
    )
    out.parent.mkdir(parents=True, exist_ok=True)

    def keep(found: Found) -> None:
        out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")

    with tempfile.TemporaryDirectory(dir=given.folder, prefix="treadle-compare-") as folder:
        found = compare(given.only, given.subjects, sizes, Path(folder), given.minutes, keep)
    if "W1x100" in given.only:
        found["profiles"] = profiles(list(found["subjects"]), out.parent, sizes)
    keep(found)
    say(f"raw figures: {out}")
    if not given.no_report:
        from report import report

        print(report(out))


if __name__ == "__main__":
    main()
