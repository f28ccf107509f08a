"""Sixty seeds of the simulator, and the bugs it must find.

`make sim` runs a thousand. A simulator that cannot fail proves nothing: every canary is a bug
planted in the production code, and must be found within fifty seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from treadle.testing.sim import SimulationFailed, SimWorld, simulate
from treadle.testing.sim.__main__ import main
from treadle.testing.sim.call_canaries import CALL_CANARIES
from treadle.testing.sim.canaries import CANARIES, Canary, lost_recovery, seeds_to_find
from treadle.testing.sim.run_canaries import LONE_RUN_CANARIES, RUN_CANARIES
from treadle.testing.sim.store_canaries import FILE_CANARIES, STORE_CANARIES

HASH_SEEDS = ("0", "1", "4242")


# A seed is one history: whoever asks for it again need not live through it again.
lived = cache(simulate)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_ten_seeds_pass(first: int) -> None:
    for seed in range(first, first + 10):
        assert lived(seed).records > 0


@pytest.mark.parametrize(
    "canary",
    [*CANARIES, *RUN_CANARIES, *LONE_RUN_CANARIES, *CALL_CANARIES, *STORE_CANARIES, *FILE_CANARIES],
    ids=lambda canary: canary.__name__,
)
def test_a_planted_bug_is_found_within_fifty_seeds(canary: Canary) -> None:
    found = seeds_to_find(canary, seeds_max=50)
    assert found is not None, f"fifty seeds passed with {canary.__name__}"


def test_the_weather_is_real() -> None:
    """Over a few seeds processes do die, and seeds differ."""
    outcomes = [lived(seed) for seed in range(10)]
    assert sum(outcome.deaths for outcome in outcomes) > 0
    assert len({outcome.digest for outcome in outcomes}) == len(outcomes)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_found_while_a_process_stands_still_ends_the_world(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """It has nothing to do with the one that stands still, which would take it for what went wrong with its own command."""
    goes_on = SimWorld._next

    def broken(world: SimWorld) -> None:
        assert not world._stands_still, "a promise is broken beside it"
        goes_on(world)

    monkeypatch.setattr(SimWorld, "_next", broken)
    with pytest.raises(SimulationFailed, match=r"^Broken: AssertionError: a promise is broken beside it"):
        simulate(seed)


def test_a_seed_is_one_history_under_every_hash_seed() -> None:
    script = (
        "from treadle.testing.sim import simulate\nprint([simulate(seed).digest for seed in (3, 17, 202)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in HASH_SEEDS
    }
    assert len(printed) == 1


def test_a_failure_names_its_seed_and_the_command_that_shows_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with lost_recovery():
        assert main(["--seeds", "50"]) == 1
        said = capsys.readouterr().err
        command = next(line for line in said.splitlines() if line.startswith("reproduce with: "))
        seed = int(command.rsplit(" ", 1)[1])
        with pytest.raises(SimulationFailed, match=f"python -m treadle.testing.sim {seed}"):
            simulate(seed)
    assert main([str(seed)]) == 0
    assert f"seed {seed}: " in capsys.readouterr().out
