"""A limit is a value that somebody is handed: no test sets one of a module, a class or a function for everybody."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
# What sets an attribute, by the last part of its name. Canaries of the simulator plant bugs, and stand in the sources.
SETTERS = {"setattr", "object", "patch"}
# No limits, but ways of a dialect that are taken or not: a class says so, and has no other state.
WAYS = {("fast_paths.py", "SqliteDialect.append"), ("fast_paths.py", "SimDialect.overlaps")}


def imported(tree: ast.Module) -> dict[str, str]:
    """What a file has of Treadle: where it is from, by the names that the file gives to it."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "treadle":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "treadle":
                    found[alias.asname or "treadle"] = alias.name if alias.asname else "treadle"
    return found


def named(path: str) -> Any:
    """What has this path: a module, or something of one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        home, _, name = path.rpartition(".")
        return getattr(named(home), name, None)


def is_value(path: str, name: str) -> bool:
    """Whether that is a value of a module or of a class, and no code."""
    home = named(path)
    if not isinstance(home, type | ModuleType) or not hasattr(home, name):
        return False
    found = inspect.getattr_static(home, name)
    return not (callable(found) or hasattr(found, "__get__") or isinstance(found, ModuleType))


def path_of(node: ast.expr, known: dict[str, str]) -> str | None:
    """Where what an expression names is from; None if that is not Treadle."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and (home := path_of(node.value, known)) is not None:
        return f"{home}.{node.attr}"
    return None


def patched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every value of Treadle's modules, classes and functions that a file sets."""
    known = imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=setter) | ast.Name(id=setter),
                args=[home, ast.Constant(value=str(name)), *_],
            ) if setter in SETTERS and (path := path_of(home, known)) and is_value(path, name):
                yield node.lineno, f"{ast.unparse(home)}.{name}"
            case ast.Call(
                func=ast.Attribute(attr=setter) | ast.Name(id=setter),
                args=[ast.Constant(value=str(dotted)), *_],
            ) if setter in SETTERS and dotted.startswith("treadle.") and is_value(*dotted.rsplit(".", 1)):
                yield node.lineno, dotted
            case ast.Assign(targets=targets):
                for target in targets:
                    if not isinstance(target, ast.Attribute):
                        continue
                    path = path_of(target.value, known)
                    if path is not None and is_value(path, target.attr):
                        yield node.lineno, ast.unparse(target)
            case ast.Attribute(attr="__kwdefaults__" | "__defaults__"):
                yield node.lineno, ast.unparse(node)


def test_no_test_sets_a_limit_for_everybody() -> None:
    found = [
        (path.relative_to(TESTS).as_posix(), line, name)
        for path in sorted(TESTS.rglob("*.py"))
        for line, name in patched(ast.parse(path.read_text("utf-8")))
    ]
    wrong = [f"tests/{path}:{line}: {name}" for path, line, name in found if (path, name) not in WAYS]
    assert not wrong, "hand these in as arguments:\n" + "\n".join(wrong)
    assert {(path, name) for path, _, name in found} == WAYS, "WAYS only shrinks"


@pytest.mark.parametrize(
    "bad",
    [
        'monkeypatch.setattr(runs, "END_POLL_S", 1)',
        'monkeypatch.setattr("treadle.runs.END_POLL_S", 1)',
        'patch("treadle.runs.END_POLL_S", 1)',
        'patch.object(SqliteDialect, "now_ns", "0")',
        'monkeypatch.setitem(Run.__init__.__kwdefaults__, "poll_s", 1)',
        "runs.END_POLL_S = 1",
        "SqliteDialect.now_ns = '0'",
    ],
)
def test_the_walk_finds(bad: str) -> None:
    known = "from treadle import runs\nfrom treadle.store.sqlite import SqliteDialect\n"
    assert list(patched(ast.parse(known + bad)))


@pytest.mark.parametrize(
    "good",
    [
        'monkeypatch.setattr(Run, "result", slow)',
        'monkeypatch.setattr("mcp.client.stdio.LIMIT", 1)',
        'patch.object(runs, "result_of", slow)',
        "run.poll_s = 1",
    ],
)
def test_the_walk_lets_pass(good: str) -> None:
    known = "from treadle import runs\nfrom treadle.runs import Run\n"
    assert not list(patched(ast.parse(known + good)))
