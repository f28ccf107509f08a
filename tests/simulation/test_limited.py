"""A line in front of the runs, in the simulator: never more under way than may be, whoever gives places away and dies.

`make sim` runs more seeds of it. The planted bug is a giver that after a take-over knows of no place that another gave.
"""

from __future__ import annotations

import pytest

from treadle.testing.sim import SimulationFailed, simulate
from treadle.testing.sim.canaries import forgotten_places
from treadle.testing.sim.narrow import NarrowDrill


@pytest.mark.parametrize(("seed", "cores"), [(4, 1), (7, 1), (4, 3)])
def test_no_more_runs_are_under_way_than_may_be_through_crashes_and_take_overs(seed: int, cores: int) -> None:
    assert simulate(seed, NarrowDrill, cores=cores).records > 0


def test_work_of_shards_that_a_commit_found_to_be_taken_keeps_no_place() -> None:
    """Endless work of runs that go on elsewhere would be in hand here for ever, and what waits behind it, too."""
    assert simulate(18, NarrowDrill, cores=3).records > 0


def test_a_tick_that_finds_no_room_in_its_line_is_left_and_said_to_be() -> None:
    """The clock goes on by more ticks than may wait."""
    assert simulate(90_017, NarrowDrill).records > 0


@pytest.mark.parametrize(("seed", "cores"), [(5, 1), (5, 3)])
def test_a_limit_that_is_exceeded_after_a_take_over_is_found(seed: int, cores: int) -> None:
    with forgotten_places(), pytest.raises(SimulationFailed, match="are under way, and 2 may be") as found:
        simulate(seed, NarrowDrill, cores=cores, patience=8_000)
    assert "--limited" in str(found.value)
