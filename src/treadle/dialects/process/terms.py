"""Expressions as Python objects: `state.total + 1` builds a tree, it computes nothing.

Attribute access makes a path, so a `Term` has no public methods. Python features that would need
the value now (`if state.x:`, `for … in state.items`, f-strings, `in`) raise and say what to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from treadle.kernel.values import Value
from treadle.lang.expressions.functions import FUNCTIONS
from treadle.lang.expressions.syntax import Tree, item_of, joined, negated, unparse


def tree_of(value: object) -> Tree:
    """The tree of a term or of a plain value."""
    match value:
        case Term():
            tree: Tree = object.__getattribute__(value, "_tree")
            return tree
        case list() | tuple():
            return ["list", *map(tree_of, value)]
        case dict():
            return ["object", *([str(key), tree_of(value[key])] for key in sorted(value))]
        case None | bool() | int() | float() | str():
            return ["lit", value]
    raise TypeError(
        f"{type(value).__name__} cannot stand in an expression; a definition is data, so register a "
        "function as a transport and call it instead"
    )


def _binary(operator: str, left: object, right: object) -> Term:
    return Term(joined(operator, tree_of(left), tree_of(right)))


class Term:
    """A part of an expression. Combine it with operators and the functions of `treadle.process`."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Tree) -> None:
        object.__setattr__(self, "_tree", tree)

    def __getattr__(self, name: str) -> Term:
        if name.startswith("__"):
            raise AttributeError(name)
        return Term(item_of(tree_of(self), ["lit", name]))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TypeError(f"write p.set({self!r}.{name}, …): nothing is assigned while a process is written")

    def __getitem__(self, key: object) -> Term:
        return Term(item_of(tree_of(self), tree_of(key)))

    def __repr__(self) -> str:
        return unparse(tree_of(self))

    # --- what needs a value now ---

    def _no_value(self, instead: str) -> NoReturn:
        raise TypeError(f"{self!r} has no value while the process is written: {instead}")

    def __bool__(self) -> bool:
        self._no_value("write `with p.when(…):` instead of `if`, and & | ~ instead of `and`, `or`, `not`")

    def __iter__(self) -> NoReturn:
        self._no_value("write `with p.each('item', in_=…):` instead of `for`")

    def __contains__(self, item: object) -> bool:
        self._no_value("write contains(container, item) instead of `in`")

    def __len__(self) -> int:
        self._no_value("write length(…) instead of len")

    def __format__(self, spec: str) -> str:
        self._no_value("write format_('{} …', …) or concat(…) instead of an f-string")

    def __str__(self) -> str:
        self._no_value("write string(…) or concat(…) to make text of it")

    # --- operators ---

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Term:  # type: ignore[override]  # builds a tree, as SQL builders do
        return _binary("==", self, other)

    def __ne__(self, other: object) -> Term:  # type: ignore[override]  # builds a tree, as SQL builders do
        return _binary("!=", self, other)

    def __lt__(self, other: object) -> Term:
        return _binary("<", self, other)

    def __le__(self, other: object) -> Term:
        return _binary("<=", self, other)

    def __gt__(self, other: object) -> Term:
        return _binary(">", self, other)

    def __ge__(self, other: object) -> Term:
        return _binary(">=", self, other)

    def __add__(self, other: object) -> Term:
        return _binary("+", self, other)

    def __radd__(self, other: object) -> Term:
        return _binary("+", other, self)

    def __sub__(self, other: object) -> Term:
        return _binary("-", self, other)

    def __rsub__(self, other: object) -> Term:
        return _binary("-", other, self)

    def __mul__(self, other: object) -> Term:
        return _binary("*", self, other)

    def __rmul__(self, other: object) -> Term:
        return _binary("*", other, self)

    def __truediv__(self, other: object) -> Term:
        return _binary("/", self, other)

    def __rtruediv__(self, other: object) -> Term:
        return _binary("/", other, self)

    def __mod__(self, other: object) -> Term:
        return _binary("%", self, other)

    def __rmod__(self, other: object) -> Term:
        return _binary("%", other, self)

    def __and__(self, other: object) -> Term:
        return _binary("and", self, other)

    def __rand__(self, other: object) -> Term:
        return _binary("and", other, self)

    def __or__(self, other: object) -> Term:
        return _binary("or", self, other)

    def __ror__(self, other: object) -> Term:
        return _binary("or", other, self)

    def __invert__(self) -> Term:
        return Term(["not", tree_of(self)])

    def __neg__(self) -> Term:
        return Term(negated(tree_of(self)))


def surface(value: object) -> Value:
    """A value with terms in it, as it would stand in YAML; anything odd is left for `check`."""
    match value:
        case Term():
            return {"$": tree_of(value)}
        case dict():
            return {key: surface(part) for key, part in value.items()}
        case list() | tuple():
            return [surface(part) for part in value]
        case _:
            return value


def lit(value: object) -> Term:
    """A literal as a term, where Python would otherwise compute with it: `lit(1) < state.x`."""
    return Term(tree_of(value))


def var(name: str) -> Term:
    """The item of the loop with this name, where no builder is at hand (a task's payload)."""
    return Term(["path", name])


def in_(item: object, container: object) -> Term:
    """`item in container`."""
    return _binary("in", item, container)


def _function(name: str) -> Callable[..., Term]:
    def build(*arguments: object) -> Term:
        return Term(["call", name, *map(tree_of, arguments)])

    build.__name__ = build.__qualname__ = PYTHON_NAMES.get(name, name)
    build.__doc__ = f"The expression function `{name}`."
    return build


# Where the function's own name is taken in Python.
PYTHON_NAMES: Final = {"if": "if_", "format": "format_"}

start, state, payload, result, error, run = (
    Term(["path", root]) for root in ("start", "state", "payload", "result", "error", "run")
)
FUNCTION_TERMS: Final[dict[str, Callable[..., Term]]] = {
    PYTHON_NAMES.get(name, name): _function(name) for name in FUNCTIONS
}
