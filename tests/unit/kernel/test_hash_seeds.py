"""The kernel decides the same under every PYTHONHASHSEED: journals are equal, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
from treadle.kernel import digest
from treadle.kernel.history import fork, snapshot_of
from treadle.testing.driver import Driver
from treadle.testing.sim.drill_machine import DrillMachine

lanes = [
    [{"do": "many", "count": 7}, {"do": "signal", "name": "a"}, {"do": "timer", "ms": 5}],
    [{"do": "flaky", "value": 1, "fails": 1, "ms": 3}, {"do": "drop", "lane": 2}, {"do": "task"}],
    [{"do": "late", "ms": 900000}],
    [{"do": "work", "value": {letter: [letter] for letter in "zyxwvutsrq"}}, {"do": "invalid"}],
]
driver = Driver(DrillMachine(), {"drill": True})
driver.start({"lanes": lanes}, options={letter: 1 for letter in "hgfedcba"}).signal("a", {"late": 1})
for _ in range(40):
    waiting = sorted(driver.open("work"), key=lambda intent: intent.ref)
    if not waiting or driver.status == "completed":
        break
    intent = waiting[0]
    if intent.params["name"] == "flaky" and intent.params["try"] == 0:
        driver.error(intent, "again")
    elif intent.params["name"] == "never":
        driver.advance(1)
    else:
        driver.ok(intent, {"invalid": 1} if intent.params["name"] == "invalid" else intent.params["value"])
driver.advance(2)
driver.assert_replays()
copy, step = fork(driver.run, id="copy", definition=driver.digest, seed=b"s", at_ns=driver.now_ns)
print(len(driver.journal), driver.run.digest.hex(), digest(driver.state), snapshot_of(copy).hex())
"""


def test_journals_snapshots_and_forks_are_equal_under_three_hash_seeds() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "31337")
    ]
    assert int(printed[0].split()[0]) >= 10, "the script does something"
    assert printed[1:] == printed[:1] * 2
