"""Where a check of ours is switched off, the line says why."""

from __future__ import annotations

import re
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"
# A type variable of one letter, as the field writes it.
SELF_EVIDENT = {"E741"}


def test_every_suppression_has_its_reason() -> None:
    bare = [
        f"{path.relative_to(SRC)}:{number}"
        for path in sorted(SRC.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (found := re.search(r"# (?:type: ignore\[[\w,-]+\]|noqa: (\w+(?:, ?[A-Z]+\d+)*))\s*$", line))
        and found[1] not in SELF_EVIDENT
    ]
    assert not bare, f"say why, behind it: {bare}"
