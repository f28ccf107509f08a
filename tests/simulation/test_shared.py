"""Three cores that share one simulated store: shards, leases, messages, take-over; and the bugs that must be found there.

`make sim` runs a thousand seeds of it. Here each planted bug is looked for among a few of the first fifty seeds.
"""

from __future__ import annotations

import pytest

from treadle.testing.sim import SimulationFailed, simulate
from treadle.testing.sim.canaries import (
    Canary,
    commit_without_the_epoch_check,
    gained_and_not_recovered,
    hand_over_without_draining,
    unknown_commit_taken_for_failed,
)
from treadle.testing.sim.run_canaries import (
    a_run_keeps_its_turn,
    gives_away_what_is_not_decided,
    message_gone_when_it_is_read,
)

CORES = 3


@pytest.mark.parametrize("seed", [1, 3, 5, 33])
def test_three_cores_on_one_store_keep_every_promise(seed: int) -> None:
    outcome = simulate(seed, cores=CORES)
    assert outcome.records > 0


def test_a_seed_of_three_cores_is_one_history() -> None:
    assert simulate(3, cores=CORES).digest == simulate(3, cores=CORES).digest


@pytest.mark.parametrize(
    ("canary", "seeds"),
    [
        (commit_without_the_epoch_check, (3, 2, 5)),
        (gained_and_not_recovered, (3, 0, 5)),
        (hand_over_without_draining, (2, 20)),
        (unknown_commit_taken_for_failed, (15, 20, 22, 36)),
        (message_gone_when_it_is_read, (7, 10, 15, 18)),
        (a_run_keeps_its_turn, (3, 18, 26, 28)),
        (gives_away_what_is_not_decided, (10, 48)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_of_sharing_is_found(canary: Canary, seeds: tuple[int, ...]) -> None:
    """Within a few seeds: which of them finds it may change with what the engine does."""
    found = found_by(canary, seeds)
    assert found is not None, f"{canary.__name__} is not found with {seeds}"
    seed, said = found
    assert f"--cores {CORES}" in said
    simulate(seed, cores=CORES, patience=8_000)


def found_by(canary: Canary, seeds: tuple[int, ...]) -> tuple[int, str] | None:
    with canary():
        for seed in seeds:
            try:
                simulate(seed, cores=CORES, patience=8_000)
            except SimulationFailed as failure:
                return seed, str(failure)
    return None
