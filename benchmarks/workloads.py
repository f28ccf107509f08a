"""What is compared: the names of the workloads and their sizes, known to the one who asks and to each peer.

Only the standard library is used here: this file is imported in the environment of every peer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

# name → (title, what its main figure is called, its unit, whether less is better)
WORKLOADS: dict[str, tuple[str, str, str, bool]] = {
    "W1x1": ("10 trivial durable steps, one run at a time", "steps_per_s", "steps/s", False),
    "W1x100": ("10 trivial durable steps, 100 runs at once", "steps_per_s", "steps/s", False),
    "W1pure": (
        "10 steps that touch nothing outside (`pure`), one run at a time",
        "steps_per_s",
        "steps/s",
        False,
    ),
    "W2steps": ("one run with 1,000 parallel steps", "seconds", "s", True),
    "W2children": ("one run with 1,000 children of one step", "seconds", "s", True),
    "W3": ("10,000 runs that wait for a signal, then all of them woken", "start_s", "s", True),
    "W4": (
        "kill -9 with 1,000 runs in flight, four steps of 0.2 s left: all done after",
        "seconds",
        "s",
        True,
    ),
    "W5": ("a fresh process to its first durable result", "seconds", "s", True),
    "W6": ("disk a step, runs of 10 steps", "bytes_per_step", "bytes", True),
    "W7": ("the cost of a step in a run of 100,000 steps", "last_over_first", "×", True),
    "W8": ("a chain of 100 agent nodes, a model that answers at once", "nodes_per_s", "nodes/s", False),
    "W8pure": (
        "a chain of 100 agent nodes, a model that touches nothing outside (`pure`)",
        "nodes_per_s",
        "nodes/s",
        False,
    ),
    "W9": ("starts over HTTP, 32 connections", "starts_per_s", "starts/s", False),
}


@dataclass(frozen=True)
class Sizes:
    """How much of everything. A peer may be too slow for a size: `patience_s` ends a measurement, and says so."""

    rounds: int = 5
    seconds: float = 2.0  # W1, W8, W9: as many runs as fit into this time
    steps: int = 10
    at_once: int = 100
    width: int = 1_000
    waiting: int = 10_000
    in_flight: int = 1_000
    slow_steps: int = 4
    slow_s: float = 0.2
    disk_runs: int = 300
    length: int = 100_000
    length_s: float = 90.0  # W7: how far a run of ours comes in this time, and
    length_peers_s: float = 20.0  # one of a peer
    nodes: int = 100
    connections: int = 32
    calibrate_s: float = 0.5
    patience_s: float = 150.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    seconds=0.3,
    at_once=20,
    width=100,
    waiting=200,
    in_flight=50,
    slow_steps=2,
    slow_s=0.1,
    disk_runs=30,
    length=1_000,
    length_s=3.0,
    length_peers_s=3.0,
    nodes=20,
    calibrate_s=0.2,
    patience_s=60.0,
)
TINY = Sizes(
    rounds=1,
    seconds=0.05,
    at_once=5,
    width=20,
    waiting=20,
    in_flight=10,
    slow_steps=2,
    slow_s=0.05,
    disk_runs=5,
    length=200,
    length_s=10.0,
    length_peers_s=10.0,
    nodes=5,
    connections=2,
    calibrate_s=0.02,
    patience_s=60.0,
)
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}
# One measurement of these is long and has its repeats inside.
ROUNDS_AT_MOST = {"W3": 3, "W4": 3, "W7": 1}
