"""JSON Schemas that users write: is one valid, and does a value fit it.

`jsonschema` takes long to import and is needed by few definitions, so it is imported on first use.
References to other documents are refused: checking a payload must not reach the network.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from treadle.kernel.values import Value, decode_trusted, encode


def schema_problem(schema: Value) -> str | None:
    """Why a schema is not one, or None."""
    import jsonschema
    from jsonschema.validators import Draft202012Validator

    if not isinstance(schema, dict | bool):
        return "a schema is a mapping"
    try:
        Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"not a JSON Schema: {error.message}"
    return None


def mismatches(schema: Value, value: Value) -> list[dict[str, str]]:
    """Everything in which a value does not fit a schema: `{"path", "message"}`, in order."""
    from referencing.exceptions import Unresolvable

    validator = _validator(encode(schema))
    try:
        found = sorted(
            validator.iter_errors(value),
            key=lambda error: (list(map(str, error.absolute_path)), error.message),
        )
    except Unresolvable as error:
        return [{"path": "$", "message": f"the schema refers to another document: {error}"}]
    return [{"path": error.json_path, "message": error.message} for error in found]


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    from jsonschema.validators import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(decode_trusted(schema), registry=Registry())
