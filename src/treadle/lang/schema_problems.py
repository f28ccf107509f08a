"""What is wrong with a JSON Schema that somebody wrote, found before a value is held against it.

One that refers to anything but itself and the published meta-schemas, or to itself without end, could not be applied
(`json_schema`); neither could a pattern that is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker, SchemaError
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # the package has no types
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from .json_schema import LISTS, REFERENCES, SINGLE
from .patterns import PatternError, compile_pattern
from .text import Path


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
        for key in REFERENCES:
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
    for key in REFERENCES:
        if isinstance(contents.get(key), str):
            try:
                found = resolver.lookup(contents[key])
            except Unresolvable:
                continue
            yield found.contents, found.resolver
    for key in LISTS:
        for inner in contents.get(key) or ():
            yield inner, resolver
    for key in SINGLE:
        yield contents.get(key), resolver
    for inner in (contents.get("dependentSchemas") or {}).values():
        yield inner, resolver


def _is_regex(instance: object) -> bool:
    if isinstance(instance, str):
        compile_pattern(instance, schema=True)
    return True


_FORMATS: Final = FormatChecker(formats=())
_FORMATS.checks("regex", raises=PatternError)(_is_regex)
