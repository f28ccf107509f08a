"""What operators and functions of expressions do to values.

Every function here is total over values: it returns a value or raises ExpressionError, takes
bounded time and space, and reads nothing but its arguments. Missing data is null: functions that
read text or containers let null through; arithmetic and ordering do not.

Arguments are at hand, but what stands inside a list or an object may be a reference to a payload.
Whatever looks that deep takes `at_hand`, which gives what a reference stands for.
"""

from __future__ import annotations

import json as _json
import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from treadle.kernel.errors import ExpressionError
from treadle.kernel.limits import INT_MAX, INT_MIN, REFERENCE_LEVELS_MAX
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value

from .references import AtHand, same_payload

TEXT_CHARS_MAX: Final = 256 * 1024
VALUE_BYTES_MAX: Final = 512 * 1024
VALUE_LEVELS_MAX: Final = 64

# A text: compiled when the first is read, not at every start of a process.
_NUMBER: Final = r"(?a)[-+]?(\d{1,30}|\d*\.\d+|\d+\.\d*)([eE][-+]?\d{1,4})?\Z"


def mistake(message: str, code: str = "EXPRESSION_TYPE") -> NoReturn:
    raise ExpressionError(message, code=code)


def type_name(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "bytes"


_NUMBERS: Final = frozenset({int, float})


def is_number(value: Value) -> bool:
    return type(value) in _NUMBERS


def truth(value: Value) -> bool:
    """null, false, "", 0, [] and {} are false."""
    return bool(value)


def equal(left: Value, right: Value, at_hand: AtHand, levels: int = REFERENCE_LEVELS_MAX) -> bool:
    """Never fails but for what is too deep. 1 equals 1.0, but true is no number."""
    if same_payload(left, right):
        return True
    if not levels:
        too_deep()
    left, right = at_hand(left), at_hand(right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(equal(one, other, at_hand, levels - 1) for one, other in zip(left, right, strict=True))
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(equal(value, right[key], at_hand, levels - 1) for key, value in left.items())
        )
    return bool(left == right)


def checked_number(value: int | float | complex) -> int | float:
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            mistake("the result does not fit into 64 bits", "EXPRESSION_RANGE")
        return value
    if isinstance(value, complex) or not math.isfinite(value):
        mistake("the result is not a finite number", "EXPRESSION_RANGE")
    return value


def checked_text(value: str) -> str:
    if len(value) > TEXT_CHARS_MAX:
        mistake(f"the text is longer than {TEXT_CHARS_MAX} characters", "EXPRESSION_RANGE")
    return value


def too_deep() -> NoReturn:
    mistake(f"the value is nested deeper than {REFERENCE_LEVELS_MAX} levels", "EXPRESSION_RANGE")


def too_large(bytes_max: int = VALUE_BYTES_MAX) -> NoReturn:
    mistake(
        f"the value is larger than {bytes_max // 1024:,} KiB; pass on only the parts that are needed, "
        "or let a call put them together: what a call gives may have any size",
        "EXPRESSION_RANGE",
    )


def measure(value: Value, bytes_max: int = VALUE_BYTES_MAX) -> int:
    """About how many bytes a value takes, refusing what is too large or too deep to be stored.
    Values may share parts (`[state.x, state.x]`), so the walk stops at the bound."""
    total, level, depth = 0, [value], 0
    while level:
        depth += 1
        if depth > VALUE_LEVELS_MAX:
            mistake(f"the value is nested deeper than {VALUE_LEVELS_MAX} levels", "EXPRESSION_RANGE")
        below: list[Value] = []
        total += 9 * len(level)
        for item in level:
            kind = type(item)
            if kind is str:
                # What is stored is UTF-8.
                total += len(item) if item.isascii() else len(item.encode())
            elif kind is dict or kind is list:
                # Looked at after each: many of a level may be the same large one.
                if kind is dict:
                    total += sum(map(len, item))
                    below.extend(item.values())
                else:
                    below.extend(item)
                if total + len(below) > bytes_max:
                    too_large(bytes_max)
            elif kind is bytes:
                total += len(item)
        if total + len(below) > bytes_max:
            too_large(bytes_max)
        level = below
    return total


# --- operators ------------------------------------------------------------------------------------


def plus(left: Value, right: Value) -> Value:
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return checked_number(left + right)
    if isinstance(left, str) and isinstance(right, str):
        return checked_text(left + right)
    mistake(f"+ cannot join {type_name(left)} and {type_name(right)}")


def _arithmetic(sign: str, apply: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    def run(left: Value, right: Value) -> Value:
        if not (type(left) in _NUMBERS and type(right) in _NUMBERS):
            mistake(f"{sign} needs two numbers, not {type_name(left)} and {type_name(right)}")
        try:
            return checked_number(apply(left, right))
        except ZeroDivisionError:
            mistake("division by zero", "EXPRESSION_RANGE")
        except OverflowError:
            mistake("the result is not a finite number", "EXPRESSION_RANGE")

    return run


def _ordering(sign: str, apply: Callable[[Any, Any], bool]) -> Callable[[Value, Value], Value]:
    def run(left: Value, right: Value) -> Value:
        if not (type(left) in _NUMBERS and type(right) in _NUMBERS) and not (
            isinstance(left, str) and isinstance(right, str)
        ):
            mistake(f"{sign} cannot compare {type_name(left)} with {type_name(right)}")
        return apply(left, right)

    return run


def inside(item: Value, container: Value, at_hand: AtHand) -> bool:
    """Part of a text, item of a list, key of an object; nothing is inside null."""
    match container:
        case None:
            return False
        case str():
            if not isinstance(item, str):
                mistake(f"only text can be in text, not {type_name(item)}")
            return item in container
        case list():
            return any(equal(item, other, at_hand) for other in container)
        case dict():
            return isinstance(item, str) and item in container
        case _:
            mistake(f"nothing can be in {type_name(container)}")


def negative(value: Value) -> Value:
    if not is_number(value):
        mistake(f"- needs a number, not {type_name(value)}")
    return checked_number(-value)


OPERATIONS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": plus,
    "-": _arithmetic("-", operator.sub),
    "*": _arithmetic("*", operator.mul),
    "/": _arithmetic("/", operator.truediv),
    "%": _arithmetic("%", operator.mod),
    "<": _ordering("<", operator.lt),
    "<=": _ordering("<=", operator.le),
    ">": _ordering(">", operator.gt),
    ">=": _ordering(">=", operator.ge),
}
# These look into lists and objects.
COMPARISONS: Final[dict[str, Callable[[Value, Value, AtHand], Value]]] = {
    "==": equal,
    "!=": lambda a, b, at_hand: not equal(a, b, at_hand),
    "in": inside,
}


def item(container: Value, key: Value) -> Value:
    """`container[key]`: null where there is nothing."""
    if isinstance(key, str):
        return container.get(key) if isinstance(container, dict) else None
    if type(key) is not int:
        mistake(f"an index is a whole number or a text, not {type_name(key)}")
    if isinstance(container, list) and 0 <= key < len(container):
        return container[key]
    return None


# --- functions ------------------------------------------------------------------------------------


def json(value: Value) -> str:
    try:
        return checked_text(_json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))
    except TypeError:
        mistake("bytes have no JSON form")


