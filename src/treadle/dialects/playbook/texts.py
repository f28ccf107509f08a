"""What templates make, as values and as text.

Only values leave a template: nothing with an address of memory, no method, no function. What is lazy
(`map`, `select`, `batch`, `range`, the items of a mapping) is the list it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.values import Value

from .bounds import Misuse, check_repeated, purse, together
from .edition import is_first
from .handles import Handle, payload_of

if TYPE_CHECKING:
    from .nothing import NotThere

_SCALARS: Final = frozenset({str, bool, type(None), bytes})
_NUMBERS: Final = frozenset({int, float})
_ORDINARY: Final = _SCALARS | _NUMBERS | {dict, list, tuple, range, Handle}
_NAMES: Final[dict[str, str]] = {
    "Cycler": "cycler()",
    "Joiner": "joiner()",
    "Namespace": "namespace()",
    "Macro": "a macro that is not called",
    "LoopContext": "`loop` itself",
    "TemplateReference": "`self`",
}


def is_undefined(value: Any) -> bool:
    """Whether a value is none at all. Only Jinja makes such, and it is not loaded for the sake of an ordinary value."""
    if type(value) in _ORDINARY:
        return False
    from jinja2 import Undefined

    return isinstance(value, Undefined)


def is_not_there(value: Any) -> TypeGuard[NotThere]:
    """The same of one that a template named, or that a filter gave."""
    if not is_undefined(value):
        return False
    from .nothing import NotThere

    return isinstance(value, NotThere)


def plain(value: Any, *, load: bool = False) -> Value:
    """A template's value as a canonical value. Handles become their result: with `load` the
    payload itself, without it the reference, so that large results travel by reference."""
    kind = type(value)
    if kind in _SCALARS or (kind is int and INT_MIN <= value <= INT_MAX):
        return value
    if kind in _NUMBERS:
        return _number(value)
    if kind is dict:
        return {_key(key): plain(item, load=load) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item, load=load) for item in value]
    if kind is Handle:
        return plain(payload_of(value.raw)) if load else value.raw
    if is_undefined(value):
        _asked_for(value)
        return None
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(value[key], load=load) for key in value}
    if callable(value) or not isinstance(value, Iterable):
        raise no_value(value)
    return [plain(item, load=load) for item in value]


def _asked_for(value: Any) -> None:
    """Nothing is about to be handed on: where arguments are made, what was named must be there (since version 2)."""
    tally = together.get(None)
    if tally is None or tally.asking is None or is_first():
        return
    if is_not_there(value) and value.is_named:
        tally.asking.meets(value.name)


def _key(key: object) -> str:
    return key if type(key) is str else text_of(key)


def no_value(value: object) -> Exception:
    kind = type(value).__name__
    if is_first():
        return TypeError(f"{kind} is not a value")
    what = _NAMES.get(kind, "a function or method that is not called" if callable(value) else "an object")
    return Misuse(f"{what} is not a value; call it, or add a filter such as | list or | join(', ')")


def bounded(value: Any, *, load: bool = False) -> Value:
    """The same as `plain`, of a value that a template put together and that may hold others many times."""
    kind = type(value)
    if kind in _SCALARS or (kind is int and INT_MIN <= value <= INT_MAX):
        return value
    if not (kind in _NUMBERS or is_first()):
        check_repeated(value)
    return plain(value, load=load)


def text_of(value: Any) -> str:
    """A value as it is written into text."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]  # the check is on its exact type
    if kind in _NUMBERS or kind in _SCALARS or is_first():
        return str(value)
    if kind is Handle:
        return text_of(value.payload())
    if is_undefined(value):
        _asked_for(value)
        return ""
    if isinstance(value, str):
        return str.__str__(value)
    made = bounded(value, load=True)
    return purse().made(str(made))


def truth_of(value: object) -> bool:
    """Whether a condition holds. A method or function is no condition: it would always hold."""
    if not is_first() and callable(value) and not is_undefined(value):
        raise no_value(value)
    return bool(value)


def _number(value: float) -> Value:
    if type(value) is float:
        if not math.isfinite(value):
            raise _wrong_number(f"{value} is not a number that can be kept")
    elif not INT_MIN <= value <= INT_MAX:
        raise _wrong_number("a whole number of more than 64 bits; make it a float or a text")
    return value


def _wrong_number(message: str) -> Exception:
    return ValueError(message) if is_first() else Misuse(message)
