"""The conformance tables name tests that exist, so that a rule whose test was renamed or dropped is noticed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What is promised is proved like a rule is.
TABLES = [*sorted((ROOT / "docs" / "conformance").glob("*.md")), ROOT / "docs" / "guarantees.md"]
# `tests/dialects/x/test_y.py::test_z[case]`, with or without the folder of the page's own dialect.
NAMED = re.compile(r"`(?P<file>[\w/.-]*?test_\w+\.py)::(?P<name>\w+)(?:\[[^`\]]*\])?`")
DIALECTS = ("agent", "functions", "playbook", "process", "reactive")
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


@cache
def opens_an_engine_at_home_only(path: Path) -> set[str]:
    """Tests of a file that open an engine themselves, and have no mark that says what becomes of them elsewhere."""
    text = path.read_text("utf-8")
    if re.search(r"^pytestmark = .*\.house", text, re.M):
        return set()
    return {
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.AsyncFunctionDef)
        and not re.search(r"\.(house|at_home)\b", " ".join(map(ast.unparse, node.decorator_list)))
        and "Engine(" in ast.unparse(node)
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_proves_a_rule_of_a_dialect_also_runs_on_postgresql_with_nats_and_a_remote_worker(
    dialect: str,
) -> None:
    text = (ROOT / "docs" / "conformance" / f"{dialect}.md").read_text("utf-8")
    named = {
        (path, match["name"])
        for match in NAMED.finditer(text)
        for path in candidates(match["file"], dialect)[:1]
        if path.is_relative_to(ROOT / "tests" / "dialects") and path.exists()
    }
    missing = sorted(
        f"{path.relative_to(ROOT)}::{name}"
        for path, name in named
        if name in opens_an_engine_at_home_only(path)
    )
    assert not missing, f"mark these `house`, or `at_home` with the reason: {missing}"
