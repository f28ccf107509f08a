"""Seeds of the simulator with each short way closed: nobody is promised anything by one of them alone."""

from __future__ import annotations

from functools import cache

import pytest
from tests.fast_paths import CLOSED, WAYS, Switch, no_overlap, nothing_ahead

from treadle.testing.sim import simulate

SEEDS = range(1_000, 1_004)


@cache
def digests(switch: Switch | None = None) -> list[str]:
    if switch is None:
        return [simulate(seed).digest for seed in SEEDS]
    with switch():
        return [simulate(seed).digest for seed in SEEDS]


@pytest.mark.parametrize("switch", CLOSED, ids=lambda switch: switch.__name__)
def test_seeds_pass_with_one_way_closed(switch: Switch) -> None:
    assert all(digests(switch))


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("ways", WAYS)
def test_seeds_pass_with_all_ways_closed_and_forced(ways: str, cores: int) -> None:
    with WAYS[ways]():
        for seed in range(2_000, 2_004):
            assert simulate(seed, cores=cores).records > 0


@pytest.mark.parametrize("switch", [no_overlap, nothing_ahead], ids=lambda switch: switch.__name__)
def test_what_is_closed_was_gone_by_else(switch: Switch) -> None:
    """The simulator goes by these; the others show in real processes."""
    assert digests(switch) != digests()
