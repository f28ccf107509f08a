"""The environment that templates run in: Jinja's immutable sandbox, bounded in output and work.

Definitions come from people, and guards are evaluated where every run of a store waits its turn, so
no short template may take long or make much. What can grow is checked before it is made
(`check_size`); what repeats is counted (`Budget`): turns of loops, calls, items that filters go over,
characters that they make. Nothing reads a clock, so the same template gives the same on replay.
"""

from __future__ import annotations

import json
import math
import operator as operators
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from string import Formatter
from typing import Any, Final

from jinja2 import ChainableUndefined, Undefined
from jinja2.exceptions import SecurityError
from jinja2.filters import do_round
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.values import Value

from .handles import MISSING, Handle, attribute, bare, payload_of
from .shortcuts import FILTERS as CHEAP_FILTERS

OUTPUT_CHARS_MAX: Final = 16 * 1024 * 1024
ITEMS_MAX: Final = 10_000_000
# What a call of a macro, or of a loop by itself, is counted as: each may hold many others.
CALL_COST: Final = 64
# So many characters or items of a value that is made or searched are counted as one turn.
CHARS_PER_TURN: Final = 16
DIGITS_MAX: Final = 400
INDENT_MAX: Final = 64
_POWER_BITS_MAX: Final = 4096

_WIDTH = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")
_PADDING: Final = frozenset({"ljust", "rjust", "center", "zfill"})


