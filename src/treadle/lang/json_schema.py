"""JSON Schemas that authors and servers write: applying one reaches nothing outside it, and ends.

`jsonschema` on its own fetches what a `$ref` names, from any host, whenever a value is checked: on
the core's thread, when a run is replayed, and offline. It matches patterns with `re`, which may take for
ever, changes to another draft where a part of a schema asks for it, and tells of additional properties in
an order that differs between processes. Here a schema knows itself and the published meta-schemas; its
patterns are bounded; it is read as draft 2020-12 throughout. What is wrong with one is found before a run
(`schema_problems`).

What does not fit a schema is told to models and recorded with a run's verdicts, so it must be the same
under every version of `jsonschema` that may be installed, today and when the run is replayed. So the keywords
that say something are ours, by rules of ours and in the words that journals of 0.1.0 hold. Those that only lead
to other schemas stay the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextvars import ContextVar
from fractions import Fraction
from itertools import combinations
from typing import Any, Final

import attrs
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # the package has no types
from referencing.exceptions import Unresolvable

from .patterns import PatternBudget, PatternError, TooMuchWork, compile_pattern

# What `Schema.iter_errors` raises for a schema that cannot be applied to a value.
CANNOT_APPLY: Final = (Unresolvable, TooMuchWork, PatternError, RecursionError)

# Keywords whose schemas are applied to the very value that the schema itself is applied to.
LISTS: Final = ("allOf", "anyOf", "oneOf")
SINGLE: Final = ("not", "if", "then", "else")
REFERENCES: Final = ("$ref", "$dynamicRef")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]

# What the patterns of the check under way may cost yet; the first of them asks for it.
_budget: ContextVar[PatternBudget | None] = ContextVar("_budget", default=None)


def why_not_applied(error: Exception) -> str:
    """Why a schema could not be applied, in words of ours; those about patterns are."""
    if isinstance(error, TooMuchWork | PatternError):
        return str(error)
    if isinstance(error, Unresolvable):
        return "it refers to another document, or to what is not in it"
    return "it goes too deep, or asks of a value what that does not have"


class Schema:
    """A schema that values are checked against."""

    def __init__(self, schema: Any) -> None:
        self._validator = _Validator(schema, registry=REGISTRY)

    def iter_errors(self, value: Any, budget: PatternBudget | None = None) -> list[ValidationError]:
        """All in which a value does not fit. Raises one of CANNOT_APPLY if that cannot be found out:
        a reference leads elsewhere, or patterns take too much work, which all of them share."""
        before = _budget.set(budget)
        try:
            found = list(self._validator.iter_errors(value))
        finally:
            _budget.reset(before)
        for error in found:
            if error.schema is False:
                error.message = no_value_fits(error.instance)
        return found


def validator(schema: Any) -> Schema:
    """Checks values against a schema, without reaching out and in bounded work."""
    return Schema(schema)


# --- the keywords that say something ---


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


# --- the keywords with patterns, which jsonschema gives to `re` ---


def _found(pattern: str, text: str) -> bool:
    if (budget := _budget.get()) is None:
        _budget.set(budget := PatternBudget())
    return compile_pattern(pattern, schema=True).found_in(text, budget)


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for key, value in instance.items():
            if _found(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, inner: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        key for key in instance if key not in known and not any(_found(pattern, key) for pattern in patterns)
    ]
    if isinstance(inner, dict):
        for key in extras:
            yield from validator.descend(instance[key], inner, path=key)
    elif not inner and extras and patterns:
        verb = "does" if len(extras) == 1 else "do"
        names, wanted = (", ".join(map(repr, sorted(some))) for some in (extras, patterns))
        yield ValidationError(f"{names} {verb} not match any of the regexes: {wanted}")
    elif not inner and extras:
        yield ValidationError(f"Additional properties are not allowed {_were(extras, 'unexpected')}")


def _unevaluated_properties(
    validator: Any, inner: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    evaluated = _evaluated(validator, instance, schema)
    extras = [
        key for key, value in instance.items() if key not in evaluated and not _fits(validator, value, inner)
    ]
    if extras and inner is False:
        yield ValidationError(f"Unevaluated properties are not allowed {_were(extras, 'unexpected')}")
    elif extras:
        told = _were(extras, "unevaluated and invalid")
        yield ValidationError(f"Unevaluated properties are not valid under the given schema {told}")


def _evaluated(validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
    """The properties that some part of a schema has judged, through references and branches that hold."""
    if not isinstance(schema, dict):
        return set()
    found: set[str] = schema.get("properties", {}).keys() & instance.keys()
    for pattern in schema.get("patternProperties", {}):
        found |= {key for key in instance if _found(pattern, key)}
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if (inner := schema.get(keyword)) is not None:
            found |= {key for key, value in instance.items() if _fits(validator, value, inner)}
    for keyword in REFERENCES:
        if keyword in schema:
            there = validator._resolver.lookup(schema[keyword])
            moved = validator.evolve(schema=there.contents, _resolver=there.resolver)
            found |= _evaluated(moved, instance, there.contents)
    for inner in _branches(validator, instance, schema):
        found |= _evaluated(validator, instance, inner)
    return found


def _unevaluated_items(
    validator: Any, _inner: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, list):
        return
    evaluated = _evaluated_items(validator, instance, schema)
    extras = [item for index, item in enumerate(instance) if index not in evaluated]
    if extras:
        told = f"({', '.join(map(repr, extras))} {'was' if len(extras) == 1 else 'were'} unexpected)"
        yield ValidationError(f"Unevaluated items are not allowed {told}")


def _evaluated_items(validator: Any, instance: list[Any], schema: Any) -> set[int]:
    """The same as `_evaluated`, of the places of a list."""
    if not isinstance(schema, dict):
        return set()
    if "items" in schema:
        return set(range(len(instance)))
    found = set(range(len(schema.get("prefixItems", ()))))
    for keyword in ("contains", "unevaluatedItems"):
        if (inner := schema.get(keyword)) is not None:
            found |= {index for index, item in enumerate(instance) if _fits(validator, item, inner)}
    for keyword in REFERENCES:
        if keyword in schema:
            there = validator._resolver.lookup(schema[keyword])
            moved = validator.evolve(schema=there.contents, _resolver=there.resolver)
            found |= _evaluated_items(moved, instance, there.contents)
    for inner in _branches(validator, instance, schema):
        found |= _evaluated_items(validator, instance, inner)
    return found


def _branches(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """The parts of a schema that hold for the same value."""
    for key, inner in schema.get("dependentSchemas", {}).items():
        if isinstance(instance, dict) and key in instance:
            yield inner
    for keyword in LISTS:
        for inner in schema.get(keyword, ()):
            if _fits(validator, instance, inner):
                yield inner
    if "if" in schema:
        holds = _fits(validator, instance, schema["if"])
        if holds:
            yield schema["if"]
        yield schema.get("then" if holds else "else")


def _were(names: list[str], what: str) -> str:
    return f"({', '.join(map(repr, sorted(names)))} {'was' if len(names) == 1 else 'were'} {what})"


_Validator: Final[Any] = extend(  # type: ignore[no-untyped-call]  # the package has no types
    Draft202012Validator,
    {
        **KEYWORDS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
        "unevaluatedItems": _unevaluated_items,
    },
)
_FIELDS: Final = [(field.name, field.alias) for field in attrs.fields(_Validator) if field.init]


def _evolve(self: Any, **changes: Any) -> Any:
    """jsonschema's, but for parts that name a draft in `$schema`: those would get its own keywords."""
    kept = {alias: getattr(self, name) for name, alias in _FIELDS if alias not in changes}
    return _Validator(**kept, **changes)


_Validator.evolve = _evolve
