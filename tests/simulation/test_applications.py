"""An application whose cells three simulated members decide: applies and snapshots while events come and shards move.

`make sim` runs three hundred seeds of it, `make canaries` looks for every planted bug; here is a little of both.
"""

from __future__ import annotations

import pytest

from treadle.testing.sim import SimulationFailed, simulate
from treadle.testing.sim.canaries import (
    Canary,
    apply_before_everybody_has_agreed,
    cells_open_while_members_agree,
    snapshot_without_a_second_look,
    told_again_by_whoever_takes_over,
)
from treadle.testing.sim.sums import Sums

CORES = 3


def test_each_event_is_taken_once_and_by_the_code_that_is_active_and_everybody_is_answered() -> None:
    outcomes = [simulate(seed, Sums, cores=CORES) for seed in (16, 30)]
    assert all(outcome.records for outcome in outcomes)
    assert simulate(16, Sums, cores=CORES).digest == outcomes[0].digest, "a seed is one history"


@pytest.mark.parametrize(
    ("canary", "seed", "said"),
    [
        (apply_before_everybody_has_agreed, 8, "is decided by version"),
        (cells_open_while_members_agree, 4, "is decided by version"),
        (told_again_by_whoever_takes_over, 1, "is in the audit twice"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_of_applications_over_members_is_found(canary: Canary, seed: int, said: str) -> None:
    """Which of the seeds finds it may change with what the engine does."""
    with canary(), pytest.raises(SimulationFailed, match=said) as found:
        simulate(seed, Sums, cores=CORES)
    assert "--applications" in str(found.value)


def test_a_snapshot_of_more_than_one_moment_is_found() -> None:
    with (
        snapshot_without_a_second_look(),
        pytest.raises(SimulationFailed, match="a snapshot has"),
    ):
        for seed in (7, 17):
            simulate(seed, Sums, cores=CORES)