class Budget:
    """Counts the turns of everything that repeats in one rendering."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ITEMS_MAX

    def spend(self, turns: int) -> None:
        self.left -= turns
        if self.left < 0:
            raise SecurityError(f"a template takes more than {ITEMS_MAX:,} turns")

    def count(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item


# Set for the length of one rendering.
budget: ContextVar[Budget] = ContextVar("treadle_playbook_budget")


def count(items: Iterable[Any]) -> Iterator[Any]:
    """The items of a `{% for %}`, each counted."""
    return budget.get().count(items)


def searched(items: Any) -> Any:
    """What stands right of an `in`, with the search in it counted."""
    found = bare(items)
    if isinstance(found, str | bytes | list | tuple) and (purse := budget.get(None)) is not None:
        purse.spend(1 + len(found) // CHARS_PER_TURN)
    return found


def check_size(size: int) -> None:
    if size > OUTPUT_CHARS_MAX:
        raise SecurityError(f"a template makes a value larger than {OUTPUT_CHARS_MAX:,} characters or items")


def _range(*bounds: int) -> range:
    made = range(*(int(bound) for bound in bounds))
    if len(made) > ITEMS_MAX:
        raise SecurityError(f"range() of {len(made):,} items; at most {ITEMS_MAX:,} are allowed")
    return made


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


class _Environment(ImmutableSandboxedEnvironment):
    # All of them, so that a handle counts as the result it stands for.
    intercepted_binops = frozenset({"*", "**", "%", "+", "-", "/", "//"})
    intercepted_unops = frozenset({"+", "-"})

    def getattr(self, obj: Any, attribute_name: str) -> Any:
        found = attribute(obj, attribute_name)
        if found is not MISSING:
            return found
        return super().getattr(bare(obj), attribute_name)

    def getitem(self, obj: Any, argument: Any) -> Any:
        argument = bare(argument)
        if isinstance(argument, str):
            found = attribute(obj, argument)
            if found is not MISSING:
                return found
        return super().getitem(bare(obj), argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return binary(operator, left, right)

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        return super().call_unop(context, operator, bare(arg))

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if __obj is count or __obj is searched:
            return __obj(*args)
        if not isinstance(__obj, Macro):
            args = tuple([bare(arg) for arg in args])
            kwargs = {key: bare(arg) for key, arg in kwargs.items()}
        # Jinja wraps `format`, so that it stays in the sandbox.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        purse = budget.get(None) or Budget()
        if isinstance(owner, str | bytes):
            purse.spend(1 + len(owner) // CHARS_PER_TURN)
            if isinstance(owner, str) and name in _TEXT_METHODS:
                return _TEXT_METHODS[name](owner, *args, **kwargs)
            _check_method(owner, name, args)
        elif isinstance(owner, int) and name == "to_bytes":
            raise SecurityError("numbers have no to_bytes here")
        else:
            purse.spend(1 if isinstance(owner, dict | list) else CALL_COST)
        return super().call(__context, __obj, *args, **kwargs)


def _check_method(owner: str | bytes, name: str, args: tuple[Any, ...]) -> None:
    """Text methods of which the result may be much longer than the text."""
    if name in _PADDING:
        check_size(max((arg for arg in args if isinstance(arg, int)), default=0))
    elif name == "expandtabs":
        check_size(len(owner) * max((arg for arg in args if isinstance(arg, int)), default=8))
    elif name in ("format", "format_map"):
        _check_fields(str(owner))
    elif name == "translate" or (name in ("replace", "join") and isinstance(owner, bytes)):
        raise SecurityError(f"{type(owner).__name__} has no {name} here; use the filter replace or join")


def _check_fields(text: str) -> None:
    """Widths in a text for `.format()` are written out, and no wider than a value may be."""
    for _, _, spec, _ in Formatter().parse(text):
        if spec and "{" in spec:
            raise SecurityError("a width in format() must be written out")
        _check_widths(re.findall(r"\d+", spec or ""))


def _check_widths(widths: Iterable[str]) -> None:
    check_size(sum(int(width[:18]) for width in widths if width))


_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "-": operators.sub,
    "/": operators.truediv,
    "//": operators.floordiv,
}


def binary(operator: str, left: Any, right: Any) -> Any:
    """The operators: those with which a short expression can make a huge value are checked."""
    left, right = bare(left), bare(right)
    if operator == "+":
        check_size(_size(left) + _size(right))
        return left + right
    if operator == "*":
        count = right if isinstance(right, int) else left if isinstance(left, int) else 0
        check_size(max(_size(left), _size(right)) * max(count, 0))
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
        raise SecurityError("the % operator is for numbers here; use the format filter")
    return left % right


def _check_bits(bits: int) -> None:
    if bits > _POWER_BITS_MAX:
        raise SecurityError(f"a number of more than {_POWER_BITS_MAX} bits")


def _environment() -> _Environment:
    env = _Environment(undefined=ChainableUndefined, keep_trailing_newline=True, cache_size=0)
    for name in ("random", "urlize", "pprint", "xmlattr"):
        del env.filters[name]
    del env.globals["lipsum"]
    env.globals["range"] = _range

    bounds: dict[str, Callable[..., int]] = {
        "center": lambda value, width=80: int(width),
        "batch": lambda value, linecount=1, *_, **__: int(linecount),
        "slice": lambda value, slices=1, *_, **__: int(slices),
        "indent": lambda text, width=4, *_, **__: (
            (len(width) if isinstance(width, str) else int(width)) * (str(text).count("\n") + 1)
        ),
        "wordwrap": lambda env, text, width=79, breaks=True, wrapstring=None, hyphens=True: (
            len(str(text)) * (1 + len(str(wrapstring or "")) // max(int(width), 1))
        ),
    }
    for name, grows in bounds.items():
        env.filters[name] = _bounded(env.filters[name], grows)
    env.filters.update(
        round=_round,
        replace=_replace,
        format=_format,
        join=_join,
        tojson=_to_json,
        to_json=_to_json,
        fromjson=_from_json,
        from_json=_from_json,
        b64encode=lambda value: b64encode(_bytes(value)).decode(),
        b64decode=lambda value: b64decode(_bytes(value)).decode(),
    )
    as_they_are = {*CHEAP_FILTERS, "attr"}
    counted = {name: _counted(made) for name, made in env.filters.items() if name not in as_they_are}
    env.filters.update(counted)
    env.tests["in"] = _in
    tests: dict[str, Any] = env.tests
    env.tests.update({name: _of_results(made) for name, made in tests.items() if "defined" not in name})
    return env


def _like(made: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Has Jinja pass it the same first argument (environment, context) as the filter it wraps."""
    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(original, mark):
            setattr(made, mark, getattr(original, mark))
    return made


