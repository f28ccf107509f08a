"""Templates: sandboxed Jinja2, compiled once, bounded, free of clock and chance.

A text that is one `{{ expression }}` keeps the expression's native type; any other template gives
text; a text without template marks never reaches Jinja. What is undefined is null as a whole
expression, empty inside text, false in a condition. Most expressions in playbooks are a handful of
names, comparisons and defaults: `shortcuts.py` turns those into closures (about 1 µs instead of 15).

`Field` is a template with an address, so that an error can say where it stands. Rendering is
bounded in output and work, because definitions come from people: see `_check_size` and `Budget`.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from jinja2 import ChainableUndefined, TemplateError, Undefined, nodes
from jinja2.environment import TemplateExpression
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from treadle.kernel.errors import BlobMissing, ExpressionError
from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.values import Value

from .handles import MISSING, Handle, Scope, attribute, bare, payload_of
from .shortcuts import Shortcut, shortcut, text_shortcut

OUTPUT_CHARS_MAX: Final = 16 * 1024 * 1024
ITEMS_MAX: Final = 10_000_000
TEMPLATE_CHARS_MAX: Final = 1024 * 1024
_POWER_BITS_MAX: Final = 4096

# A name a template reads, and the first key below it: ("ctx", "page"), ("workload", None).
Use = tuple[str, str | None]


class Budget:
    """Counts the turns of every loop in one rendering."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ITEMS_MAX

    def count(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.left -= 1
            if self.left < 0:
                raise SecurityError(f"a template loops more than {ITEMS_MAX:,} times")
            yield item


def _check_size(size: int) -> None:
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
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def getattr(self, obj: Any, attribute_name: str) -> Any:
        found = attribute(obj, attribute_name)
        if found is not MISSING:
            return found
        return super().getattr(bare(obj), attribute_name)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str):
            found = attribute(obj, argument)
            if found is not MISSING:
                return found
        return super().getitem(bare(obj), argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return binary(operator, left, right)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(getattr(__obj, "__self__", None), str):
            # Text methods that pad (`ljust`, `zfill`, `expandtabs`) take the length they make.
            for argument in args:
                if isinstance(argument, int):
                    _check_size(argument)
        return super().call(__context, __obj, *args, **kwargs)


def binary(operator: str, left: Any, right: Any) -> Any:
    """The operators with which a short expression can make a huge value."""
    left, right = bare(left), bare(right)
    if operator == "+":
        _check_size(_size(left) + _size(right))
        return left + right
    if operator == "*":
        count = right if isinstance(right, int) else left if isinstance(left, int) else 0
        _check_size(max(_size(left), _size(right)) * max(count, 0))
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        return left * right
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        return left**right
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

    def bounded(name: str, grows: Callable[..., int]) -> None:
        plain_filter = env.filters[name]

        def checked(*args: Any, **kwargs: Any) -> Any:
            _check_size(grows(*args, **kwargs))
            return plain_filter(*args, **kwargs)

        for mark in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(plain_filter, mark):
                setattr(checked, mark, getattr(plain_filter, mark))
        env.filters[name] = checked

    bounded("center", lambda value, width=80: int(width))
    bounded(
        "indent",
        lambda text, width=4, *_: (
            (len(width) if isinstance(width, str) else int(width)) * (str(text).count("\n") + 1)
        ),
    )
    env.filters.update(
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
    return env


def _bytes(value: Any) -> bytes:
    value = bare(value)
    return value if isinstance(value, bytes) else str(value).encode()


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(value), str(old), str(new)
    found = text.count(old) if count is None else min(text.count(old), count)
    _check_size(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, -1 if count is None else count)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    digits = "".join(c if c.isdigit() else " " for c in str(value)).split()
    _check_size(max((int(run[:18]) for run in digits), default=0))
    return (
        str(value) % tuple(plain(a) for a in args)
        if args
        else str(value) % {k: plain(v) for k, v in kwargs.items()}
    )


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    parts, size = [], 0
    for item in bare(value):
        text = str(ENV.getitem(item, attribute) if attribute is not None else item)
        size += len(text) + len(d)
        _check_size(size)
        parts.append(text)
    return str(d).join(parts)


def _to_json(value: Any, indent: int | None = None) -> str:
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
ENV: Final = _environment()


class Expression:
    """One compiled text. `native` tells whether it is a single expression, with a native value."""

    __slots__ = ("_fast", "_names", "_slow", "native", "path", "text", "uses")

    def __init__(self, text: str) -> None:
        if len(text) > TEMPLATE_CHARS_MAX:
            raise ExpressionError(f"a template longer than {TEMPLATE_CHARS_MAX:,} characters")
        self.text = text
        try:
            tree = ENV.parse(text.strip())
            expression = _single(tree)
            if expression is None:
                tree = ENV.parse(text)
            names = sorted(
                find_undeclared_variables(tree) - {"range", "dict", "namespace", "cycler", "joiner"}
            )
            self.uses = tuple(_uses(tree, frozenset(names)))
            self._names = tuple(names)
            self.native = expression is not None
            # ("workload", "items") for {{ workload.items }}; None for anything but a plain path.
            self.path = _path(expression)
            self._fast: Shortcut | None = None
            if expression is not None:
                self._fast = shortcut(expression, ENV, binary)
            elif len(tree.body) == 1 and isinstance(tree.body[0], nodes.Output):
                self._fast = text_shortcut(tree.body[0].nodes, ENV, binary)
            self._slow: Callable[[dict[str, Any]], Any] | None = None
            if self._fast is None:
                self._slow = _compiled(tree, expression)
        except TemplateSyntaxError as error:
            raise ExpressionError(f"not a valid template: {error.message}", code="TEMPLATE_SYNTAX") from error
        except (TemplateError, RecursionError) as error:
            raise ExpressionError(f"not a valid template: {error}", code="TEMPLATE_SYNTAX") from error

    def value(self, scope: Scope) -> Any:
        """Native value (handles and undefined included) or text."""
        if self._fast is not None:
            return self._fast(scope)
        variables = {}
        for name in self._names:
            found = scope.resolve(name)
            if found is not MISSING:
                variables[name] = found
        assert self._slow is not None
        return self._slow(variables)


def _single(tree: nodes.Template) -> nodes.Expr | None:
    if len(tree.body) == 1 and isinstance(tree.body[0], nodes.Output) and len(tree.body[0].nodes) == 1:
        only = tree.body[0].nodes[0]
        return None if isinstance(only, nodes.TemplateData) else only
    return None


def _path(node: nodes.Expr | None) -> tuple[str, ...] | None:
    if isinstance(node, nodes.Name):
        return (node.name,)
    if isinstance(node, nodes.Getattr) and (outer := _path(node.node)) is not None:
        return (*outer, node.attr)
    return None


def _compiled(tree: nodes.Template, expression: nodes.Expr | None) -> Callable[[dict[str, Any]], Any]:
    for loop in tree.find_all(nodes.For):
        counter = nodes.Name("__count", "load", lineno=loop.lineno)
        loop.iter = nodes.Call(counter, [loop.iter], [], None, None, lineno=loop.lineno)
        loop.iter.set_environment(ENV)
    if expression is not None:
        assign = nodes.Assign(nodes.Name("result", "store", lineno=1), expression, lineno=1)
        body = nodes.Template([assign], lineno=1)
        body.set_environment(ENV)
        evaluate = TemplateExpression(ENV.from_string(body), undefined_to_none=False)
        return lambda variables: evaluate(variables)
    template = ENV.from_string(tree)

    def render(variables: dict[str, Any]) -> str:
        parts, size = [], 0
        for part in template.generate({**variables, "__count": Budget().count}):
            size += len(part)
            _check_size(size)
            parts.append(part)
        return "".join(parts)

    return render


_METHODS: Final = frozenset(name for name in dir(dict) if not name.startswith("_"))


def _uses(node: nodes.Node, undeclared: frozenset[str]) -> Iterator[Use]:
    """Which names a tree reads, each with the first key below it where that is written out."""
    match node:
        case nodes.Name(name=name) if name in undeclared:
            yield (name, None)
        case nodes.Getattr(node=nodes.Name(name=name), attr=key) if name in undeclared:
            # `ctx.get('x')` and `workload.items()` may read anything.
            yield (name, None if key in _METHODS else key)
        case nodes.Getitem(node=nodes.Name(name=name), arg=nodes.Const(value=str() as key)) if (
            name in undeclared
        ):
            yield (name, key)
        case _:
            for child in node.iter_child_nodes():
                yield from _uses(child, undeclared)


@lru_cache(maxsize=16_384)
def expression(text: str) -> Expression:
    return Expression(text)


def is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value)


class Field:
    """One template at one place of a definition; `where` is what an error says."""

    __slots__ = ("expression", "where")

    def __init__(self, text: str, where: str) -> None:
        self.expression, self.where = expression(text), where

    @property
    def uses(self) -> tuple[Use, ...]:
        return self.expression.uses

    def raw(self, scope: Scope) -> Any:
        try:
            value = self.expression.value(scope)
            if isinstance(value, Undefined):
                return None
            return value
        except (ExpressionError, BlobMissing):
            raise
        except Exception as error:  # whatever a user's expression raises is an expression error
            raise self.failed(error) from error

    def value(self, scope: Scope, *, load: bool = False) -> Value:
        try:
            return plain(self.expression.value(scope), load=load)
        except (ExpressionError, BlobMissing):
            raise
        except Exception as error:
            raise self.failed(error) from error

    def truth(self, scope: Scope) -> bool:
        try:
            value = self.expression.value(scope)
            if self.expression.native:
                return bool(value)
        except (ExpressionError, BlobMissing):
            raise
        except Exception as error:
            raise self.failed(error) from error
        return str(value).strip().lower() not in ("", "false", "0", "none", "no")

    def failed(self, error: Exception) -> ExpressionError:
        text = self.expression.text.strip()
        shown = text if len(text) <= 200 else text[:200] + "…"
        # An exception may quote the value it was about, however large.
        reason = f"{error!s:.1000}"
        return ExpressionError(
            f"{self.where}: {shown}: {reason or type(error).__name__}",
            where=self.where,
            details={"expression": shown, "reason": reason, "type": type(error).__name__},
        )


class Tree:
    """A value with templates anywhere inside it. A constant tree is handed out as it is."""

    __slots__ = ("_render", "constant", "uses", "value_if_constant")

    def __init__(self, value: Value, where: str) -> None:
        uses: dict[Use, None] = {}
        self._render = _build(value, where, uses)
        self.constant = self._render is None
        self.uses = tuple(uses)
        self.value_if_constant = value

    def render(self, scope: Scope, *, load: bool = False) -> Value:
        return self.value_if_constant if self._render is None else self._render(scope, load)


def _build(value: Value, where: str, uses: dict[Use, None]) -> Callable[[Scope, bool], Value] | None:
    """A renderer for a value, or None where it holds no template."""
    if is_template(value):
        field = Field(value, where)
        uses.update(dict.fromkeys(field.uses))
        return lambda scope, load: field.value(scope, load=load)
    if isinstance(value, dict):
        parts = {key: _build(item, f"{where}.{key}", uses) for key, item in value.items()}
        if not any(parts.values()):
            return None
        fixed = {key: value[key] for key, part in parts.items() if part is None}
        moving = [(key, part) for key, part in parts.items() if part is not None]

        def mapping(scope: Scope, load: bool) -> Value:
            return {**fixed, **{key: part(scope, load) for key, part in moving}}

        return mapping
    if isinstance(value, list):
        items = [_build(item, f"{where}[{index}]", uses) for index, item in enumerate(value)]
        if not any(items):
            return None

        def listing(scope: Scope, load: bool) -> Value:
            return [
                raw if part is None else part(scope, load) for raw, part in zip(value, items, strict=True)
            ]

        return listing
    return None
