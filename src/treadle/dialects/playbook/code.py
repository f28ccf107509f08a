"""Inline Python of a playbook, read before it runs: its syntax, and what of the run it asks for.

Code sees its arguments, and under the name `context` the run around it: `workload`, `ctx`, `iter`
and the results of steps. Only what the code names travels to the worker, so the compiler looks for
it and writes the task's field `context`, whose templates then count like any other. Code that comes
from a file or an address is not read here and gets no more than its arguments.
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.text import Path

from .reading import Reader

_SCOPES: Final = ("workload", "ctx", "iter")
_TEMPLATE: Final = (
    r"\{\{-?\s*(workload|ctx|iter|args|keychain|execution_id|_prev)\b[^}]*\}\}|\{%-?\s*(if|for|set)\b[^%]*%\}"
)


def read_code(reader: Reader, task: dict[str, Value], path: Path, steps: Iterable[str]) -> dict[str, Value]:
    """Checks a python task's inline code; gives the task, with `context` where its code asks for it."""
    if task["kind"] != "python" or (text := _text(task)) is None:
        return task
    field = "code" if "code" in task else "code_b64"
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        if not (task.get("deps") or {}).get("venv_path"):  # another Python may read it
            _report(reader, error, text, (*path, field))
        return task
    except ValueError:  # a null character
        return task
    if found := _unrendered(tree):
        reader.warning(
            "code_template",
            (*path, field),
            f"templates are not rendered inside code: {found}",
            hint='pass the value as an argument: args: {x: "{{ … }}"}, and use x in the code',
        )
    return _with_context(task, tree, [name for name in steps if name.isidentifier()])


def _text(task: dict[str, Value]) -> str | None:
    if isinstance(code := task.get("code"), str):
        return code
    if isinstance(encoded := task.get("code_b64"), str) and "{{" not in encoded:
        try:
            return base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def _report(reader: Reader, error: SyntaxError, text: str, path: Path) -> None:
    lines = text.splitlines()
    number = min(max(error.lineno or 1, 1), max(len(lines), 1))
    shown = lines[number - 1].strip()[:120] if lines else ""
    hint = "correct the code"
    if "{{" in text or "{%" in text:
        hint = "templates are not rendered inside code: pass values by args"
    message = f"the code is not valid Python: {error.msg} (line {number} of the code: {shown})"
    reader.problems.error(
        "code_syntax", reader.source(path), message, hint=hint, rule="PLAYBOOK §6.51", inside=number
    )


def _unrendered(tree: ast.Module) -> str | None:
    """The first piece of code that can only be a template somebody hoped to have rendered."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set) and len(node.elts) == 1 and isinstance(node.elts[0], ast.Set | ast.Dict):
            return f"{{{{ {ast.unparse(node.elts[0]).strip('{}')[:60]} }}}}"
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if match := re.search(_TEMPLATE, text):
            return match[0][:80]
    return None


def _with_context(task: dict[str, Value], tree: ast.Module, steps: list[str]) -> dict[str, Value]:
    args = task.get("args")
    if "context" in task or (isinstance(args, dict) and "context" in args):
        return task
    wanted: dict[str, None] = {}
    for key in _keys_of_context(tree):
        wanted.update(dict.fromkeys((*_SCOPES, "steps") if key is None else (key,)))
    context: dict[str, Value] = {scope: f"{{{{ {scope} }}}}" for scope in _SCOPES if scope in wanted}
    named = steps if "steps" in wanted else [name for name in steps if name in wanted]
    if named or "steps" in wanted:
        context["steps"] = {name: f"{{{{ {name} }}}}" for name in named}
    return {**task, "context": context} if context else task


def _keys_of_context(tree: ast.Module) -> Iterator[str | None]:
    """The keys that code reads of `context`; None where it may read any."""
    known: set[ast.Name] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id="context") as name, slice=ast.Constant(value=str() as key)):
                known.add(name)
                yield key
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="context") as name, attr="get"),
                args=[ast.Constant(value=str() as key), *_],
            ):
                known.add(name)
                yield key
            case ast.Compare(
                left=ast.Constant(value=str() as key), comparators=[ast.Name(id="context") as name]
            ):
                known.add(name)
                yield key
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "context" and node not in known:
            yield None
        if isinstance(node, ast.arg) and node.arg == "context":
            yield None
