"""A page and verdicts from the raw figures of `cluster.py`, and from nothing else.

    python benchmarks/cluster_report.py [docs/benchmarks/cluster.json]

Writes cluster.md beside the JSON, and prints the targets.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cluster_sizes import FULL, MEASURES
from report import number

CEILING, FACTOR, EFFICIENCY, READY_S = 6_000, 5, 0.8, 10
Row = list[str]


class Samples:
    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def values(self, measure: str, subject: str, figure: str) -> list[float]:
        return [
            sample["figures"][figure]
            for sample in self.found["samples"]
            if (sample["measure"], sample["subject"]) == (measure, subject)
            and figure in sample.get("figures", {})
        ]

    def median(self, measure: str, subject: str, figure: str) -> float | None:
        values = self.values(measure, subject, figure)
        return statistics.median(values) if values else None

    def subjects(self, measure: str) -> list[str]:
        return list(dict.fromkeys(s["subject"] for s in self.found["samples"] if s["measure"] == measure))

    def failures(self, measure: str) -> list[str]:
        samples = (s for s in self.found["samples"] if s["measure"] == measure and "failed" in s)
        return [f"- {sample['subject']}: failed: {sample['failed']}" for sample in samples]

    def bare(self, measure: str) -> float | None:
        found = [c["postgres_commits_per_s"] for c in self.found["calibrations"] if c["measure"] == measure]
        return statistics.median(found) if found else None


def table(head: Row, rows: list[Row]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"] + [
        "| " + " | ".join(row) + " |" for row in rows
    ]


def shown(value: float | None) -> str:
    return "—" if value is None else number(value)


def ceiling(samples: Samples) -> list[str]:
    names = {
        "treadle_toy_long": f"Treadle, engine alone, runs of {samples.found['sizes']['steps_long']} steps",
        "treadle_toy": "Treadle, engine alone",
        "dbos": "DBOS",
    }
    rows, dbos = [], samples.median("ceiling", "dbos", "steps_per_s")
    for subject in samples.subjects("ceiling"):
        values = samples.values("ceiling", subject, "steps_per_s")
        if not values:
            continue
        middle = statistics.median(values)
        ratio = f"{middle / dbos:.1f} ×" if dbos else "—"
        name = names.get(subject, subject.replace("treadle_", "Treadle "))
        cpu = samples.median("ceiling", subject, "own_cpu_ms_per_step")
        spread = f"{number(min(values))} – {number(max(values))}"
        rows.append([name, f"**{number(middle)}**", spread, ratio, shown(cpu)])
    return table(["", "steps/s, median", "least – most", "of DBOS", "CPU ms a step (Python)"], rows)


def growing(samples: Samples, measure: str, prefix: str, what: str) -> list[str]:
    subjects = [s for s in samples.subjects(measure) if s.startswith(prefix)]
    one = samples.median(measure, f"{prefix}1", "steps_per_s")
    rows = []
    for subject in subjects:
        rate, count = samples.median(measure, subject, "steps_per_s"), int(subject.removeprefix(prefix))
        share = f"{rate / (one * count):.2f}" if rate and one else "—"
        rows.append([f"{count} {what}", shown(rate), share])
    return table(["", "steps/s", "of so many times one"], rows)


def workers(samples: Samples) -> list[str]:
    lines: list[str] = []
    for bus in dict.fromkeys(subject.split()[0] for subject in samples.subjects("workers")):
        lines += [f"Over {bus}:", "", *growing(samples, "workers", f"{bus} ", "workers"), ""]
    sizes = samples.found["sizes"]
    most = sizes["concurrency"] / sizes["nap_s"]
    return [
        *lines,
        f"A step waits {sizes['nap_s']} s, a worker does {sizes['concurrency']} at once: at most {number(most)} steps/s each.",
    ]


def elsewhere(samples: Samples) -> list[str]:
    subject, rows = "two servers", []
    for suffix, clients in (
        ("", "one at a time"),
        ("_many", f"{samples.found['sizes']['connections']} at once"),
    ):
        for what in ("start", "signal"):
            for place, at in (("owner", "the server that decides it"), ("elsewhere", "another server")):
                name = f"{what}_{place}{suffix}"
                cells = [
                    shown(samples.median("elsewhere", subject, f"{name}_{key}"))
                    for key in ("p50_ms", "p99_ms", "per_s")
                ]
                rows.append([f"{what} at {at}, {clients}", *cells])
    return table(["", "p50, ms", "p99, ms", "a second"], rows)


WORDS = {
    "waiting": {
        "runs": "runs that wait",
        "starts_per_s": "started, a second",
        "wakes_per_s": "woken among them by signal, a second",
        "memory_before_mb": "memory of that process before, MB",
        "memory_mb": "with all of them waiting, MB",
        "store_bytes_per_run": "bytes of the database a run",
        "ready_s": "a new server is ready after, s",
        "all_shards_s": "and holds all shards after, s",
        "cold_signal_p50_ms": "a signal to a run that nobody has in memory, p50, ms",
        "cold_signal_p99_ms": "p99, ms",
        "server_memory_mb": "memory of that server afterwards, MB",
    },
    "records": {
        "records": "records in the store",
        "copied_runs": "runs that are copies of rows of real ones",
        "store_gb": "size of the database, GB",
        "ready_s": "a server is ready after, s",
        "all_shards_s": "and holds all shards after, s",
        "first_run_s": "its first whole run of one step, s",
        "server_memory_mb": "its memory, MB",
    },
}


def listed(samples: Samples, measure: str) -> list[str]:
    (subject,) = samples.subjects(measure)
    rows = [[words, shown(samples.median(measure, subject, key))] for key, words in WORDS[measure].items()]
    return table(["", subject], rows)


def targets(samples: Samples) -> list[str]:
    """Each target beside what was reached."""
    rows: list[Row] = []

    def judge(what: str, wanted: str, reached: float | None, met: bool) -> None:
        rows.append([what, wanted, shown(reached), "—" if reached is None else "**yes**" if met else "no"])

    best = samples.median("ceiling", "treadle_toy_long", "steps_per_s")
    judge("ceiling: one server, engine alone", f"≥ {CEILING:,} steps/s", best, (best or 0) >= CEILING)
    dbos = samples.median("ceiling", "dbos", "steps_per_s")
    for subject in ("treadle_process", "treadle_playbook", "treadle_functions"):
        ours = samples.median("ceiling", subject, "steps_per_s")
        ratio = ours / dbos if ours and dbos else None
        judge(f"ceiling: {subject}", f"≥ {FACTOR} × DBOS", ratio, (ratio or 0) >= FACTOR)
    most = max(samples.found["sizes"]["workers"])
    for bus in dict.fromkeys(subject.split()[0] for subject in samples.subjects("workers")):
        one, many = (samples.median("workers", f"{bus} {count}", "steps_per_s") for count in (1, most))
        share = many / (one * most) if one and many else None
        judge(
            f"workers over {bus}: efficiency with {most}",
            f"≥ {EFFICIENCY}",
            share,
            (share or 0) >= EFFICIENCY,
        )
    for measure in ("waiting", "records"):
        for subject in samples.subjects(measure):
            ready = samples.median(measure, subject, "all_shards_s")
            judge(f"{measure}: a server starts", f"within {READY_S} s", ready, (ready or READY_S) < READY_S)
    return table(["", "target", "reached", "met"], rows)


SECTIONS = {
    "ceiling": ceiling,
    "members": lambda samples: growing(samples, "members", "", "members"),
    "workers": workers,
    "elsewhere": elsewhere,
    "waiting": lambda samples: listed(samples, "waiting"),
    "records": lambda samples: listed(samples, "records"),
}


def anew(found: dict[str, Any]) -> list[str]:
    """Which figures are of another time and another commit than the rest."""
    said = [f"{name} ({at['made']}, `{at['commit']}`)" for name, at in found.get("again", {}).items()]
    return [f"Measured again since: {', '.join(said)}.", ""] if said else []


def page(samples: Samples, name: str) -> str:
    found = samples.found
    machine, loads = found["machine"], sorted(sample["load"] for sample in found["samples"])
    pg = ", ".join(f"{key} {value}" for key, value in found["postgres"].items() if key != "server_version")
    smaller = found["sizes"] != json.loads(json.dumps(FULL.as_dict()))
    lines = [
        "# Many machines, measured on one",
        "",
        f"Made by `benchmarks/cluster_report.py` from [{name}]({name}) and nothing else; do not edit. `python benchmarks/cluster.py` makes both anew.",
        "",
        f"{found['made']}, commit `{found['commit']}`: {machine['cpus']} × {machine['cpu']}, {machine['system']}, Python {machine['python']}. "
        f"PostgreSQL {found['postgres']['server_version']} on the same machine ({pg}). Load while it ran: {loads[0]:.1f} to {loads[-1]:.1f}, "
        f"median {statistics.median(loads):.1f}. Everything here shares these processors: servers, workers, clients, PostgreSQL and NATS.",
        "",
        *anew(found),
        *(["**Not the full sizes.**", ""] if smaller else []),
        "## Targets",
        "",
        *targets(samples),
        "",
    ]
    for measure, title in MEASURES.items():
        if not samples.subjects(measure):
            continue
        bare = samples.bare(measure)
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        if any("figures" in s for s in found["samples"] if s["measure"] == measure):
            lines += [*SECTIONS[measure](samples), ""]
        if failures := samples.failures(measure):
            lines += [*failures, ""]
        lines += (
            [f"Bare single-row commits on this PostgreSQL just before: {shown(bare)} /s.", ""] if bare else []
        )
    lines += [f"- {subject} could not be had: {why}" for subject, why in found["unavailable"].items()]
    return "\n".join(lines).rstrip() + "\n"


def report(path: Path) -> str:
    """Writes the page beside the JSON; gives the targets as text."""
    samples = Samples(json.loads(path.read_text("utf-8")))
    path.with_suffix(".md").write_text(page(samples, path.name), "utf-8")
    return "\n".join(targets(samples))


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "cluster.json"
    print(report(Path(sys.argv[1]) if len(sys.argv) > 1 else here))
