"""Determinism (seed §13): no ambient clock, no chance, nothing that depends on the process it runs in."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import treadle.dialects.process as package

FOLDER = Path(package.__file__).parent
BANNED_MODULES = {
    "asyncio", "time", "random", "os", "socket", "logging", "uuid", "threading", "datetime", "subprocess", "pathlib",
    "sqlite3", "secrets",
}  # fmt: skip
BANNED_CALLS = {"eval", "exec", "open", "input", "hash", "compile", "__import__", "print"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_dialect_reads_nothing_from_outside(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & BANNED_MODULES
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in BANNED_MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in BANNED_CALLS, f"{path.name}:{node.lineno}"


PROGRAM = """
from treadle.dialects.process import DIALECT
from treadle.lang.text import parse
from treadle.testing.driver import Driver

TEXT = '''
dialect: process
name: wf
tasks: {t: {roles: [b, a], payload: {z: 1, a: {$: state}}}}
steps:
  - set: {state.b: {$: "merge(start, {k: 1})"}, state.a: {$: "keys(start)"}, state.c: {$: json(start)}}
  - fork: {x: [{task: t}], y: [{call: {transport: http, url: u, headers: {q: w, e: r}, retry: {attempts: 2, jitter: true}}}], z: [{wait: 1s}]}
  - complete: {$: state}
'''
definition, _ = DIALECT.compile(parse(TEXT))
driver = Driver(DIALECT.machine, definition.body)
driver.start({"zeta": 1, "alpha": {"b": 2, "a": 1}})
driver.error(driver.open("call")[0])
driver.ok(driver.open("task")[0], {"y": 1, "x": 2})
driver.advance(5)
driver.ok(driver.open("call")[0])
print(definition.digest, driver.run.digest.hex(), driver.status)
"""


def test_another_process_decides_the_same() -> None:
    """Journals are equal byte for byte, whatever the seed of Python's hashes."""
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(found) == 1
    assert found.pop().endswith("completed\n")
