"""Trees to closures: an expression is compiled once, at load, and evaluated without `eval`.

A template is any value of a definition with expressions in it (`{"$": tree}`). A payload that is
too large for the journal is a reference; a template that only passes such a value on keeps the
reference (or gives the address of a large part of it), an expression that looks into it loads it
(`Scope.at_hand`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from treadle.kernel.errors import ExpressionError
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text

from .functions import (
    COMPARISONS,
    FUNCTIONS,
    OPERATIONS,
    SEARCHING,
    WRITING,
    item,
    negative,
    truth,
    unfolded,
)
from .references import is_large, part_of
from .syntax import Tree, unparse


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

    def at_hand(self, value: Value) -> Value:
        """The value itself, or what it stands for if it is a reference."""
        ...

    def made(self, value: Value) -> Value:
        """A value that an expression has built, as it is passed on: bounded, by reference if it is large."""
        ...


Closure = Callable[[Scope], Value]


def is_expression(value: Value) -> bool:
    return isinstance(value, dict) and len(value) == 1 and "$" in value


# Trees that give a number, true or false, which are never large.
_SMALL: Final = frozenset({"==", "!=", "<", "<=", ">", ">=", "in", "not", "neg", "-", "*", "/", "%"})
# Trees that give what is there already, which may be a reference. Any other makes a value of its own.
_READING: Final = frozenset({"path", "get", "call", "and", "or", "list", "object"})


def compile_tree(tree: Tree) -> Closure:
    """A closure whose value is at hand, references resolved."""
    raw = _compile(tree, passing=False)
    return (lambda scope: scope.at_hand(raw(scope))) if tree[0] in _READING else raw


def compile_template(template: Value, *, bounded: bool = True) -> Closure:
    """A closure that fills a template in. Keys go in sorted order, so that the first of two
    mistakes is the same one wherever the definition was loaded from. Without `bounded`, what stands
    in the run's data already may have any size."""
    inner = _template(template, bounded)
    if is_expression(template) or not _has_expression(template):
        return inner
    return lambda scope: scope.made(inner(scope))


def _has_expression(template: Value) -> bool:
    if isinstance(template, list):
        return any(map(_has_expression, template))
    return isinstance(template, dict) and (
        is_expression(template) or any(map(_has_expression, template.values()))
    )


def _template(template: Value, bounded: bool) -> Closure:
    if is_expression(template):
        return _guarded(template["$"], bounded)
    if not _has_expression(template):
        return lambda scope: template
    if isinstance(template, list):
        items = [_template(part, bounded) for part in template]
        return lambda scope: [part(scope) for part in items]
    pairs = [(key, _template(template[key], bounded)) for key in sorted(template)]

    def fill(scope: Scope) -> Value:
        filled: dict[str, Value] = {}
        for key, part in pairs:  # a comprehension is one more call
            filled[key] = part(scope)
        return filled

    return fill


def _guarded(tree: Tree, bounded: bool) -> Closure:
    inner = _compile(tree)
    bounded = bounded and tree[0] not in _SMALL

    def run(scope: Scope) -> Value:
        try:
            value = inner(scope)
            return scope.made(value) if bounded else value
        except ExpressionError as error:
            error.details.setdefault("expression", unparse(tree))
            raise

    return run


def compile_condition(template: Value) -> Callable[[Scope], bool]:
    inner = compile_template(template)
    return lambda scope: bool(scope.at_hand(inner(scope)))


def _compile(tree: Tree, *, passing: bool = True) -> Closure:
    """`passing`: the value is passed on, so a large part of a payload is better given by its address."""
    match tree[0]:
        case "lit":
            constant = tree[1]
            return lambda scope: constant
        case "path":
            return _path(tree[1], tree[2:], passing)
        case "get":
            return _get(_compile(tree[1], passing=passing), compile_tree(tree[2]), passing)
        case "list":
            items = [_compile(part) for part in tree[1:]]
            return lambda scope: scope.made([part(scope) for part in items])
        case "object":
            pairs = [(key, _compile(part)) for key, part in tree[1:]]
            return lambda scope: scope.made({key: part(scope) for key, part in pairs})
        case "call":
            return _call(tree[1], tree[2:], passing)
        case "not":
            inner = compile_tree(tree[1])
            return lambda scope: not truth(inner(scope))
        case "neg":
            inner = compile_tree(tree[1])
            return lambda scope: negative(inner(scope))
        case "and" | "or":
            # What a reference stands for is never empty, so it is as true as its payload.
            return _logic(tree[0] == "and", [_compile(part, passing=passing) for part in tree[1:]])
        case _:
            return _binary(tree[0], compile_tree(tree[1]), compile_tree(tree[2]))


def _path(root: str, path: list[str | int], passing: bool) -> Closure:
    if not path:
        return lambda scope: scope.whole(root)

    def read(scope: Scope) -> Value:
        """As nearly always: objects on all of the way, and none of them may be a reference."""
        value: Value = scope.root(root)
        for key in path:
            if type(value) is not dict or "store" in value:
                return walk(scope)
            value = value.get(key)
        return value

    def walk(scope: Scope) -> Value:
        value: Value = scope.root(root)
        base: Value = None
        since = 0
        for depth, key in enumerate(path):
            if type(value) is dict and is_reference(value):
                base, since, value = value, depth, scope.at_hand(value)
            value = item(value, key)
        return part_of(base, *path[since:]) if passing and base is not None and is_large(value) else value

    return read if all(isinstance(key, str) for key in path) else walk


def _get(container: Closure, key: Closure, passing: bool) -> Closure:
    def run(scope: Scope) -> Value:
        base, at = container(scope), key(scope)
        value = item(scope.at_hand(base), at)
        return part_of(base, at) if passing and is_reference(base) and is_large(value) else value

    return run


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
    if compare := COMPARISONS.get(operator):
        return lambda scope: compare(left(scope), right(scope), scope.at_hand)
    apply = OPERATIONS[operator]
    return lambda scope: scope.at_hand(apply(left(scope), right(scope)))


def _call(name: str, arguments: list[Tree], passing: bool) -> Closure:
    match name:
        case "now":
            return lambda scope: instant_text(scope.now_ns)
        case "coalesce":
            choices = [_compile(part, passing=passing) for part in arguments]

            def coalesce(scope: Scope) -> Value:
                for choice in choices:
                    if (value := choice(scope)) is not None:
                        return value
                return None

            return coalesce
        case "if":
            test = compile_tree(arguments[0])
            yes, no = (_compile(part, passing=passing) for part in arguments[1:])
            return lambda scope: yes(scope) if truth(test(scope)) else no(scope)
    function = FUNCTIONS[name][2]
    assert function is not None, name
    parts = [compile_tree(part) for part in arguments]
    if name == "merge":
        return lambda scope: scope.made(function(*[part(scope) for part in parts], at_hand=scope.at_hand))
    if name in SEARCHING:
        return lambda scope: function(*[part(scope) for part in parts], at_hand=scope.at_hand)
    if name in WRITING:
        return lambda scope: function(*[unfolded(part(scope), scope.at_hand) for part in parts])
    return lambda scope: function(*[part(scope) for part in parts])
