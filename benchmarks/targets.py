"""What Treadle wants to reach, as ratios of medians of one comparison, and whether it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Engines that take their runs up again by themselves. Burr and LangGraph keep checkpoints; their caller takes up runs.
JOURNALING = ("dbos", "restate", "temporal")
PEERS = (*JOURNALING, "langgraph", "burr", "prefect")
DIALECTS = ("treadle_process", "treadle_playbook", "treadle_functions")

Median = Callable[[str, str, str], float | None]  # workload, figure, subject


@dataclass(frozen=True)
class Target:
    """`more`: ours at least `factor` × theirs; else theirs at least `factor` × ours. Against "bare": the commit loop
    beside it; against nothing: the figure itself is to be below `factor`."""

    workload: str
    figure: str
    factor: float
    against: tuple[str, ...] = ()
    more: bool = False
    subjects: tuple[str, ...] = DIALECTS
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    target: Target
    subject: str
    wanted: str
    reached: str
    met: bool | None  # None: there is nothing to compare with
    share: float | None = None  # of what was wanted

    @property
    def why(self) -> str:
        """What stands in the way of a target that is missed."""
        return "" if self.met is not False else WHY.get(self.target.workload, "")


# Said of a target that is missed, and only then. Where a share is named, the profile of the comparison has it.
WHY = {
    "W1x1": "A step is one commit, and the calls around it find the processor's caches cold after each wait for the disk: the same "
    "calls take two to three times as long as in W1x100. The start and the end of a run, over two threads each, are shared by ten steps only.",
    "W1x100": "Commits are full and shared: the time is that of Python, divided as the profile below says.",
    "W1pure": "One commit in ten steps; the rest is Python, which the bare loop does not have.",
    "W2steps": "One run decides on its receipts one after the other: its records are a chain.",
    "W2children": "A child is a run of its own: a start, a step and an end, with a message each way.",
    "W3": "Starts and signals are records and rows of their own; memory is mostly that of Python and its modules.",
    "W4": "Four steps of 0.2 s have to pass in any case: 0.8 s, and the start of a process.",
    "W5": "Python with asyncio and sqlite3 takes most of 0.15 s by itself on such a machine; the rest is the import of our modules and the "
    "making of a store with its tables.",
    "W6": "Rows, indexes and pages around the records.",
    "W7": "Snapshots and pages of a larger store.",
    "W8": "A node is a commit, and bare commits alone take about three quarters of the time that the target leaves. W8pure shows the same "
    "chain where a model is declared to touch nothing outside.",
}


TARGETS = (
    Target(
        "W1x100",
        "steps_per_s",
        2.5,
        ("bare",),
        more=True,
        note="20,000 steps/s where the bare loop does 8,000",
    ),
    Target("W1x100", "steps_per_s", 5, JOURNALING, more=True),
    Target("W1x100", "steps_per_s", 3, ("burr",), more=True),
    Target("W1x1", "steps_per_s", 0.6, ("bare",), more=True),
    Target("W1x1", "steps_per_s", 1, PEERS, more=True),
    Target(
        "W1pure", "steps_per_s", 3, ("bare",), more=True, subjects=("treadle_process", "treadle_playbook")
    ),
    Target("W2steps", "seconds", 4, PEERS),
    Target("W2children", "seconds", 4, PEERS),
    Target("W3", "start_s", 5, JOURNALING),
    Target("W3", "wake_s", 3, JOURNALING),
    Target("W3", "memory_mb", 10, JOURNALING),
    Target("W4", "seconds", 2, JOURNALING),
    Target("W4", "lost", 1),
    Target("W4", "settled_twice", 1),
    Target("W5", "seconds", 0.15),
    Target("W6", "bytes_per_step", 200),
    Target("W7", "last_over_first", 1.2),
    Target("W8", "nodes_per_s", 5, ("langgraph",), more=True, subjects=("treadle_agent",)),
)


def judge(target: Target, subject: str, median: Median, bare: float | None) -> Verdict:
    ours = median(target.workload, target.figure, subject)
    if not target.against:
        wanted = f"{target.figure} below {target.factor:g}"
        if ours is None:
            return Verdict(target, subject, wanted, "not measured", None)
        share = target.factor / ours if ours else None
        return Verdict(target, subject, wanted, f"{ours:.3g}", ours < target.factor, share)
    if target.against == ("bare",):
        theirs, name = bare, "the bare commit loop"
    else:
        theirs, name = _best(target, median)
    wanted = f"{target.figure}: {target.factor:g} × {'better than ' if not target.more else ''}{name}"
    if ours is None or theirs is None:
        return Verdict(target, subject, wanted, "nothing to compare with", None)
    ratio = ours / theirs if target.more else theirs / ours if ours else float("inf")
    return Verdict(target, subject, wanted, f"{ratio:.2f} ×", ratio >= target.factor, ratio / target.factor)


def _best(target: Target, median: Median) -> tuple[float | None, str]:
    """The best peer among those the target names."""
    found = {peer: median(target.workload, target.figure, peer) for peer in target.against}
    known = {peer: value for peer, value in found.items() if value is not None}
    if not known:
        return None, " / ".join(target.against)
    best = (max if target.more else min)(known, key=lambda peer: known[peer])
    return known[best], best