def _bounded(original: Callable[..., Any], grows: Callable[..., int]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_size(grows(*args, **kwargs))
        return original(*args, **kwargs)

    return _like(checked, original)


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is given results, not handles, and whose work is counted: the items it is given, and the characters that it makes. Items
    that come one by one (from `map`, `select`, …) were counted where they came from."""
    at = 1 if hasattr(original, "jinja_pass_arg") else 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        purse = budget.get(None) or Budget()
        args = (*args[:at], *[bare(arg) for arg in args[at:]])
        purse.spend(1 + _turns(args[at] if len(args) > at else None))
        made = original(*args, **kwargs)
        if isinstance(made, str):
            purse.spend(len(made) // CHARS_PER_TURN)
        return made

    return _like(counted, original)


def _of_results(original: Callable[..., Any]) -> Callable[..., Any]:
    """A test that is given results, not handles."""
    at = 1 if hasattr(original, "jinja_pass_arg") else 0

    def tested(*args: Any) -> Any:
        return original(*args[:at], *[bare(arg) for arg in args[at:]])

    return _like(tested, original)


def _turns(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value) // CHARS_PER_TURN
    return len(value) if isinstance(value, Sized) else 0


def _in(value: Any, seq: Any) -> bool:
    return bare(value) in searched(seq)


def _bytes(value: Any) -> bytes:
    value = bare(value)
    return value if isinstance(value, bytes) else str(value).encode()


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(value), str(old), str(new)
    every = count is None or count < 0
    found = text.count(old) if every else min(text.count(old), count or 0)
    check_size(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, -1 if count is None else int(count))


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    text = str(value)
    widths = [width for found in _WIDTH.findall(text) for width in found]
    if "*" in widths:
        raise SecurityError("a width in format must be written out")
    _check_widths(widths)
    return text % tuple(plain(a) for a in args) if args else text % {k: plain(v) for k, v in kwargs.items()}


def _round(value: Any, precision: int = 0, method: str = "common") -> float:
    if abs(int(precision)) > DIGITS_MAX:
        raise SecurityError(f"round to {precision} digits; at most {DIGITS_MAX} are allowed")
    rounded: float = do_round(bare(value), precision, method)  # type: ignore[arg-type]
    return rounded


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    parts, size = [], 0
    for item in bare(value):
        text = str(ENV.getitem(item, attribute) if attribute is not None else item)
        size += len(text) + len(d)
        check_size(size)
        parts.append(text)
    return str(d).join(parts)


def _to_json(value: Any, indent: int | None = None) -> str:
    if indent is not None and int(indent) > INDENT_MAX:
        raise SecurityError(f"tojson with an indent of {indent}; at most {INDENT_MAX} are allowed")
    return json.dumps(plain(value, load=True), sort_keys=True, ensure_ascii=False, indent=indent)


def _from_json(value: Any) -> Any:
    return json.loads(bare(value))


def plain(value: Any, *, load: bool = False) -> Value:
    """A template's value as a canonical value. Handles become their result: with `load` the
    payload itself, without it the reference, so that large results travel by reference."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int or kind is float:
        return _number(value)
    if kind is dict:
        return {str(key): plain(item, load=load) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item, load=load) for item in value]
    if kind is Handle:
        return plain(payload_of(value.raw)) if load else value.raw
    if isinstance(value, Undefined):
        return None
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): plain(value[key], load=load) for key in value}
    if callable(value) or not isinstance(value, Iterable):
        raise TypeError(f"{kind.__name__} is not a value")
    return [plain(item, load=load) for item in value]


def _number(value: float) -> Value:
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number that can be kept")
    elif not INT_MIN <= value <= INT_MAX:
        raise ValueError("a whole number of more than 64 bits; make it a float or a text")
    return value


_SCALARS = frozenset({str, bool, type(None), bytes})
# Text methods that are done as the filters of their names are.
_TEXT_METHODS: Final[dict[str, Callable[..., str]]] = {
    "replace": _replace,
    "join": lambda separator, items: _join(items, separator),
}
ENV: Final = _environment()
