"""The environment that templates run in: Jinja's immutable sandbox, bounded in output and work (`bounds.py`).

Names come first: a dot asks for a key, never for a method of Python's. Methods are called, and only
those on a list (`METHODS`). What is written into text is a value, never an object of Python's (`texts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any, Final

from jinja2 import Undefined, pass_context
from jinja2.runtime import Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from .bounds import (
    CALL_COST,
    CHARS_PER_TURN,
    ITEMS_MAX,
    Misuse,
    SizeBudget,
    budget,
    check_size,
    count,
    passed,
    purse,
    searched,
    sliced,
)
from .edition import is_first
from .filters import check_widths, install, joined, replaced, words
from .handles import MISSING, attribute, bare
from .nothing import NotThere
from .operations import binary, compare, kind_of
from .texts import bounded, text_of

_PADDING: Final = frozenset({"ljust", "rjust", "center", "zfill"})
# The methods that values have in templates.
METHODS: Final[dict[type, frozenset[str]]] = {
    dict: words("get items keys values"),
    list: words("count index"),
    str: words(
        "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
        "lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
        "splitlines startswith strip swapcase title upper zfill"
    ),
    bytes: words("decode endswith hex startswith"),
    int: frozenset(["bit_length"]),
    float: frozenset(["is_integer"]),
}
# Objects of Jinja's own that a template works with; their attributes are theirs.
_INNER: Final = (LoopContext, Namespace, Cycler, Joiner, Macro, TemplateReference)


def _range(*bounds: int) -> range:
    made = range(*(int(bound) for bound in bounds))
    if len(made) > ITEMS_MAX:
        raise Misuse(f"range() of {len(made):,} items; at most {ITEMS_MAX:,} are allowed")
    return made


class _Environment(ImmutableSandboxedEnvironment):
    # All of them, so that a handle counts as the result it stands for.
    intercepted_binops = frozenset({"*", "**", "%", "+", "-", "/", "//"})
    intercepted_unops = frozenset({"+", "-"})

    def getattr(self, obj: object, attribute_name: str) -> Any:
        found = attribute(obj, attribute_name)
        if found is not MISSING:
            return found
        target = bare(obj)
        if is_first() or isinstance(target, _INNER) or attribute_name in _fields(target):
            return super().getattr(target, attribute_name)
        if isinstance(target, Undefined):
            return target
        return NotThere(obj=target, name=attribute_name)

    def getitem(self, obj: object, argument: object) -> Any:
        argument = bare(argument)
        if not isinstance(argument, str):
            return super().getitem(bare(obj), argument)
        found = attribute(obj, argument)
        if found is not MISSING:
            return found
        if is_first():
            return super().getitem(bare(obj), argument)
        return self.getattr(obj, argument)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> Any:
        return binary(operator, left, right)

    def call_unop(self, context: Context, operator: str, arg: object) -> Any:
        return super().call_unop(context, operator, bare(arg))

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if __obj in _OPERATIONS:
            return __obj(*args)
        if not isinstance(__obj, Macro):
            args = tuple([bare(arg) for arg in args])
            kwargs = {key: bare(arg) for key, arg in kwargs.items()}
        # Jinja wraps `format`, so that it stays in the sandbox.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        spending = budget.get(None) or SizeBudget()
        if isinstance(owner, str | bytes):
            spending.spend(1 + len(owner) // CHARS_PER_TURN)
            if isinstance(owner, str) and name in _TEXT_METHODS:
                return _TEXT_METHODS[name](owner, *args, **kwargs)
            _check_method(owner, name, args)
            if not is_first():
                args = tuple([bounded(arg, load=True) for arg in args])
                kwargs = {key: bounded(arg, load=True) for key, arg in kwargs.items()}
                return spending.made(super().call(__context, __obj, *args, **kwargs))
        elif isinstance(owner, int) and name == "to_bytes":
            raise Misuse("numbers have no to_bytes here")
        else:
            spending.spend(1 if isinstance(owner, dict | list) else CALL_COST)
            if isinstance(owner, list) and not is_first():
                spending.pay(owner)
        return super().call(__context, __obj, *args, **kwargs)

    # What the rewritten syntax tree of a template calls (`templates.py`); as attributes of the
    # environment they cannot be hidden by a variable.
    treadle_count = staticmethod(count)
    treadle_passed = staticmethod(passed)
    treadle_searched = staticmethod(searched)
    treadle_sliced = staticmethod(sliced)

    @staticmethod
    def treadle_method(obj: object, name: str) -> object:
        """`obj.name` where it is called."""
        if is_first():
            return ENV.getattr(obj, name)
        target = bare(obj)
        if isinstance(target, _INNER):
            return ENV.getattr(target, name)
        if isinstance(target, Undefined):
            return target
        for kind, names in METHODS.items():
            if isinstance(target, kind) and name in names:
                return ImmutableSandboxedEnvironment.getattr(ENV, target, name)
        raise Misuse(f"there is no method {name[:200]!r} of {kind_of(target)} here; see the filters")

    @staticmethod
    def treadle_compare(operator: str, left: object, right: object) -> object:
        return compare(operator, left, right)

    @staticmethod
    def treadle_concat(*parts: object) -> str:
        """`a ~ b ~ c`"""
        texts = [text_of(part) for part in parts]
        if is_first():
            return "".join(texts)
        check_size(sum(map(len, texts)))
        return purse().made("".join(texts))


_OPERATIONS: Final = frozenset(
    [
        count,
        passed,
        searched,
        sliced,
        _Environment.treadle_method,
        _Environment.treadle_compare,
        _Environment.treadle_concat,
    ]
)


def _fields(value: object) -> tuple[str, ...]:
    """The names in a pair of `groupby`."""
    return getattr(value, "_fields", ()) if isinstance(value, tuple) else ()


def _check_method(owner: str | bytes, name: str, args: tuple[object, ...]) -> None:
    """Text methods of which the result may be much longer than the text."""
    if name in _PADDING:
        check_size(max((arg for arg in args if isinstance(arg, int)), default=0))
    elif name == "expandtabs":
        check_size(len(owner) * max((arg for arg in args if isinstance(arg, int)), default=8))
    elif name in ("format", "format_map"):
        _check_fields(str(owner))
    elif name == "translate" or (name in ("replace", "join") and isinstance(owner, bytes)):
        raise Misuse(f"{type(owner).__name__} has no {name} here; use the filter replace or join")


def _check_fields(text: str) -> None:
    """Widths in a text for `.format()` are written out, and no wider than a value may be."""
    for _, _, spec, _ in Formatter().parse(text):
        if spec and "{" in spec:
            raise Misuse("a width in format() must be written out")
        check_widths(re.findall(r"\d+", spec or ""))


@pass_context
def _written(context: Context, value: object) -> str:
    """What stands between text. It asks for the context so that Jinja computes nothing beforehand."""
    return text_of(value)


def _environment() -> _Environment:
    env = _Environment(
        undefined=NotThere, keep_trailing_newline=True, cache_size=0, optimized=False, finalize=_written
    )
    del env.globals["lipsum"]
    env.globals["range"] = _range
    install(env)
    return env


# Text methods that are done as the filters of their names are.
_TEXT_METHODS: Final[dict[str, Callable[..., str]]] = {
    "replace": replaced,
    "join": lambda separator, items: joined(items, separator),
}
ENV: Final = _environment()
