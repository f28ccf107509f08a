"""Type errors are tested too: for an interface that promises types, the negative space counts."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).resolve().parents[2]
WRONG = Path(__file__).with_name("wrong.py")
EXPECTED = re.compile(r"# expect: ([\w-]+)$")
FOUND = re.compile(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]$", re.M)


def test_mistakes_are_found_and_nothing_else_is(tmp_path: Path) -> None:
    lines = WRONG.read_text("utf-8").splitlines()
    expected = [(n, match[1]) for n, line in enumerate(lines, 1) if (match := EXPECTED.search(line))]
    assert len(expected) == 11
    # The cache of `make check` is used, so that this takes a second and not twenty.
    printed, complained, _ = api.run(
        ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"), str(WRONG)]
    )
    assert not complained
    # A call that fits no overload may be told in two sentences.
    found = dict.fromkeys((int(line), code) for line, code in FOUND.findall(printed))
    assert list(found) == expected, printed
