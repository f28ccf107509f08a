"""The filters and tests of templates: Jinja's, bounded and counted, given results instead of handles."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Final, ParamSpec, TypeVar

from jinja2 import Environment, Undefined, pass_environment
from jinja2.filters import do_round, make_attrgetter

from treadle.kernel.model import disarmed
from treadle.kernel.values import Value

from .bounds import (
    CHARS_PER_TURN,
    EACH_COST,
    ITEMS_PER_TURN,
    Misuse,
    SizeBudget,
    budget,
    check_size,
    searched,
)
from .edition import is_first
from .handles import bare
from .operations import binary
from .shortcuts import FILTERS as CHEAP_FILTERS
from .texts import bounded, plain, text_of

P = ParamSpec("P")
T = TypeVar("T")

DIGITS_MAX: Final = 400
INDENT_MAX: Final = 64

_WIDTH = r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def install(env: Environment) -> None:
    """Puts our filters and tests in the place of Jinja's."""
    for name in ("random", "urlize", "pprint", "xmlattr"):
        del env.filters[name]

    bounds: dict[str, Callable[..., int]] = {
        "center": lambda value, width=80: int(width),
        "batch": lambda value, linecount=1, *_, **__: int(linecount),
        "slice": lambda value, slices=1, *_, **__: int(slices),
        "indent": lambda text, width=4, *_, **__: (
            (len(width) if isinstance(width, str) else int(width)) * (text_of(text).count("\n") + 1)
        ),
        "wordwrap": lambda env, text, width=79, breaks=True, wrapstring=None, hyphens=True: (
            len(text_of(text)) * (1 + len(str(wrapstring or "")) // max(int(width), 1))
        ),
    }
    for name, grows in bounds.items():
        env.filters[name] = _bounded(env.filters[name], grows)
    env.filters.update(
        round=_round,
        replace=replaced,
        format=_format,
        join=_join,
        tojson=_to_json,
        to_json=_to_json,
        fromjson=_from_json,
        from_json=_from_json,
        b64encode=lambda value: b64encode(_bytes(value)).decode(),
        b64decode=lambda value: b64decode(_bytes(value)).decode(),
        sum=_sum(env.filters["sum"]),
        attr=_attr(env.filters["attr"]),
    )
    as_they_are = {*CHEAP_FILTERS, "attr"}
    counted = {name: _counted(name, made) for name, made in env.filters.items() if name not in as_they_are}
    env.filters.update(counted)
    tests: dict[str, Any] = env.tests
    env.tests.update({"in": _in, "sameas": _same(tests["sameas"])})
    env.tests.update({name: _of_results(made) for name, made in tests.items() if "defined" not in name})


def _like(made: Callable[P, T], original: Callable[..., object]) -> Callable[P, T]:
    """Has Jinja pass it the same first argument (environment, context) as the filter it wraps."""
    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(original, mark):
            setattr(made, mark, getattr(original, mark))
    return made


def _bounded(original: Callable[P, T], grows: Callable[..., int]) -> Callable[P, T]:
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check_size(grows(*args, **kwargs))
        return original(*args, **kwargs)

    return _like(checked, original)


# Filters that write what they are given as text.
_OF_TEXT: Final = words(
    "string upper lower capitalize title trim center indent wordwrap truncate striptags escape e forceescape safe "
    "wordcount replace format b64encode b64decode urlencode"
)
# Filters that call another one, or a test, for each item.
_EACH: Final = words("map select reject selectattr rejectattr")
# Filters that compare what they are given, item with item.
_COMPARING: Final = words("sort dictsort groupby unique min max")


def _counted(name: str, original: Callable[..., T]) -> Callable[..., T]:
    """A filter that is given results, not handles, and whose work is counted: the items it is given, also those
    that come one by one (from `map`, `select`, …), and the characters that it makes."""
    at = 1 if hasattr(original, "jinja_pass_arg") else 0
    of_text, comparing, weight = name in _OF_TEXT, name in _COMPARING, EACH_COST if name in _EACH else 1

    def counted(*args: object, **kwargs: object) -> T:
        purse = budget.get(None) or SizeBudget()
        args = (*args[:at], *[bare(arg) for arg in args[at:]])
        if not is_first():
            if of_text:
                args = (*args[:at], *[_written(arg) for arg in args[at:]])
                kwargs = {key: _written(arg) for key, arg in kwargs.items()}
            elif comparing and len(args) > at and isinstance(given := args[at], Sized):
                # Each item is compared about as often as halving takes to find its place; texts mostly
                # differ early.
                items, chars = purse.extent.of(given)
                purse.spend(items * len(given).bit_length() // ITEMS_PER_TURN + chars // CHARS_PER_TURN)
        purse.spend(1 + _turns(args[at] if len(args) > at else None))
        if len(args) > at and not is_first():
            args = (*args[:at], _each(purse, args[at], weight), *args[at + 1 :])
        made = original(*args, **kwargs)
        if isinstance(made, str):
            purse.spend(len(made) // CHARS_PER_TURN)
            if not is_first():
                check_size(len(made))
        return made

    return _like(counted, original)


def _each(purse: SizeBudget, given: object, weight: int) -> object:
    """What a filter is given, with what it does for each item of it counted. Items that are there at once were
    counted once already."""
    if isinstance(given, Iterator):
        return purse.count(given, weight)
    if isinstance(given, Sized) and not isinstance(given, str | bytes):
        purse.spend(len(given) * (weight - 1))
    return given


def _written(arg: object) -> object:
    """An argument of a filter that writes text: what is no text yet is a value at least."""
    if isinstance(arg, str | int | float | Undefined | None):
        return arg
    if isinstance(arg, dict | list | tuple):
        return bounded(arg, load=True)
    return plain(arg, load=True)


def _of_results(original: Callable[..., T]) -> Callable[..., T]:
    """A test that is given results, not handles."""
    at = 1 if hasattr(original, "jinja_pass_arg") else 0

    def tested(*args: object) -> T:
        given = [bare(arg) for arg in args[at:]]
        if len(given) > 1 and (purse := budget.get(None)) is not None and not is_first():
            purse.spend(min(purse.extent.turns(arg) for arg in given[:2]))
        return original(*args[:at], *given)

    return _like(tested, original)


def _same(original: Callable[..., object]) -> Callable[..., bool]:
    """`is sameas`: of the same kind and equal. Identity is nothing that a value has."""

    def same(value: object, other: object) -> bool:
        return bool(original(value, other)) if is_first() else type(value) is type(other) and value == other

    return same


def _attr(original: Callable[..., object]) -> Callable[..., object]:
    """`| attr('x')` is `.x`."""

    @pass_environment
    def attr(env: Environment, obj: object, name: str) -> object:
        return original(env, obj, name) if is_first() else env.getattr(obj, str(name))

    return attr


def _sum(original: Callable[..., object]) -> Callable[..., object]:
    @pass_environment
    def summed(
        env: Environment, items: Iterable[object], attribute: str | int | None = None, start: object = 0
    ) -> object:
        if is_first():
            return original(env, items, attribute, start)
        of = make_attrgetter(env, attribute) if attribute is not None else None
        total = start
        for item in items:
            total = binary("+", total, item if of is None else of(item))
        return total

    return summed


def _turns(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value) // CHARS_PER_TURN
    return len(value) if isinstance(value, Sized) else 0


def _in(value: object, seq: object) -> bool:
    return bare(value) in searched(seq)


def _bytes(value: object) -> bytes:
    value = bare(value)
    return value if isinstance(value, bytes) else text_of(value).encode()


def replaced(value: object, old: str, new: str, count: int | None = None) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    every = count is None or count < 0
    found = text.count(old) if every else min(text.count(old), count or 0)
    check_size(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, -1 if count is None else int(count))


def _format(value: object, *args: object, **kwargs: object) -> str:
    text = text_of(value)
    widths = [width for found in re.findall(_WIDTH, text) for width in found]
    if "*" in widths:
        raise Misuse("a width in format must be written out")
    check_widths(widths)
    return text % tuple(plain(a) for a in args) if args else text % {k: plain(v) for k, v in kwargs.items()}


def _round(value: object, precision: int = 0, method: str = "common") -> float:
    if abs(int(precision)) > DIGITS_MAX:
        raise Misuse(f"round to {precision} digits; at most {DIGITS_MAX} are allowed")
    rounded: float = do_round(bare(value), precision, method)  # type: ignore[arg-type]  # Jinja names its methods by a literal type
    return rounded


@pass_environment
def _join(env: Environment, value: Iterable[object], d: str = "", attribute: str | int | None = None) -> str:
    return joined(value, d, make_attrgetter(env, attribute) if attribute is not None else None)


def joined(value: Iterable[object], d: object = "", of: Callable[[object], object] | None = None) -> str:
    parts, size, between = [], 0, text_of(d)
    for item in bare(value):
        text = text_of(item if of is None else of(item))
        size += len(text) + len(between)
        check_size(size)
        parts.append(text)
    return between.join(parts)


def _to_json(value: object, indent: int | None = None) -> str:
    if indent is not None and int(indent) > INDENT_MAX:
        raise Misuse(f"tojson with an indent of {indent}; at most {INDENT_MAX} are allowed")
    return json.dumps(bounded(value, load=True), sort_keys=True, ensure_ascii=False, indent=indent)


def _from_json(value: object) -> Value:
    # Text is data, whatever it looks like.
    return json.loads(bare(value)) if is_first() else disarmed(plain(json.loads(bare(value))))


def check_widths(widths: Iterable[str]) -> None:
    check_size(sum(int(width[:18]) for width in widths if width))
