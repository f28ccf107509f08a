"""What is recorded is worded by us: texts of Python and of libraries change with their versions, and may hold
an address, so a run that was decided yesterday would be decided differently tomorrow.

The walk reads the pure rooms: where an exception that is not ours is caught by a name, its text must not leave
the handler: not as `str(error)`, not in an f-string, not as its `args` or `message`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"
ROOMS = [path for room in ("kernel", "lang", "dialects") for path in sorted((SRC / room).rglob("*.py"))]

# Exceptions whose words we write.
OURS = {
    "TreadleError", "ExpressionError", "DefinitionError", "ValueRefused", "Misfit", "Misuse", "NotACollection",
    "TooMuchWork", "PatternError", "OutOfSteps", "BlobMissing", "Absent", "InputInvalid", "NotJson", "NotCanonical",
}  # fmt: skip
TEXTS = {"args", "message", "msg", "reason", "problem", "__str__", "__repr__"}

# Where a library's words are shown, and why none of them is recorded by what decides.
SHOWN = {
    "kernel/history.py": "the words of REPLAY_DIFFERS are told, not recorded",
    "lang/schema_problems.py": "a schema that is none is refused before there is a run",
    "dialects/agent/check.py": "a definition is checked before there is a run",
    "dialects/agent/sources.py": "a source is checked before there is a run",
    "dialects/agent/evals.py": "runs that 0.1.0 began keep the words it recorded",
    "dialects/playbook/parsing.py": "a template is compiled before there is a run",
    "dialects/reactive/machine.py": "an author's own exception: a fault, whose recorded words stand on replay",
    "dialects/reactive/types.py": "an annotation is read when its class is made",
}


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and expression wherever the text of a foreign exception is taken."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None or _all_ours(handler.type):
            continue
        for node in ast.walk(handler):
            if _takes_text(node, handler.name):
                yield node.lineno, ast.unparse(node)  # type: ignore[attr-defined]  # expressions have lines


def _all_ours(types: ast.expr | None) -> bool:
    names = types.elts if isinstance(types, ast.Tuple) else [types] if types is not None else []
    return bool(names) and all(
        isinstance(name, ast.Name | ast.Attribute) and _last(name) in OURS for name in names
    )


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _takes_text(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr" | "format"), args=[ast.Name(id=found), *_]):
            return found == name
        case ast.FormattedValue(value=value):
            return any(isinstance(inner, ast.Name) and inner.id == name for inner in _told(value))
        case ast.Attribute(value=ast.Name(id=found), attr=attr):
            return found == name and attr in TEXTS
    return False


def _told(value: ast.expr) -> Iterator[ast.expr]:
    """The parts of what an f-string shows that may be the exception itself."""
    match value:
        case ast.IfExp(body=body, orelse=other):
            yield from _told(body)
            yield from _told(other)
        case ast.BoolOp(values=values):
            for part in values:
                yield from _told(part)
        case _:
            yield value


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def found_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text("utf-8"), str(path))
    return [f"{name_of(path)}:{line}: {text}" for line, text in offences(tree)]


def test_no_words_of_others_where_records_are_decided() -> None:
    found = [line for path in ROOMS if name_of(path) not in SHOWN for line in found_in(path)]
    assert not found, "word it yourself, or say in SHOWN why it is never recorded:\n" + "\n".join(found)


def test_every_excuse_is_needed() -> None:
    unneeded = [name for name in SHOWN if not found_in(SRC / name)]
    assert not unneeded


@pytest.mark.parametrize(
    "bad",
    [
        "f(str(error))",
        "x = f'no: {error}'",
        "x = f'no: {error!r:.100}'",
        "x = f'no: {error if old else ours(error)}'",
        "x = error.args[0]",
        "x = error.message",
        "raise ValueRefused(str(error)) from error",
    ],
)
@pytest.mark.parametrize("caught", ["ValueError", "Exception", "(TreadleError, KeyError)", "re2.error"])
def test_the_walk_finds(caught: str, bad: str) -> None:
    code = f"try:\n    pass\nexcept {caught} as error:\n    {bad}\n"
    assert list(offences(ast.parse(textwrap.dedent(code))))


@pytest.mark.parametrize(
    "good",
    [
        "except ValueError as error:\n    raise Refused('no') from error",
        "except ValueError as error:\n    x = f'line {error.lineno}'",
        "except TreadleError as error:\n    x = f'{error}'",
        "except (errors.Misfit, PatternError) as error:\n    x = str(error)",
        "except ValueError as error:\n    x = ours(error)",
    ],
)
def test_the_walk_lets_pass(good: str) -> None:
    assert not list(offences(ast.parse(f"try:\n    pass\n{good}\n")))
