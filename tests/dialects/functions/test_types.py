"""`mypy --strict` sees through steps and workflows: what is right passes, mistakes are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WRONG = Path(__file__).with_name("wrong.py")
EXPECTED = re.compile(r"# expect: ([\w-]+)$")
FOUND = re.compile(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]$", re.M)


def test_types_of_durable_functions_are_seen_through() -> None:
    lines = WRONG.read_text("utf-8").splitlines()
    expected = [(n, match[1]) for n, line in enumerate(lines, 1) if (match := EXPECTED.search(line))]
    assert len(expected) == 12
    example = ROOT / "examples" / "functions" / "order.py"
    cache = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    # In a process of its own: mypy raises the recursion limit of the one it runs in, for good.
    command = [sys.executable, "-m", "mypy", *cache, str(WRONG), str(example)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert not ran.stderr
    printed = ran.stdout
    found = dict.fromkeys((int(line), code) for line, code in FOUND.findall(printed))
    assert list(found) == expected, printed
    assert "order.py" not in printed
