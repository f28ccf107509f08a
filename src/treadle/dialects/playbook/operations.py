"""The operators of templates: bounded, and worded by us where operands do not go together."""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Iterable
from typing import Any, Final

from .bounds import Misuse, budget, check_size, check_times
from .edition import is_first
from .handles import bare
from .texts import is_undefined

_POWER_BITS_MAX: Final = 4096


def kind_of(value: object) -> str:
    if is_undefined(value):
        return "nothing"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return "an object"


_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (type(None), "null"),
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "text"),
    (bytes, "bytes"),
    (dict, "a mapping"),
    (Iterable, "a list"),
)


_OPERATORS: Final[dict[str, Callable[[Any, Any], object]]] = {
    "-": operators.sub,
    "/": operators.truediv,
    "//": operators.floordiv,
}


def binary(operator: str, left: object, right: object) -> object:
    """The operators: those with which a short expression can make a huge value are checked."""
    left, right = bare(left), bare(right)
    try:
        made = _computed(operator, left, right)
    except TypeError:
        if is_first():
            raise
        raise Misuse(f"{operator} does not go with {kind_of(left)} and {kind_of(right)}") from None
    if (spending := budget.get(None)) is not None and not is_first():
        spending.made(made)
    return made


def _computed(operator: str, left: Any, right: Any) -> object:
    if operator == "+":
        check_size(_size(left) + _size(right))
        return left + right
    if operator == "*":
        count = right if isinstance(right, int) else left if isinstance(left, int) else 0
        check_times(left, count)
        check_times(right, count)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        return left * right
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        return left**right
    if operator != "%":
        return _OPERATORS[operator](left, right)
    if isinstance(left, str):
        raise Misuse("the % operator is for numbers here; use the format filter")
    return left % right


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _check_bits(bits: int) -> None:
    if bits > _POWER_BITS_MAX:
        raise Misuse(f"a number of more than {_POWER_BITS_MAX} bits")


COMPARE: Final[dict[str, Callable[[Any, Any], object]]] = {
    "eq": operators.eq,
    "ne": operators.ne,
    "lt": operators.lt,
    "lteq": operators.le,
    "gt": operators.gt,
    "gteq": operators.ge,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}
SIGNS: Final = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=", "notin": "not in"}


def compare(operator: str, left: object, right: object) -> object:
    """One comparison; long values are paid for, because they may be compared to their ends."""
    if is_first():
        if operator in ("in", "notin"):
            left, right = bare(left), bare(right)
        return COMPARE[operator](left, right)
    left, right = bare(left), bare(right)
    if (spending := budget.get(None)) is not None:
        if operator in ("in", "notin"):
            spending.pay(right)
        else:
            spending.spend(min(spending.extent.turns(left), spending.extent.turns(right)))
    try:
        return COMPARE[operator](left, right)
    except TypeError:
        sign = SIGNS.get(operator, operator)
        raise Misuse(f"{sign} does not go with {kind_of(left)} and {kind_of(right)}") from None
