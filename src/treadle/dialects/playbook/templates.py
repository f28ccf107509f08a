"""Templates: sandboxed Jinja2, compiled once, bounded, free of clock and chance.

A text that is one `{{ expression }}` keeps the expression's native type; any other template gives
text; a text without template marks never reaches Jinja. What is undefined is null as a whole
expression, empty inside text, false in a condition. Most expressions in playbooks are a handful of
names, comparisons and defaults: `closures.py` has them, read without Jinja where they are written plainly
(`short_forms.py`), else from its syntax tree (`shortcuts.py`). Jinja is loaded with the first text that needs it.

`PlacedTemplate` is a template with an address, so that an error can say where it stands. Rendering is
bounded in output and work, because definitions come from people: see `bounds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import BlobMissing, ExpressionError
from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.values import Value

from .absent import Absent, Wanted
from .bounds import SizeBudget, Tally, budget, purse, share, together
from .closures import Shortcut
from .handles import MISSING, TemplateScope
from .short_forms import Use, read
from .texts import bounded, plain, truth_of

if TYPE_CHECKING:
    from .nothing import NotThere

TEMPLATE_CHARS_MAX: Final = 1024 * 1024


class Expression:
    """One compiled text. `native` tells whether it is a single expression, with a native value."""

    __slots__ = ("_names", "_slow", "chains", "fast", "names_only", "native", "path", "text", "uses")

    def __init__(self, text: str, *, shortcuts: bool = True) -> None:
        if len(text) > TEMPLATE_CHARS_MAX:
            raise ExpressionError(f"a template longer than {TEMPLATE_CHARS_MAX:,} characters")
        self.text = text
        found = read(text) if shortcuts else None
        if found is None:
            from .parsing import parsed  # it loads Jinja, which takes 25 ms

            found = parsed(text, shortcuts=shortcuts)
        self.native, self.path, self.names_only = found.native, found.path, found.names_only
        self.uses, self.chains, self.fast = found.uses, found.chains, found.fast
        self._names, self._slow = found.names, found.slow

    def value(self, scope: TemplateScope) -> object:
        """Native value (handles and undefined included) or text."""
        if self.fast is not None:
            return self.fast(scope)
        variables = {}
        for name in self._names:
            found = scope.resolve(name)
            if found is not MISSING:
                variables[name] = found
        assert self._slow is not None
        token = budget.set(purse())
        try:
            found = self._slow(variables)
            return list(found) if isinstance(found, Iterator) else found
        finally:
            budget.reset(token)

    def measured(self, scope: TemplateScope, *, load: bool) -> Value:
        """What an expression puts together, measured; what of it is lazy is made within its budget."""
        token = budget.set(SizeBudget())
        try:
            made = bounded((self.fast or self.value)(scope), load=load)
            if isinstance(made, str | bytes):
                share(len(made))
            return made
        finally:
            budget.reset(token)


def without_value(text: str) -> str | None:
    """What a valid template would write that has no value, as far as its text alone shows it."""
    if read(text) is not None:
        return None
    from .parsing import without_value

    return without_value(text)


@lru_cache(maxsize=16_384)
def expression(text: str) -> Expression:
    return Expression(text)


def is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value)


class PlacedTemplate:
    """One template at one place of a definition; `where` is what an error says."""

    __slots__ = ("expression", "where")

    def __init__(self, text: str, where: str) -> None:
        self.expression, self.where = expression(text), where

    @property
    def uses(self) -> tuple[Use, ...]:
        return self.expression.uses

    def raw(self, scope: TemplateScope) -> object:
        """The value with handles, ranges and undefined names in it."""
        try:
            return self.expression.value(scope)
        except (ExpressionError, BlobMissing):
            raise
        except Exception as error:  # whatever a user's expression raises is an expression error
            raise self.failed(error) from error

    def value(self, scope: TemplateScope, load: bool = False) -> Value:
        expression, tally = self.expression, together.get(None)
        if tally is not None and tally.asking is not None:
            tally.asking.chains = expression.chains
        try:
            if expression.path is not None:
                # What a name leads to is handed on as it is.
                return plain((expression.fast or expression.value)(scope), load=load)
            return expression.measured(scope, load=load)
        except (ExpressionError, BlobMissing):
            raise
        except Absent as error:
            remedy = "; give it a value, or say what it is otherwise: | default(…)"
            raise self._undefined(error.name, remedy) from error
        except Exception as error:
            raise self.failed(error) from error

    def truth(self, scope: TemplateScope) -> bool:
        try:
            expression = self.expression
            value = (expression.fast or expression.value)(scope)
            if value is True or value is False:
                return value
            if expression.native:
                return truth_of(value)
        except (ExpressionError, BlobMissing):
            raise
        except Exception as error:
            raise self.failed(error) from error
        return str(value).strip().lower() not in ("", "false", "0", "none", "no")

    def missing(self, name: NotThere) -> ExpressionError:
        """The error of a template that steers a run and is undefined: a run must not go on as if it were not
        there."""
        return self._undefined(name.name)

    def _undefined(self, name: str, remedy: str = "") -> ExpressionError:
        from jinja2 import UndefinedError

        return self.failed(UndefinedError(f"{name[:200]!r} is undefined{remedy}"))

    def failed(self, error: Exception) -> ExpressionError:
        from .telling import told  # it knows Jinja's errors

        text = self.expression.text.strip()
        shown = text if len(text) <= 200 else text[:200] + "…"
        reason, kind = told(error)
        return ExpressionError(
            f"{self.where}: {shown}: {reason}",
            where=self.where,
            details={"expression": shown, "reason": reason, "type": kind},
        )


# Texts above this are rendered: all that one place makes together is counted.
_SHORT_CHARS_MAX: Final = 256
# What one key of arguments at hand takes at most, written out, besides its name.
_SHORT_BYTES_MAX: Final = 4 * _SHORT_CHARS_MAX + 16
_FLAT: Final = frozenset({int, float, bool, type(None)})


class Tree:
    """A value with templates anywhere inside it. A constant tree is handed out as it is."""

    __slots__ = ("_named", "_render", "at_hand_bytes_max", "constant", "uses", "value_if_constant")

    def __init__(self, value: Value, where: str) -> None:
        uses: dict[Use, None] = {}
        self._render = _build(value, where, uses)
        self.constant = self._render is None
        self.uses = tuple(uses)
        self.value_if_constant = value
        self._named = None if self.constant else _named(value)
        # What arguments at hand take at most, written out; None where there can be none.
        self.at_hand_bytes_max: int | None = None
        if self._named is not None and all(
            type(item) in _FLAT or (type(item) is str and len(item) <= _SHORT_CHARS_MAX)
            for item in value.values()
        ):
            self.at_hand_bytes_max = 9 + sum(4 * len(key) + _SHORT_BYTES_MAX for key in value)

    def render(self, scope: TemplateScope, *, load: bool = False) -> Value:
        if self._render is None:
            return self.value_if_constant
        token = together.set(Tally())
        try:
            return self._render(scope, load)
        finally:
            together.reset(token)

    def arguments(self, scope: TemplateScope, *, load: bool = False) -> Value:
        """The same of what a step or a task is given: a name in it that is not there is an error."""
        if self._render is None:
            return self.value_if_constant
        if self._named is not None and (made := self.at_hand(scope)) is not None:
            return made
        token = together.set(Tally(Wanted(scope)))
        try:
            return self._render(scope, load)
        finally:
            together.reset(token)

    def at_hand(self, scope: TemplateScope) -> dict[str, Value] | None:
        """The arguments, where each template only names a number, a truth or a short text: keys stand as in the
        definition. None where they have to be rendered, whatever the reason."""
        if self._named is None:
            return None
        out: dict[str, Value] = self.value_if_constant.copy()
        try:
            for key, read in self._named:
                value = read(scope)
                kind = type(value)
                if not (
                    (kind is int and INT_MIN <= value <= INT_MAX)
                    or kind is bool
                    or (kind is str and len(value) <= _SHORT_CHARS_MAX)
                ):
                    return None
                out[key] = value
        except Exception:  # it is rendered, and whoever does that says what is wrong
            return None
        return out


def _named(value: Value) -> list[tuple[str, Shortcut]] | None:
    """Who reads the templates of a mapping that only name things; None where others are among them."""
    if not isinstance(value, dict):
        return None
    found: list[tuple[str, Shortcut]] = []
    for key, item in value.items():
        if not is_template(item):
            if _holds_template(item):
                return None
            continue
        read = expression(item)
        if read.fast is None or not read.names_only:
            return None
        found.append((key, read.fast))
    return found


def _holds_template(value: Value) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_template, value.values() if isinstance(value, dict) else value))
    return is_template(value)


def _build(value: Value, where: str, uses: dict[Use, None]) -> Callable[[TemplateScope, bool], Value] | None:
    """A renderer for a value, or None where it holds no template."""
    if is_template(value):
        field = PlacedTemplate(value, where)
        uses.update(dict.fromkeys(field.uses))
        return field.value
    if isinstance(value, dict):
        parts = {key: _build(item, f"{where}.{key}", uses) for key, item in value.items()}
        if not any(parts.values()):
            return None
        fixed = {key: value[key] for key, part in parts.items() if part is None}
        moving = [(key, part) for key, part in parts.items() if part is not None]

        def mapping(scope: TemplateScope, load: bool) -> Value:
            out = {**fixed}
            for key, part in moving:
                out[key] = part(scope, load)
            return out

        return mapping
    if isinstance(value, list):
        items = [_build(item, f"{where}[{index}]", uses) for index, item in enumerate(value)]
        if not any(items):
            return None

        def listing(scope: TemplateScope, load: bool) -> Value:
            return [
                raw if part is None else part(scope, load) for raw, part in zip(value, items, strict=True)
            ]

        return listing
    return None
