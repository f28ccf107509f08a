"""A function by its source: its digest, where it stands, what it names, what it must not call.

The digest is of syntax trees, so comments, docstrings, line breaks and the version of Python do not count. It takes
in the functions of the same module that the function names, and theirs.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import PurePath
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

_OURS: Final = str(PurePath(__file__).parents[2])
_LIBRARY: Final = str(PurePath(ast.__file__).parent)
# Fields of syntax trees that say where something stands, or that only some versions of Python have.
_UNSAID: Final = frozenset({"ctx", "type_comment", "type_params", "kind", "type_ignores"})
# Where a `def` may end is looked for at so many lines.
_ENDS_MAX: Final = 32


def place_of(frame: FrameType | None) -> str | None:
    """`file:line` of the nearest frame that is neither ours nor the standard library's."""
    spot = spot_of(frame)
    return None if spot is None else f"{_base(spot[0])}:{spot[1]}"


def spot_of(frame: FrameType | None) -> tuple[str, int] | None:
    """The same with the whole path, in two parts."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_foreign(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def line_of(function: FunctionType) -> int:
    """The line of its `def`, below its decorators."""
    tree = tree_of(function)
    return tree.lineno if isinstance(tree, ast.stmt) else function.__code__.co_firstlineno


@lru_cache(maxsize=1_024)
def _base(file: str) -> str:
    return PurePath(file).name


@lru_cache(maxsize=1_024)
def is_foreign(file: str) -> bool:
    """Whether a file is not the author's: ours, the standard library's, or no file."""
    if file.startswith("<"):
        return True
    return file.startswith(_OURS) or (file.startswith(_LIBRARY) and "site-packages" not in file)


class Source:
    """A function's tree, and the functions of its module that it reaches."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.trees: dict[str, ast.AST] = {}
        self.functions: dict[str, FunctionType] = {}
        # Every object that a name in it stands for, with the line of the name and the file.
        self.named: list[tuple[str, Any, str, int]] = []


def read(function: FunctionType) -> Source:
    """Reads a function and what it names. A function without source (typed in a shell) has an empty tree."""
    source = Source(function)
    todo = [function]
    while todo:
        found = todo.pop(0)
        if found.__qualname__ in source.functions:
            continue
        source.functions[found.__qualname__] = found
        tree = tree_of(found)
        if tree is None:
            continue
        source.trees[found.__qualname__] = tree
        file = found.__code__.co_filename
        for name, line in _names(tree):
            value = _looked_up(found, name)
            if value is None:
                continue
            source.named.append((name, value, file, line))
            if isinstance(value, FunctionType) and value.__module__ == function.__module__:
                todo.append(value)
    return source


def tree_of(function: FunctionType) -> ast.AST | None:
    try:
        lines, before = inspect.findsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return None
    block = lines[before:]
    module = _defined(block) if function.__name__ != "<lambda>" else None
    if module is None:
        try:
            module = ast.parse(textwrap.dedent("".join(inspect.getblock(block))))
        except SyntaxError:  # a lambda in the middle of an expression
            return None
    ast.increment_lineno(module, before)
    tree: ast.AST = module.body[0]
    return tree


def _defined(lines: list[str]) -> ast.Module | None:
    """The `def` that some lines begin with. It ends before a line that is indented no further than its first one, unless
    that is within a bracket or a text: then what comes before it is no Python. (To look for its end by tokens takes
    a tokenizer, which takes longer to load than all of this.) None where that does not find it soon."""
    if not lines or not lines[0].lstrip().startswith(("def ", "async ", "@")):
        return None
    indent = _indent(lines[0])
    ends = (
        number
        for number, line in enumerate([*lines[1:], "end"], start=1)
        if _indent(line) <= indent and line.strip() and not line.lstrip().startswith("#")
    )
    for end in islice(ends, _ENDS_MAX):
        with suppress(SyntaxError):
            return ast.parse(textwrap.dedent("".join(lines[:end])))
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def digest_of(source: Source) -> str:
    """`sha256:…` of the trees, in order of their names."""
    told = hashlib.sha256()
    for name in sorted(source.trees):
        told.update(f"{name}={_dump(source.trees[name])};".encode())
    if not source.trees:  # no source: what the compiler made of it names it
        code = source.function.__code__
        told.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
    return "sha256:" + told.hexdigest()


def _dump(node: Any) -> str:
    if isinstance(node, list):
        return "[" + ",".join(_dump(item) for item in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _UNSAID or value is None or value == []:
            continue
        if name == "body" and isinstance(value, list):
            value = _without_docstring(value)
        parts.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _without_docstring(body: list[Any]) -> list[Any]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
        case _:
            return body


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names that are read, outermost first: `time.time`, `helper`."""
    inner: list[ast.AST] = []
    for node in ast.walk(tree):
        if node in inner:
            continue
        if isinstance(node, ast.Attribute):
            parts: list[str] = []
            at: ast.AST = node
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                at = at.value
                inner.append(at)
            if isinstance(at, ast.Name):
                yield ".".join([at.id, *reversed(parts)]), node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno


def _looked_up(function: FunctionType, dotted: str) -> Any:
    """What a name stands for where the function was defined; None where that is not known yet, or is a local."""
    first, *rest = dotted.split(".")
    if first in function.__code__.co_varnames or first in function.__code__.co_cellvars:
        return None
    value = _free(function, first)
    for name in rest:
        if value is None:
            return None
        # Attributes of modules and classes only: what an object answers may be computed.
        if not isinstance(value, ModuleType | type):
            return None
        value = getattr(value, name, None)
    return value


def _free(function: FunctionType, name: str) -> Any:
    if name in function.__code__.co_freevars and function.__closure__:
        cell = function.__closure__[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            return None
    if name in function.__globals__:
        return function.__globals__[name]
    return getattr(builtins, name, None)


def offences(
    source: Source, judge: Callable[[Any], tuple[str, str] | None]
) -> Iterator[tuple[str, int, str, str]]:
    """File, line, what it is and the remedy of everything that the source names and a durable function may not call."""
    for name, value, file, line in source.named:
        if isinstance(value, ModuleType | type) and not _is_offending_class(value):
            continue
        found = judge(value) or _environment(name, value)
        if found is not None:
            yield file, line, f"{name}()" if callable(value) else name, found[1]


def _is_offending_class(value: Any) -> bool:
    return isinstance(value, type) and (value.__module__, value.__name__) == ("threading", "Thread")


def _environment(name: str, value: Any) -> tuple[str, str] | None:
    module = getattr(value, "__module__", None) or ""
    instead = "do that in a step: @flow.step"
    if type(value).__name__ == "_Environ" or (module == "os" and isinstance(value, FunctionType)):
        return name, instead
    if module in ("uuid", "secrets", "random") and isinstance(value, FunctionType):
        known = {"uuid1", "uuid4", "token_bytes", "token_hex", "token_urlsafe"}
        return (name, "use ctx.random or ctx.uuid()") if value.__name__ in known else None
    if module in ("subprocess", "socket", "requests", "httpx", "urllib.request", "shutil", "tempfile"):
        return name, instead
    if _is_offending_class(value):
        return name, "use asyncio.create_task or flow.gather, or a step"
    return None


def walks_over_a_set(source: Source) -> Iterator[tuple[str, int]]:
    """Where a function goes through a set, whose order differs from process to process."""
    for name, tree in source.trees.items():
        file = source.functions[name].__code__.co_filename
        for node in ast.walk(tree):
            match node:
                case ast.For(iter=over) | ast.AsyncFor(iter=over) | ast.comprehension(iter=over):
                    match over:
                        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
                            yield file, over.lineno
