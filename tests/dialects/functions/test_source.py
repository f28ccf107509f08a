"""The source of a function: where its block ends is found without its tokens, and is where they say."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from treadle.dialects.function import source

ODD = '''
from functools import lru_cache, wraps

@lru_cache(
    # A decorator over several lines,
    1
)
# with a comment after it
def decorated(
    a=(1,
2),
):
    pass

cached = decorated.__wrapped__

def texts():
    """A text that
goes back to the margin:
def no(): pass
"""
# A comment at the margin.
    return [
1,
    ] + [\\
1]
    # At the end.

def outer():
    async def inside(a):
        if a: return """
            x

          y"""
        # Not at the end.
        return 1
    # Of the outer one.

    def at_the_margin():
# A comment at the margin, in a block that is not.
        return 1

    def of_lines(): return 1; return 2
    return inside, at_the_margin, of_lines

inside, at_the_margin, of_lines = outer()
named = lambda x: (
    x)
in_the_middle = [lambda x: x, 1][0]

@wraps(texts)
def wrapper(): return texts()

many = """
a""" and texts
def last(): return """
x
""" * 3'''


def by_tokens(function: FunctionType) -> str | None:
    lines, first = inspect.getsourcelines(function)
    try:
        module = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        return None
    ast.increment_lineno(module, first - 1)
    return ast.dump(module.body[0], include_attributes=True)


def functions_of(holder: Any, module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(holder).values():
        if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__:
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__ and value is not holder:
            yield from functions_of(value, module)


def check(module: ModuleType) -> int:
    found = [*functions_of(module, module)]
    for function in found:
        tree = source.tree_of(function)
        assert (tree and ast.dump(tree, include_attributes=True)) == by_tokens(function), function
    return len(found)


@pytest.mark.parametrize("module", [ast, contextlib, inspect, textwrap, typing], ids=lambda m: m.__name__)
def test_a_function_of_a_library_is_read_as_its_tokens_say(module: ModuleType) -> None:
    assert check(module) > 3


def test_a_function_that_is_written_oddly_is_read_as_its_tokens_say(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    spec = importlib.util.spec_from_file_location("odd", tmp_path / "odd.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert check(module) >= 10
