"""What `cluster.py` measures, and how much of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# name → what it is
MEASURES: dict[str, str] = {
    "ceiling": "the control plane's ceiling: 100 runs at once on one member, whose worker does next to nothing",
    "members": "the same with more members on the same store, each with clients of its own",
    "workers": "steps that wait for something outside, done by workers in processes of their own",
    "elsewhere": "starts and signals over HTTP, at the server that decides the run and at another",
    "waiting": "runs that wait for a signal, over all shards",
    "records": "a server's start on a store of many records",
}
OURS = ("treadle_toy", "treadle_process", "treadle_playbook", "treadle_functions")
SUBJECTS = (*OURS, "dbos")
BUSES = ("postgres", "nats")


@dataclass(frozen=True)
class ClusterSizes:
    rounds: int = 3
    seconds: float = 5.0
    at_once: int = 100
    steps: int = 10
    # The engine alone, without what a start and an end cost.
    steps_long: int = 200
    members: tuple[int, ...] = (1, 2)
    workers: tuple[int, ...] = (1, 2, 4)
    concurrency: int = 8
    nap_s: float = 0.1
    # Long enough that how long all the starts take does not matter.
    naps: int = 20
    naps_rounds: int = 2
    requests: int = 1_000
    connections: int = 16
    waiting: int = 1_000_000
    # No more are started after so long; the figures say how many there are.
    waiting_s: float = 1_500.0
    wakes: int = 10_000
    records: int = 10_000_000
    copied_steps: int = 500
    calibrate_s: float = 1.0
    patience_s: float = 1_800.0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


FULL = ClusterSizes()
QUICK = ClusterSizes(
    rounds=1,
    seconds=1.0,
    at_once=20,
    steps_long=50,
    naps=4,
    naps_rounds=1,
    requests=50,
    connections=4,
    waiting=2_000,
    wakes=200,
    records=50_000,
    copied_steps=50,
    calibrate_s=0.3,
    patience_s=120.0,
)
TINY = ClusterSizes(
    rounds=1,
    seconds=0.1,
    at_once=5,
    steps_long=10,
    members=(1,),
    workers=(1,),
    concurrency=4,
    nap_s=0.01,
    naps=2,
    naps_rounds=1,
    requests=4,
    connections=2,
    waiting=40,
    wakes=10,
    records=1_000,
    copied_steps=20,
    calibrate_s=0.02,
    patience_s=60.0,
)
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}