def string(value: Value) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return json(value)


def concat(*parts: Value) -> str:
    for part in parts:
        if isinstance(part, list | dict | bytes):
            mistake(f"concat cannot take {type_name(part)}; write json(…) to make it text")
    return checked_text("".join(map(string, parts)))


def add(*parts: Value) -> Value:
    total: Value = 0
    for part in parts:
        if not is_number(part):
            mistake(f"add needs numbers, not {type_name(part)}")
        total = checked_number(total + part)
    return total


def is_blank(value: Value) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def length(value: Value) -> int:
    if value is None:
        return 0
    if not isinstance(value, str | list | dict):
        mistake(f"length needs text, a list or an object, not {type_name(value)}")
    return len(value)


def _of_text(name: str, apply: Callable[[str], str]) -> Callable[[Value], Value]:
    def run(value: Value) -> Value:
        if value is None:
            return None
        if not isinstance(value, str):
            mistake(f"{name} needs text, not {type_name(value)}")
        return checked_text(apply(value))

    return run


def _of_sequence(name: str, index: int) -> Callable[[Value], Value]:
    def run(value: Value) -> Value:
        if value is None:
            return None
        if not isinstance(value, list | str):
            mistake(f"{name} needs a list or text, not {type_name(value)}")
        return value[index] if value else None

    return run


