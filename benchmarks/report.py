"""Tables, charts and verdicts from the raw figures of `compare.py`, and from nothing else.

    python benchmarks/report.py [docs/benchmarks/compare.json]

Writes README.md and one SVG a workload beside the JSON, and prints the targets.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from charts import Bar, bars
from targets import TARGETS, Verdict, judge
from workloads import FULL, WORKLOADS

# Figures beside a workload's main one.
MORE = {
    "W1pure": {"own_cpu_ms_per_step": "CPU ms a step (Python side)"},
    "W1x1": {"own_cpu_ms_per_step": "CPU ms a step (Python side)"},
    "W1x100": {"own_cpu_ms_per_step": "CPU ms a step (Python side)"},
    "W3": {"wake_s": "wake, s", "memory_mb": "memory, MB", "memory_before_mb": "before, MB"},
    "W4": {
        "opened_s": "to open, s",
        "lost": "lost",
        "settled_twice": "settled twice",
        "begun_before_the_kill": "in their second step at the kill",
    },
    "W7": {"steps": "steps reached", "first_us": "first, µs"},
    "W9": {"p50_ms": "p50, ms", "p99_ms": "p99, ms"},
}


class Figures:
    """The samples of one comparison, asked by workload, figure and subject."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.subjects = list(found["subjects"])
        self.workloads = [name for name in WORKLOADS if any(s["workload"] == name for s in found["samples"])]

    def values(self, workload: str, figure: str, subject: str) -> list[float]:
        return [
            sample["figures"][figure]
            for sample in self.found["samples"]
            if (sample["workload"], sample["subject"]) == (workload, subject)
            and sample.get("figures", {}).get(figure) is not None
        ]

    def median(self, workload: str, figure: str, subject: str) -> float | None:
        values = self.values(workload, figure, subject)
        return statistics.median(values) if values else None

    def why_not(self, workload: str, subject: str) -> str:
        for sample in self.found["samples"]:
            if (sample["workload"], sample["subject"]) == (workload, subject):
                if "cannot" in sample:
                    return str(sample["cannot"])
                if "failed" in sample:
                    return f"failed: {sample['failed']}"
        return "not measured"

    def bare(self, workload: str, figure: str = "single_commits_per_s") -> float | None:
        values = [c[figure] for c in self.found["calibrations"] if c["workload"] == workload]
        return statistics.median(values) if values else None

    def loads(self) -> list[float]:
        return sorted(sample["load"] for sample in self.found["samples"])


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shown(subject: str) -> str:
    return subject.replace("treadle_", "Treadle ") if subject.startswith("treadle_") else subject


def section(figures: Figures, workload: str) -> str:
    title, key, unit, less = WORKLOADS[workload]
    more = MORE.get(workload, {})
    head = ["", f"{key.replace('_', ' ')}, median ({unit})", "least – most", "samples", *more.values()]
    lines = [f"## {workload}: {title}", "", f"![{title}]({workload}.svg)", ""]
    lines += ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    cannot = []
    for subject in figures.subjects:
        values = figures.values(workload, key, subject)
        if not values:
            cannot.append(f"- {shown(subject)}: {figures.why_not(workload, subject)}")
            continue
        extra = (figures.median(workload, name, subject) for name in more)
        cells = [shown(subject), f"**{number(statistics.median(values))}**"]
        cells += [f"{number(min(values))} – {number(max(values))}", str(len(values))]
        lines.append("| " + " | ".join([*cells, *("—" if x is None else number(x) for x in extra)]) + " |")
    bare = figures.bare(workload)
    if bare is not None:
        lines += [
            "",
            f"Bare single-row commits just before: {number(bare)} /s. {'Less' if less else 'More'} is better.",
        ]
    return "\n".join([*lines, "", *cannot, ""])


def chart(figures: Figures, workload: str) -> str:
    title, key, unit, less = WORKLOADS[workload]
    rows = []
    for subject in figures.subjects:
        values = figures.values(workload, key, subject)
        if values:
            middle = statistics.median(values)
            ours = subject.startswith("treadle_")
            rows.append(
                Bar(shown(subject), middle, min(values), max(values), f"{number(middle)} {unit}", ours)
            )
    rows.sort(key=lambda bar: bar.median, reverse=not less)
    word = "less" if less else "more"
    return bars(f"{workload}: {title}", f"{unit}, {word} is better; bar: median, line: least to most", rows)


def verdicts(figures: Figures) -> list[Verdict]:
    return [
        judge(target, subject, figures.median, figures.bare(target.workload))
        for target in TARGETS
        if target.workload in figures.workloads
        for subject in target.subjects
        if subject in figures.subjects
    ]


