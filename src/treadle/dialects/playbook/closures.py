"""What simple expressions become: closures over a scope, about 1 µs instead of the 15 of Jinja's code.

Two ways lead here and mean the same: Jinja's syntax tree (`shortcuts.py`), and the texts that are read without
Jinja (`short_forms.py`). So nothing here loads Jinja before something is met that only it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .bounds import CHARS_PER_TURN
from .edition import is_first
from .handles import MISSING, Handle, TemplateScope, attribute
from .operations import COMPARE, compare
from .texts import is_undefined

Shortcut = Callable[[TemplateScope], Any]

# What a template hands on as it is.
_PLAIN: Final = frozenset({str, int, float, bool})
# Names that a mapping answers to by itself: the first edition of the rules found those before its keys.
_OF_EVERY_DICT: Final = frozenset(dir(dict))


def constant(value: Any) -> Shortcut:
    return lambda scope: value


def named(name: str) -> Shortcut:
    def read(scope: TemplateScope) -> object:
        found = scope.resolve(name)
        return _not_there(name=name) if found is MISSING else found

    return read


def keyed(target: Shortcut, name: str, root: str | None) -> Shortcut:
    """`target.name`; `root` is the target's name where it is nothing but a name."""

    def read(scope: TemplateScope) -> object:
        value = target(scope)
        found = attribute(value, name)
        if found is not MISSING:
            return found
        if type(value) is dict and not (name in _OF_EVERY_DICT and is_first()):
            return _not_there(obj=value, name=name)
        return value if is_undefined(value) else _of_jinja(value, name)

    if root is None:
        return read

    def read_plain(scope: TemplateScope) -> object:
        """A text or a number in a mapping that has a name of its own, as most are (`workload.url`)."""
        value = scope.names.get(root)
        if type(value) is dict and type(found := value.get(name)) in _PLAIN:
            return found
        return read(scope)

    return read_plain


def chained(path: tuple[str, ...]) -> Shortcut:
    """`workload.page.size`"""
    root, *keys = path
    read = named(root)
    for number, key in enumerate(keys):
        read = keyed(read, key, None if number else root)
    return read


def compared(operator: str, left: Shortcut, right: Shortcut) -> Shortcut:
    if operator in ("in", "notin"):
        return lambda scope: compare(operator, left(scope), right(scope))
    apply = COMPARE[operator]

    def made(scope: TemplateScope) -> object:
        a, b = left(scope), right(scope)
        # What costs nothing is not counted.
        if type(a) is type(b) and (type(a) is int or (type(a) is str and len(a) < CHARS_PER_TURN)):
            return apply(a, b)
        return compare(operator, a, b)

    return made


def both(left: Shortcut, right: Shortcut) -> Shortcut:
    return lambda scope: left(scope) and right(scope)


def either(left: Shortcut, right: Shortcut) -> Shortcut:
    return lambda scope: left(scope) or right(scope)


def defaulted(path: tuple[str, ...], otherwise: Any) -> Shortcut:
    """`workload.page | default(1)`: a key that is not in its mapping is looked for no further."""
    read, (root, *keys) = chained(path), path

    def found_or(scope: TemplateScope) -> object:
        found = scope.resolve(root)
        for key in keys:
            if type(found) is not dict or (key in _OF_EVERY_DICT and is_first()):
                break
            found = attribute(found, key)
        else:
            return otherwise if found is MISSING else inner(found)
        if found is MISSING:
            return otherwise
        found = inner(read(scope))
        return otherwise if is_undefined(found) else found

    return found_or


def inner(value: object) -> object:
    return value.payload() if type(value) is Handle else value


def _not_there(*, name: str, obj: Any = MISSING) -> Any:
    from .nothing import NotThere  # it is a class of Jinja's, which takes 25 ms to load

    return NotThere(name=name) if obj is MISSING else NotThere(obj=obj, name=name)


def _of_jinja(value: Any, name: str) -> Any:
    from .environment import ENV  # what only some values have, and Jinja finds

    return ENV.getattr(value, name)
