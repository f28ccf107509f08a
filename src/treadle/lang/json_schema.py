"""JSON Schemas that authors and servers write: applying one reaches nothing outside it, and ends.

`jsonschema` on its own fetches what a `$ref` names, from any host, whenever a value is checked: on
the core's thread, when a run is replayed, and offline. It matches patterns with `re`, which may take for
ever, changes to another draft where a part of a schema asks for it, and tells of additional properties in
an order that differs between processes. Here a schema knows itself and the published meta-schemas; its
patterns are bounded; it is read as draft 2020-12 throughout, and speaks words of ours (`schema_keywords`). One that refers to anything else, or to
itself without end, is found before a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

import attrs
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # the package has no types
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from .patterns import PatternBudget, PatternError, TooMuchWork, compile_pattern
from .schema_keywords import KEYWORDS, no_value_fits
from .text import Path

# What `Schema.iter_errors` raises for a schema that cannot be applied to a value.
CANNOT_APPLY: Final = (Unresolvable, TooMuchWork, PatternError, RecursionError)

# Keywords whose schemas are applied to the very value that the schema itself is applied to.
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SINGLE: Final = ("not", "if", "then", "else")
_REFERENCES: Final = ("$ref", "$dynamicRef")

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
        before = _budget.set(budget or PatternBudget())
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


def syntax_problem(schema: Any) -> tuple[Path, str] | None:
    """Why something is no JSON Schema, and where in it; or None. References are not followed."""
    try:
        Draft202012Validator.check_schema(schema, format_checker=_FORMATS)
    except SchemaError as error:
        why = f": {error.cause}" if isinstance(error.cause, PatternError) else ""
        return tuple(error.absolute_path), f"not a JSON Schema: {error.message}{why}"
    except (RecursionError, ValueError, TypeError):
        return (), "not a JSON Schema: it goes too deep, or holds what no schema may hold"
    return None


def schema_problem(schema: Any) -> tuple[Path, str] | None:
    """What is wrong with a schema, and where in it; or None."""
    if found := syntax_problem(schema):
        return found
    root = DRAFT202012.create_resource(schema)
    registry = REGISTRY.with_resource("", root)
    try:
        message = next(_reference_problems(registry.resolver(""), root, {}), None)
    except (RecursionError, ValueError, TypeError, AttributeError):
        message = "its references cannot be followed"
    return ((), message) if message else None


def _reference_problems(resolver: Any, resource: Any, settled: dict[int, bool]) -> Iterator[str]:
    contents = resource.contents
    if isinstance(contents, dict):
        for key in _REFERENCES:
            if isinstance(contents.get(key), str):
                try:
                    resolver.lookup(contents[key])
                except Unresolvable:
                    yield f"{key} {contents[key]!r} leads out of the schema, or nowhere in it"
                    return
        if _is_endless(resolver, contents, settled):
            yield "it refers to itself without end: no value can be checked against it"
            return
    for inner in resource.subresources():
        yield from _reference_problems(resolver.in_subresource(inner), inner, settled)


def _is_endless(resolver: Any, contents: Any, settled: dict[int, bool]) -> bool:
    """Whether applying a schema comes back to it without having gone deeper into the value.
    `settled`: False for one that is under way, True for one that is known to end."""
    if not isinstance(contents, dict):
        return False
    known = settled.get(id(contents))
    if known is not None:
        return not known
    settled[id(contents)] = False
    for inner, at in _in_place(resolver, contents):
        if _is_endless(at, inner, settled):
            return True
    settled[id(contents)] = True
    return False


def _in_place(resolver: Any, contents: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for key in _REFERENCES:
        if isinstance(contents.get(key), str):
            try:
                found = resolver.lookup(contents[key])
            except Unresolvable:
                continue
            yield found.contents, found.resolver
    for key in _LISTS:
        for inner in contents.get(key) or ():
            yield inner, resolver
    for key in _SINGLE:
        yield contents.get(key), resolver
    for inner in (contents.get("dependentSchemas") or {}).values():
        yield inner, resolver


# --- the keywords with patterns, which jsonschema gives to `re` ---


def _found(pattern: str, text: str) -> bool:
    return compile_pattern(pattern, schema=True).found_in(text, _budget.get())


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
        key
        for key, value in instance.items()
        if key not in evaluated and not _is_valid(validator, value, inner)
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
            found |= {key for key, value in instance.items() if _is_valid(validator, value, inner)}
    for keyword in _REFERENCES:
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
            found |= {index for index, item in enumerate(instance) if _is_valid(validator, item, inner)}
    for keyword in _REFERENCES:
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
    for keyword in _LISTS:
        for inner in schema.get(keyword, ()):
            if _is_valid(validator, instance, inner):
                yield inner
    if "if" in schema:
        holds = _is_valid(validator, instance, schema["if"])
        if holds:
            yield schema["if"]
        yield schema.get("then" if holds else "else")


def _is_valid(validator: Any, value: Any, schema: Any) -> bool:
    return next(validator.descend(value, schema), None) is None


def _were(names: list[str], what: str) -> str:
    return f"({', '.join(map(repr, sorted(names)))} {'was' if len(names) == 1 else 'were'} {what})"


def _is_regex(instance: object) -> bool:
    if isinstance(instance, str):
        compile_pattern(instance, schema=True)
    return True


_FORMATS: Final = FormatChecker(formats=())
_FORMATS.checks("regex", raises=PatternError)(_is_regex)
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
