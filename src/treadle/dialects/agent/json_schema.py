"""JSON Schemas that authors write: applying one reaches nothing outside it, and ends.

`jsonschema` on its own fetches what a `$ref` names, from any host, whenever a value is checked: on
the core's thread, when a run is replayed, and offline. Here a schema knows itself and the published
meta-schemas, and one that refers to anything else, or to itself without end, is found before a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from jsonschema import Draft202012Validator, SchemaError
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from treadle.lang.text import Path

# Keywords whose schemas are applied to the very value that the schema itself is applied to.
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SINGLE: Final = ("not", "if", "then", "else")
_REFERENCES: Final = ("$ref", "$dynamicRef")


def validator(schema: Any) -> Draft202012Validator:
    """Checks values against a schema. A reference that leads elsewhere raises when it is needed."""
    return Draft202012Validator(schema, registry=REGISTRY)


def schema_problem(schema: Any) -> tuple[Path, str] | None:
    """What is wrong with a schema, and where in it; or None."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return tuple(error.absolute_path), f"not a JSON Schema: {error.message}"
    except (RecursionError, re.error, ValueError, TypeError) as error:
        return (), f"not a JSON Schema: {error}"
    root = DRAFT202012.create_resource(schema)
    registry = REGISTRY.with_resource("", root)
    try:
        message = next(_reference_problems(registry.resolver(""), root, {}), None)
    except (RecursionError, ValueError, TypeError, AttributeError) as error:
        message = f"its references cannot be followed: {error}"
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
