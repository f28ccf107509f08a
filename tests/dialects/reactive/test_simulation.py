"""The choreography under crashes, power losses, failed commits, two owners, lost and doubled messages.

Twenty seeds in the suite; `python tests/dialects/reactive/reactive_sim.py --seeds 500` runs more.
"""

from __future__ import annotations

import pytest
from reactive_sim import Choreography

from treadle.runtime.publication import Publication
from treadle.testing.sim import SimulationFailed, simulate


def test_the_choreography_survives_all_faults():
    outcomes = [simulate(seed, Choreography) for seed in range(20)]
    assert sum(outcome.deaths for outcome in outcomes) > 0


def test_a_forgotten_message_is_found(monkeypatch):
    """The canary: deliveries that do not fit into a batch, and are not kept, must be missed."""
    monkeypatch.setattr(Publication, "post_leftovers", lambda self: None)

    def run() -> None:
        for seed in range(60):
            simulate(seed, Choreography)

    with pytest.raises(SimulationFailed):
        run()
