"""The rooms of the runtime: a class is one object, not a set of functions that are handed it."""

from __future__ import annotations

import ast
from pathlib import Path

RUNTIME = Path(__file__).resolve().parents[2] / "src" / "treadle" / "runtime"


def modules() -> dict[str, ast.Module]:
    found = {path.name: ast.parse(path.read_text()) for path in sorted(RUNTIME.glob("*.py"))}
    assert "core.py" in found
    return found


def test_no_function_of_the_runtime_is_handed_the_core() -> None:
    handed = [
        f"{name}:{node.name}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None
        and "Core" in ast.unparse(argument.annotation).split("|")[0].split()
    ]
    assert not handed, f"give these an object with what they need: {handed}"


def test_only_the_core_knows_the_core() -> None:
    knowing = [
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "core"
    ]
    assert not knowing, f"what is below the core cannot know it: {knowing}"


def imported_by(name: str, tree: ast.Module) -> set[str]:
    """The modules of the runtime that a module imports before anything is called, also what it imports for types."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module == "treadle.runtime":
            found |= {alias.name for alias in node.names}
    return {f"{other}.py" for other in found} - {name}


def test_the_rooms_of_the_runtime_stand_upon_each_other() -> None:
    left = {name: imported_by(name, tree) for name, tree in modules().items()}
    while ground := [name for name, below in left.items() if not below & left.keys()]:
        for name in ground:
            del left[name]
    assert not left, f"these import one another in a circle, for types too: {sorted(left)}"
