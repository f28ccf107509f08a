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
        ("choreography", ["balance 600"]),
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


def test_each_order_of_the_choreography_is_told_of_once_in_whatever_order_they_are_paid(capsys):
    runpy.run_path(str(EXAMPLES / "choreography.py"), run_name="__main__")
    told = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("->")]
    assert sorted(told) == ["o-1", "o-2", "o-3"]
