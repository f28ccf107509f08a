"""A short, seeded form of `make chaos`; the report of what was done to whom stands in the output of a failure."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .chaos import chaos

SECONDS = float(os.environ.get("TREADLE_CHAOS_S", "8"))
SEED = int(os.environ.get("TREADLE_CHAOS_SEED", "20261115"))


def test_nothing_is_lost_or_done_twice_whatever_is_killed() -> None:
    # Not below pytest's folder: as root PostgreSQL runs as another user.
    with tempfile.TemporaryDirectory(prefix="treadle-chaos-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        wrong, report, summary = chaos(
            folder, seed=SEED, faults=4, seconds=SECONDS, servers=2, workers=2, every_s=1.5
        )
        print(*report, summary, sep="\n")
        assert not wrong, [*report, summary, *wrong]
        assert "acknowledged {}" not in summary, "something ran"
