"""Type errors are tested too: for an interface that promises types, the negative space counts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRONG = Path(__file__).with_name("wrong.py")
EXPECTED = re.compile(r"# expect: ([\w-]+)$")
FOUND = re.compile(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]$", re.M)


def test_mistakes_are_found_and_nothing_else_is(tmp_path: Path) -> None:
    lines = WRONG.read_text("utf-8").splitlines()
    expected = [(n, match[1]) for n, line in enumerate(lines, 1) if (match := EXPECTED.search(line))]
    assert len(expected) == 11
    # The cache of `make check` is used, so that this takes a second and not twenty.
    # In a process of its own: mypy raises the recursion limit of the one it runs in, for good.
    where = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    ran = subprocess.run([sys.executable, "-m", "mypy", *where, str(WRONG)], capture_output=True, text=True)
    assert not ran.stderr
    printed = ran.stdout
    # A call that fits no overload may be told in two sentences.
    found = dict.fromkeys((int(line), code) for line, code in FOUND.findall(printed))
    assert list(found) == expected, printed
