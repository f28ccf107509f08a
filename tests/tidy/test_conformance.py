"""The conformance tables name tests that exist, so that a rule whose test was renamed or dropped is noticed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What is promised is proved like a rule is.
TABLES = [*sorted((ROOT / "docs" / "conformance").glob("*.md")), ROOT / "docs" / "guarantees.md"]
# `tests/dialects/x/test_y.py::test_z[case]`, with or without the folder of the page's own dialect.
NAMED = re.compile(r"`(?P<file>[\w/.-]*?test_\w+\.py)::(?P<name>\w+)(?:\[[^`\]]*\])?`")
TEST = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.M)


@cache
def names_in(path: Path) -> frozenset[str]:
    return frozenset(TEST.findall(path.read_text("utf-8")))


def candidates(file: str, dialect: str) -> list[Path]:
    if "/" in file:
        return [ROOT / file]
    return [ROOT / "tests" / "dialects" / dialect / file, *sorted((ROOT / "tests").rglob(file))]


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_named_tests_exist(table: Path) -> None:
    named = [(match["file"], match["name"]) for match in NAMED.finditer(table.read_text("utf-8"))]
    assert len(named) > 20, "a conformance page is a table of rules and the tests that prove them"
    missing = sorted(
        {
            f"{file}::{name}"
            for file, name in named
            if not any(path.exists() and name in names_in(path) for path in candidates(file, table.stem))
        }
    )
    assert not missing, f"{table.name} names tests that are not there: {missing}"
