"""The keywords of JSON Schema that say something, in words and by rules of ours.

What does not fit a schema is told to models and recorded with a run's verdicts, so it must be the same
under every version of `jsonschema` that may be installed, today and when the run is replayed. The words
are those that journals of 0.1.0 hold. Keywords that only lead to other schemas stay the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from fractions import Fraction
from itertools import combinations
from typing import Any, Final

from jsonschema import ValidationError

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


def no_value_fits(value: Any) -> str:
    """What the schema `false` says."""
    return f"False schema does not allow {value!r}"


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON: 1 and 1.0 are one number, true is none."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _type(validator: Any, types: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    wanted = [types] if isinstance(types, str) else types
    if not any(validator.is_type(value, kind) for kind in wanted):
        yield ValidationError(f"{value!r} is not of type {', '.join(map(repr, wanted))}")


def _enum(_validator: Any, choices: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if not any(equal(choice, value) for choice in choices):
        yield ValidationError(f"{value!r} is not one of {choices!r}")


def _const(_validator: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if not equal(value, wanted):
        yield ValidationError(f"{wanted!r} was expected")


def _required(_validator: Any, names: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for name in names:
            if name not in value:
                yield ValidationError(f"{name!r} is a required property")


def _dependent_required(_validator: Any, rules: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for name, needed in rules.items():
            for each in needed if name in value else ():
                if each not in value:
                    yield ValidationError(f"{each!r} is a dependency of {name!r}")


def _items(validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(value, list):
        return
    first = len(schema.get("prefixItems", ()))
    if inner is not False:
        for index in range(first, len(value)):
            yield from validator.descend(value[index], inner, path=index)
    elif extra := value[first:]:
        shown, noun = extra if len(extra) > 1 else extra[0], "item" if first == 1 else "items"
        yield ValidationError(f"Expected at most {first} {noun} but found {len(extra)} extra: {shown!r}")


def _contains(validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(value, list):
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
    found = 0
    for item in value:
        found += _fits(validator, item, inner)
        if found > most:
            text = f"Too many items match the given schema (expected at most {most})"
            yield ValidationError(text, validator="maxContains", validator_value=most)
            return
    if found < least and not found:
        yield ValidationError(f"{value!r} does not contain items matching the given schema")
    elif found < least:
        text = f"Too few items match the given schema (expected at least {least} but only {found} matched)"
        yield ValidationError(text, validator="minContains", validator_value=least)


def _multiple_of(validator: Any, of: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "number") and not _is_multiple(value, of):
        yield ValidationError(f"{value!r} is not a multiple of {of}")


def _is_multiple(value: float, of: Any) -> bool:
    """By the quotient as floats have it where `of` is one, so that 0.3 is a multiple of 0.1 as far as
    people can tell; exactly where there is no such quotient."""
    if not isinstance(of, float):
        return not value % of
    try:
        return bool((value / of).is_integer())
    except OverflowError:
        return (Fraction(value) / Fraction(of)).denominator == 1


def _unique_items(_validator: Any, asked: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if asked and isinstance(value, list) and _repeats(value):
        yield ValidationError(f"{value!r} has non-unique elements")


def _repeats(items: list[Any]) -> bool:
    """Scalars, which most long lists are of, are told apart without comparing each with all others."""
    scalars = [(isinstance(item, bool), item) for item in items if not isinstance(item, list | dict)]
    if len(set(scalars)) < len(scalars):
        return True
    others = [item for item in items if isinstance(item, list | dict)]
    return any(equal(one, other) for one, other in combinations(others, 2))


def _any_of(validator: Any, inners: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    found = []
    for index, inner in enumerate(inners):
        errors = list(validator.descend(value, inner, schema_path=index))
        if not errors:
            return
        found += errors
    yield ValidationError(f"{value!r} is not valid under any of the given schemas", context=found)


def _one_of(validator: Any, inners: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    fitting = [inner for inner in inners if _fits(validator, value, inner)]
    if not fitting:
        yield from _any_of(validator, inners, value, schema)
    elif len(fitting) > 1:
        shown = ", ".join(map(repr, [*fitting[1:], fitting[0]]))
        yield ValidationError(f"{value!r} is valid under each of {shown}")


def _not(validator: Any, inner: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if _fits(validator, value, inner):
        yield ValidationError(f"{value!r} should not be valid under {inner!r}")


def _fits(validator: Any, value: Any, inner: Any) -> bool:
    return next(validator.descend(value, inner), None) is None


def _bound(outside: Callable[[Any, Any], bool], words: str) -> Keyword:
    def check(validator: Any, bound: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
        if validator.is_type(value, "number") and outside(value, bound):
            yield ValidationError(f"{value!r} is {words} of {bound!r}")

    return check


def _at_least(kind: type[Sized], words: str) -> Keyword:
    def check(_validator: Any, least: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, kind) and len(value) < least:
            yield ValidationError(f"{value!r} {'should be non-empty' if least == 1 else words}")

    return check


def _at_most(kind: type[Sized], words: str) -> Keyword:
    def check(_validator: Any, most: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, kind) and len(value) > most:
            yield ValidationError(f"{value!r} {'is expected to be empty' if most == 0 else words}")

    return check


KEYWORDS: Final[dict[str, Keyword]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "dependentRequired": _dependent_required,
    "items": _items,
    "contains": _contains,
    "multipleOf": _multiple_of,
    "uniqueItems": _unique_items,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "minimum": _bound(lambda value, bound: value < bound, "less than the minimum"),
    "maximum": _bound(lambda value, bound: value > bound, "greater than the maximum"),
    "exclusiveMinimum": _bound(
        lambda value, bound: value <= bound, "less than or equal to the minimum"
    ),
    "exclusiveMaximum": _bound(
        lambda value, bound: value >= bound, "greater than or equal to the maximum"
    ),
    "minItems": _at_least(list, "is too short"),
    "maxItems": _at_most(list, "is too long"),
    "minLength": _at_least(str, "is too short"),
    "maxLength": _at_most(str, "is too long"),
    "minProperties": _at_least(dict, "does not have enough properties"),
    "maxProperties": _at_most(dict, "has too many properties"),
}  # fmt: skip
