"""The kernel is a function: no clock, no chance, no I/O, nothing whose order or value differs from one
process to the next. Ruff and import contracts do not see bare builtins or the order of sets; this walk does.

Dialects are pure too, as far as imports go: what their machines decide must replay byte for byte.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"

# What to use instead is said in the message, because the rule is only met by somebody who breaks it.
BARE = {
    "hash": "differs between processes; use treadle.kernel.values.digest",
    "id": "differs between processes; compare with `is`, or give it a name",
    "open": "is I/O; what the kernel needs is an argument",
    "print": "is I/O; return what you want to say",
    "input": "is I/O; what the kernel needs is an argument",
    "globals": "hides state; pass it",
    "breakpoint": "is for debugging only",
}
FORBIDDEN_IN_DIALECTS = {
    "asyncio", "time", "random", "os", "socket", "logging", "uuid", "threading", "subprocess", "secrets",
    "sqlite3", "httpx", "tempfile", "multiprocessing", "concurrent",
}  # fmt: skip
# Durable functions run on an event loop of ours, which is asyncio's interface without its world, and speak to
# people only where nothing is repeated.
ITS_OWN = {"function": {"asyncio", "logging", "threading"}}
NOW = {"now", "utcnow", "today"}

# Of modules that are forbidden otherwise: a type, and a generator that is given its seed.
PURE_PARTS = {"uuid": {"UUID"}, "random": {"Random"}}


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and rule of everything that a pure module must not do."""
    sets = _names_of_sets(tree)
    hashing = {
        node
        for method in ast.walk(tree)
        if isinstance(method, ast.FunctionDef) and method.name == "__hash__"
        for node in ast.walk(method)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BARE and node not in hashing:
                yield node.lineno, f"{name}() {BARE[name]}"
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield node.lineno, "async: the kernel is `def`, never `async def`"
            case ast.Global() | ast.Nonlocal():
                yield node.lineno, "global state: return it instead"
            case ast.For(iter=source) | ast.comprehension(iter=source) if _is_set(source, sets):
                yield source.lineno, "iterates over a set: its order differs between processes; sort it"
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "enumerate" | "iter" | "next"), args=[source, *_]
            ):
                if _is_set(source, sets):
                    yield node.lineno, "takes the order of a set, which differs between processes; sort it"
            case ast.Call(func=ast.Attribute(attr="join"), args=[source]) if _is_set(source, sets):
                yield node.lineno, "joins a set, whose order differs between processes; sort it"
            case ast.Call(func=ast.Attribute(attr=name)) if name in NOW:
                yield node.lineno, f".{name}() reads the clock; use ctx.now_ns"


def _is_set(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return _is_set(left, names)
    return False


def _names_of_sets(tree: ast.AST) -> set[str]:
    """Names that hold nothing but sets, as far as one can read."""
    found: set[str] = set()
    other: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                (found if _is_set(value, set()) else other).add(name)
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=kind) | ast.arg(arg=name, annotation=kind)
            ):
                is_set = kind is not None and ast.unparse(kind).startswith(("set[", "frozenset["))
                (found if is_set else other).add(name)
    return found - other


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every foreign module that is imported for more than its pure parts."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name.split(".")[0]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if not {alias.name for alias in names} <= PURE_PARTS.get(module, set()):
                    yield node.lineno, module.split(".")[0]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


KERNEL = sorted((SRC / "kernel").rglob("*.py"))
DIALECTS = sorted((SRC / "dialects").rglob("*.py"))


@pytest.mark.parametrize("path", KERNEL, ids=name_of)
def test_the_kernel_is_pure(path: Path) -> None:
    found = [f"{name_of(path)}:{line}: {rule}" for line, rule in offences(parse(path))]
    assert not found, "\n".join(found)


def test_dialects_import_nothing_that_reads_the_world() -> None:
    found = [
        f"{name_of(path)}:{line}: imports {module}"
        for path in DIALECTS
        for line, module in imports(parse(path))
        if module in FORBIDDEN_IN_DIALECTS - ITS_OWN.get(path.parent.name, set())
    ]
    assert not found, "\n".join(found)


def test_dialects_iterate_over_no_sets_and_read_no_clock() -> None:
    found = [
        f"{name_of(path)}:{line}: {rule}"
        for path in DIALECTS
        for line, rule in offences(parse(path))
        if "set" in rule or "clock" in rule or "hash()" in rule
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "bad",
    [
        "hash(x)",
        "id(x)",
        "open('f')",
        "print(1)",
        "async def f(): ...",
        "def f():\n    global n\n    n = 1",
        "for x in {1, 2}: ...",
        "[x for x in set(y)]",
        "s = {1}\nfor x in s: ...",
        "def f(s: set[int]):\n    return list(s)",
        "for x in set(a) - b: ...",
        "','.join({str(x) for x in y})",
        "datetime.now()",
    ],
)
def test_the_walk_finds(bad: str) -> None:
    assert list(offences(ast.parse(textwrap.dedent(bad))))


@pytest.mark.parametrize(
    "good",
    [
        "def __hash__(self): return hash(self.x)",
        "sorted({1, 2})",
        "x in {1, 2}",
        "for x in [1]: ...",
        "s = [1]\nfor x in s: ...",
        "len(set(y))",
        "x.id",
    ],
)
def test_the_walk_lets_pass(good: str) -> None:
    assert not list(offences(ast.parse(good)))


def test_a_type_is_no_source_of_chance() -> None:
    assert not list(imports(ast.parse("from uuid import UUID\nfrom random import Random")))
    assert list(imports(ast.parse("from uuid import uuid4")))
    assert list(imports(ast.parse("import random")))
