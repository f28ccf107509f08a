"""The examples of seed §8 run, and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "reactive"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("order", ["contacting {'attempt': 1}", "contacting {'attempt': 3}", "completed", "pay-order:o-1"]),
        ("counter", ["0 left, Done"]),
        ("choreography", ["-> o-1 is paid", "-> o-3 is paid", "balance 600"]),
        (
            "deadline",
            ["in-time completed", "pc='quoted', cents=90000", "late completed", "pc='expired'", "late=True"],
        ),
    ],
)
def test_example_runs(name, lines, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    at = 0
    for line in lines:
        at = printed.index(line, at)
