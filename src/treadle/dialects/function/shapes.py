"""Typed values at the edges of a function: what annotations promise, the journal holds as plain values.

Everything goes through msgspec: dataclasses, structs, dates, decimals, UUIDs, enums, sets, and pydantic models
where they are installed. What comes out is always made anew, so that live and replayed code see the same: tuples
are lists, keys are in canonical order, sets are sorted.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from treadle.kernel.errors import InputInvalid, ValueRefused
from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.model import disarmed, may_look_like_ours
from treadle.kernel.values import Value, copied, to_value
from treadle.lang.handed import check_written

from .guard import unwatched

EMPTY = inspect.Parameter.empty
# Nobody's code is asked how to write or to read these.
_SIMPLE: Final[frozenset[type]] = frozenset({bool, int, float, str, bytes, type(None)})
_LOOSE: Final = (EMPTY, Any, object)


def plain(value: object) -> Value:
    """A value for the journal. What has no plain form is refused with its path."""
    if type(value) in _SIMPLE:
        return unwatched(kept, value)
    check_written(value)
    try:
        made = msgspec.to_builtins(
            value, builtin_types=(bytes,), order="deterministic", enc_hook=_encoded, str_keys=True
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueRefused(f"{type(value).__name__} cannot be stored: {_said(error)}") from error
    return unwatched(kept, made)


def kept(made: object) -> Value:
    """A value for the journal of what is plain already."""
    if made is None or type(made) is bool or (type(made) is int and INT_MIN <= made <= INT_MAX):
        return made  # as it would be read
    value, body = copied(made)
    return disarmed(value) if may_look_like_ours(body) else value


def are_simple(values: Iterable[object]) -> bool:
    """Whether values are written without asking anybody's code."""
    return _SIMPLE.issuperset(map(type, values))


def reads_simply(annotation: Any) -> bool:
    """Whether a stored value is read as this without asking anybody's code."""
    return annotation in _LOOSE or (isinstance(annotation, type) and annotation in _SIMPLE)


def as_is(annotation: Any) -> frozenset[type]:
    """The types of stored values that are handed on as they are: nobody can change them, or has another word for them."""
    if annotation in _LOOSE:
        return _SIMPLE
    return frozenset({annotation}) if isinstance(annotation, type) and annotation in _SIMPLE else frozenset()


def typed(value: Value, annotation: Any) -> Any:
    """A fresh copy of a stored value, as its annotation promises it."""
    if (kind := type(value)) in _SIMPLE and (annotation is kind or annotation in _LOOSE):
        return value  # as `as_is` says
    fresh = unwatched(to_value, value)
    if annotation in _LOOSE:
        return fresh
    if annotation is None:
        annotation = type(None)
    try:
        return msgspec.convert(
            fresh, annotation, builtin_types=(bytes,), dec_hook=_decoded, strict=True, str_keys=True
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InputInvalid(
            f"{_name(annotation)} expected: {_said(error)}", details={"errors": [{"message": _said(error)}]}
        ) from error


class CheckedState(dict[str, Any]):
    """`ctx.state`. What cannot be stored is refused where it is put in, at the author's line."""

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"ctx.state has names for keys, not {name!r}")
        try:
            plain(value)
        except ValueRefused as error:
            raise TypeError(f"ctx.state[{name!r}]: {error.message}") from None
        super().__setitem__(name, value)

    def update(self, *given: Any, **more: Any) -> None:
        for name, value in dict(*given, **more).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: Any) -> CheckedState:  # type: ignore[override,misc] # as narrow as a dict is wide
        self.update(other)
        return self


def problem_of(annotation: Any) -> str | None:
    """Why a type cannot be stored; None if it can."""
    if annotation is None or reads_simply(annotation) or _is_model(annotation):
        return None
    try:
        msgspec.json.schema(annotation, schema_hook=lambda kind: {} if _is_model(kind) else _unknown(kind))
    except (TypeError, NotImplementedError) as error:
        return f"{_name(annotation)} cannot be stored: {_said(error)}"
    except RecursionError:
        return None
    return None


def schema_of(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of a type, for whoever fills in a form."""
    if _is_model(annotation):
        return dict(annotation.model_json_schema())
    return msgspec.json.schema(annotation)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, with the names in them looked up. Raises NameError if one is not known."""
    names = {}
    if function.__closure__:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:
                continue
    return typing.get_type_hints(function, localns=names, include_extras=True)


def _is_model(kind: Any) -> bool:
    """Whether a type is a pydantic model; the package need not be installed."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _encoded(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no plain value")


def _decoded(kind: Any, value: Any) -> Any:
    if _is_model(kind):
        return kind.model_validate(value)
    raise TypeError(f"{_name(kind)} cannot be made from a stored value")


def _unknown(kind: Any) -> dict[str, Any]:
    raise TypeError(f"{_name(kind)} is not a type that has a plain form")


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _said(error: Exception) -> str:
    """The words of a validation; those of other people's validators may hold anything, so only a line of them."""
    return str(error).split("\n", 1)[0][:300]
