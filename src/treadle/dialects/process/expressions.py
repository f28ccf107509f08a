"""Trees to closures: an expression is compiled once, at load, and evaluated without `eval`.

A template is any value of a definition with expressions in it (`{"$": tree}`). A payload that is
too large for the journal is a reference; a template that only passes such a value on keeps the
reference, an expression that looks into it loads it (`Scope.resolve`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from treadle.kernel.errors import ExpressionError
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text

from .functions import FUNCTIONS, OPERATIONS, item, measure, negative, truth
from .syntax import Tree, unparse

ROOTS: Final = ("start", "state", "payload", "result", "error", "run")
RUN_FIELDS: Final = ("id", "workflow", "version", "reference", "started_at")


class Scope(Protocol):
    """What an expression may read."""

    @property
    def now_ns(self) -> int: ...

    def root(self, name: str) -> Value:
        """A root to look into."""
        ...

    def whole(self, name: str) -> Value:
        """A root as a value of its own, which later writes do not change."""
        ...

    def resolve(self, reference: dict[str, Value]) -> Value: ...


Closure = Callable[[Scope], Value]


def is_expression(value: Value) -> bool:
    return isinstance(value, dict) and len(value) == 1 and "$" in value


def compile_tree(tree: Tree) -> Closure:
    """A closure whose value is at hand, references resolved."""
    if tree[0] in ("path", "get"):
        raw = _compile(tree)
        return lambda scope: _at_hand(raw(scope), scope)
    return _compile(tree)


def compile_template(template: Value) -> Closure:
    """A closure that fills a template in. Keys go in sorted order, so that the first of two
    mistakes is the same one wherever the definition was loaded from."""
    inner = _template(template)

    def run(scope: Scope) -> Value:
        value = inner(scope)
        if isinstance(value, list | dict):
            measure(value)
        return value

    return run if _has_expression(template) else inner


def _has_expression(template: Value) -> bool:
    if isinstance(template, list):
        return any(map(_has_expression, template))
    return isinstance(template, dict) and (
        is_expression(template) or any(map(_has_expression, template.values()))
    )


def _template(template: Value) -> Closure:
    if is_expression(template):
        return _guarded(template["$"])
    if not _has_expression(template):
        return lambda scope: template
    if isinstance(template, list):
        items = [_template(part) for part in template]
        return lambda scope: [part(scope) for part in items]
    pairs = [(key, _template(template[key])) for key in sorted(template)]
    return lambda scope: {key: part(scope) for key, part in pairs}


def _guarded(tree: Tree) -> Closure:
    inner = _compile(tree)

    def run(scope: Scope) -> Value:
        try:
            return inner(scope)
        except ExpressionError as error:
            error.details.setdefault("expression", unparse(tree))
            raise

    return run


def compile_condition(template: Value) -> Callable[[Scope], bool]:
    inner = compile_template(template)
    return lambda scope: truth(_at_hand(inner(scope), scope))


def _at_hand(value: Value, scope: Scope) -> Value:
    return scope.resolve(value) if is_reference(value) else value


def _compile(tree: Tree) -> Closure:
    match tree[0]:
        case "lit":
            constant = tree[1]
            return lambda scope: constant
        case "path":
            return _path(tree[1], tree[2:])
        case "get":
            base, key = compile_tree(tree[1]), compile_tree(tree[2])
            return lambda scope: item(base(scope), key(scope))
        case "list":
            items = [_compile(part) for part in tree[1:]]
            return lambda scope: _measured([part(scope) for part in items])
        case "object":
            pairs = [(key, _compile(part)) for key, part in tree[1:]]
            return lambda scope: _measured({key: part(scope) for key, part in pairs})
        case "call":
            return _call(tree[1], tree[2:])
        case "not":
            inner = compile_tree(tree[1])
            return lambda scope: not truth(inner(scope))
        case "neg":
            inner = compile_tree(tree[1])
            return lambda scope: negative(inner(scope))
        case "and" | "or":
            return _logic(tree[0] == "and", [compile_tree(part) for part in tree[1:]])
        case _:
            return _binary(tree[0], compile_tree(tree[1]), compile_tree(tree[2]))


def _measured(value: Value) -> Value:
    """What an expression builds is bounded at once: `[x, x]` of `[x, x]` doubles with each level."""
    measure(value)
    return value


def _path(root: str, path: list[str | int]) -> Closure:
    if not path:
        return lambda scope: scope.whole(root)

    def walk(scope: Scope) -> Value:
        value = scope.root(root)
        for key in path:
            if is_reference(value):
                value = scope.resolve(value)
            value = item(value, key)
        return value

    return walk


def _logic(conjunction: bool, parts: list[Closure]) -> Closure:
    def run(scope: Scope) -> Value:
        value: Value = conjunction
        for part in parts:
            value = part(scope)
            if truth(value) is not conjunction:
                return value
        return value

    return run


def _binary(operator: str, left: Closure, right: Closure) -> Closure:
    apply = OPERATIONS[operator]
    return lambda scope: apply(left(scope), right(scope))


def _call(name: str, arguments: list[Tree]) -> Closure:
    parts = [compile_tree(part) for part in arguments]
    match name:
        case "now":
            return lambda scope: instant_text(scope.now_ns)
        case "coalesce":

            def coalesce(scope: Scope) -> Value:
                for part in parts:
                    if (value := part(scope)) is not None:
                        return value
                return None

            return coalesce
        case "if":
            test, yes, no = parts
            return lambda scope: yes(scope) if truth(test(scope)) else no(scope)
    function = FUNCTIONS[name][2]
    assert function is not None, name
    return lambda scope: function(*[part(scope) for part in parts])