def verdict_table(figures: Figures) -> str:
    words = {True: "**yes**", False: "no", None: "—"}
    lines = ["| workload | subject | target | reached | met |", "|---|---|---|--:|---|"]
    for found in verdicts(figures):
        note = f" ({found.target.note})" if found.target.note else ""
        met = words[found.met] if found.met is not False else f"no: {found.share or 0:.0%} of it"
        lines.append(
            f"| {found.target.workload} | {shown(found.subject)} | {found.wanted}{note} | {found.reached} | {met} |"
        )
    return "\n".join(lines)


def missed(figures: Figures) -> list[str]:
    """What is missed, and why."""
    why = {found.target.workload: found.why for found in verdicts(figures) if found.met is False}
    lines = [f"- {workload}: {text}" for workload, text in why.items() if text]
    return ["What stands in the way of the targets that are missed:", "", *lines, ""] if lines else []


def profile(figures: Figures) -> list[str]:
    """Where the CPU time of W1x100 goes."""
    found: dict[str, dict[str, float]] = figures.found.get("profiles", {})
    if not found:
        return []
    rooms = sorted(
        {room for shares in found.values() for room in shares}, key=lambda room: -_most(found, room)
    )
    lines = ["## Where the time of a step goes", ""]
    lines += [
        f"![flame graph of {shown(subject)}](flame-{subject.removeprefix('treadle_')}.svg)"
        for subject in found
    ]
    lines += [
        "",
        "Shares of the CPU time of W1x100, by the room whose code ran (looked at, so shares and no rates):",
        "",
    ]
    lines += ["| | " + " | ".join(map(shown, found)) + " |", "|---" + "|--:" * len(found) + "|"]
    for room in rooms:
        cells = (f"{shares[room]:.0%}" if room in shares else "—" for shares in found.values())
        lines.append(f"| {room} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _most(found: dict[str, dict[str, float]], room: str) -> float:
    return max(shares.get(room, 0.0) for shares in found.values())


def batched_share(figures: Figures) -> str:
    limit = figures.bare("W1x100", "batched_rows_per_s")
    if limit is None:
        return ""
    shares = []
    for subject in figures.subjects:
        rate = figures.median("W1x100", "steps_per_s", subject)
        if rate is not None and subject.startswith("treadle_"):
            shares.append(f"{shown(subject)} {rate / limit:.1%}")
    return (
        f"Rows committed by 64, with no engine around them: {number(limit)} /s. "
        f"Steps of W1x100 as a share of that: {', '.join(shares)}.\n"
    )


def smaller(sizes: dict[str, float]) -> list[str]:
    """A page of a quick run says so: its titles name the full sizes."""
    other = [f"{name} {value:g}" for name, value in sizes.items() if value != FULL.as_dict()[name]]
    return [f"**Not the full sizes**, whatever the titles say: {', '.join(other)}.", ""] if other else []


def page(figures: Figures, name: str) -> str:
    found = figures.found
    machine, loads = found["machine"], figures.loads()
    lines = [
        "# Treadle and its peers, side by side",
        "",
        f"Made by `benchmarks/report.py` from [{name}]({name}) and nothing else; do not edit. `make bench` makes both anew.",
        "",
        f"{found['made']}, commit `{found['commit']}`: {machine['cpus']} × {machine['cpu']}, {machine['system']}, "
        f"Python {machine['python']}, SQLite {machine['sqlite']}. "
        f"Load while it ran: {loads[0]:.1f} to {loads[-1]:.1f}, median {statistics.median(loads):.1f} "
        "(one measurement alone gives 1 to 2; more is neighbours, and noise).",
        "",
        *smaller(found["sizes"]),
        "All subjects do the same work, their results are checked, and they take turns within each round. They promise different things and are good at "
        "different things; read each figure beside what is said of its durability.",
        "",
        "| subject | version | what a commit is | after a kill | processes |",
        "|---|---|---|---|---|",
    ]
    for subject in figures.subjects:
        about = found["subjects"][subject].get("about", {})
        cells = [about.get(key, "—") for key in ("version", "durability", "recovery")]
        lines.append(
            "| " + " | ".join([shown(subject), *cells, about.get("processes", "one (Python)")]) + " |"
        )
    lines += [
        f"| {shown(subject)} | could not be had: {why} | | | |"
        for subject, why in found["unavailable"].items()
    ]
    lines += ["", "## Targets", "", verdict_table(figures), "", *missed(figures), batched_share(figures)]
    lines += profile(figures)
    return "\n".join(lines + [section(figures, workload) for workload in figures.workloads])


def report(path: Path) -> str:
    """Writes the page and its charts beside the JSON; gives the targets as text."""
    figures = Figures(json.loads(path.read_text("utf-8")))
    (path.parent / "README.md").write_text(page(figures, path.name), "utf-8")
    for workload in figures.workloads:
        (path.parent / f"{workload}.svg").write_text(chart(figures, workload), "utf-8")
    return verdict_table(figures)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "compare.json"
    print(report(Path(sys.argv[1]) if len(sys.argv) > 1 else here))
