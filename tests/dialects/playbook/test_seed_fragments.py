"""Every example in the two seeds, re-indented into a playbook of its own, compiles in strict mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import compile_text

FRAGMENTS = sorted((Path(__file__).parent / "seeds").glob("*.yaml"))


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.stem)
def test_compiles(path: Path) -> None:
    assert compile_text(path.read_text(), strict=True).body["workflow"]


def test_there_is_one_for_each_example() -> None:
    assert len(FRAGMENTS) == 12