def at(container: Value, key: Value) -> Value:
    if container is not None and not isinstance(container, list | dict):
        mistake(f"at needs a list or an object, not {type_name(container)}")
    return item(container, key)


def keys(value: Value) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, dict):
        mistake(f"keys needs an object, not {type_name(value)}")
    return sorted(value)


def merge(*parts: Value, at_hand: AtHand) -> dict[str, Value]:
    """Deep: objects are merged key by key, anything else is replaced by the later part."""
    out: dict[str, Value] = {}
    for part in parts:
        if part is None:
            continue
        if not isinstance(part, dict):
            mistake(f"merge needs objects, not {type_name(part)}")
        out = _merged(out, part, at_hand)
    return out


def _merged(left: dict[str, Value], right: dict[str, Value], at_hand: AtHand) -> dict[str, Value]:
    out = dict(left)
    for key, value in right.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            old, new = at_hand(old), at_hand(value)
            value = _merged(old, new, at_hand) if isinstance(old, dict) and isinstance(new, dict) else value
        out[key] = value
    return out


def unfolded(value: Value, at_hand: AtHand) -> Value:
    """The value with everything that it refers to in place, as far as it can be written down."""
    room = VALUE_BYTES_MAX

    def unfold(item: Value, levels: int) -> Value:
        nonlocal room
        if not levels:
            too_deep()
        if is_reference(item):
            item = at_hand(item)
            room -= measure(item)
            if room < 0:
                too_large()
        if isinstance(item, list):
            return [unfold(inner, levels - 1) for inner in item]
        if isinstance(item, dict):
            return {key: unfold(inner, levels - 1) for key, inner in item.items()}
        return item

    return unfold(value, REFERENCE_LEVELS_MAX)


def format(pattern: Value, *parts: Value) -> str:
    """`{}` takes the next part; `{{` and `}}` are braces."""
    if not isinstance(pattern, str):
        mistake(f"format needs text as its pattern, not {type_name(pattern)}")
    out: list[str] = []
    used = 0
    for piece in re.split(r"(\{\}|\{\{|\}\}|[{}])", pattern):
        if piece == "{}":
            if used == len(parts):
                mistake(f"format has more {{}} than its {len(parts)} parts")
            out.append(string(parts[used]))
            used += 1
        elif piece in ("{", "}"):
            mistake("format knows only {}; write {{ or }} for a brace")
        else:
            out.append({"{{": "{", "}}": "}"}.get(piece, piece))
    if used != len(parts):
        mistake(f"format has {used} {{}} for {len(parts)} parts")
    return checked_text("".join(out))


def number(value: Value) -> int | float:
    if is_number(value):
        return checked_number(value)
    if not isinstance(value, str):
        mistake(f"number needs text or a number, not {type_name(value)}")
    text = value.strip()
    if not re.match(_NUMBER, text):
        mistake(f"{value[:40]!r} is not a number")
    try:
        return checked_number(int(text))
    except ValueError:
        return checked_number(float(text))


# name: (least arguments, most arguments or None, function). `coalesce`, `if` and `now` are special
# forms: the first two evaluate only what they need, the third reads the recorded time.
FUNCTIONS: Final[dict[str, tuple[int, int | None, Callable[..., Value] | None]]] = {
    "coalesce": (1, None, None),
    "if": (3, 3, None),
    "now": (0, 0, None),
    "concat": (0, None, concat),
    "add": (1, None, add),
    "is_blank": (1, 1, is_blank),
    "length": (1, 1, length),
    "upper": (1, 1, _of_text("upper", str.upper)),
    "lower": (1, 1, _of_text("lower", str.lower)),
    "trim": (1, 1, _of_text("trim", str.strip)),
    "first": (1, 1, _of_sequence("first", 0)),
    "last": (1, 1, _of_sequence("last", -1)),
    "at": (2, 2, at),
    "keys": (1, 1, keys),
    "merge": (1, None, merge),
    "contains": (2, 2, lambda container, part, at_hand: inside(part, container, at_hand)),
    "format": (1, None, format),
    "number": (1, 1, number),
    "string": (1, 1, string),
    "json": (1, 1, json),
}
# Functions that look into lists and objects: they take `at_hand`, or arguments with everything in place.
SEARCHING: Final = frozenset({"merge", "contains"})
WRITING: Final = frozenset({"json", "string", "format"})
