"""JSON Schemas that users write: is one valid, and does a value fit it.

`jsonschema` takes long to import and is needed by few definitions, so it is imported on first use.
References to other documents are refused: checking a payload must not reach the network.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from treadle.kernel.values import Value, decode_trusted, encode

if TYPE_CHECKING:
    from treadle.lang.json_schema import Schema

MISMATCHES_MAX: Final = 20
QUOTED_CHARS_MAX: Final = 200


def schema_problem(schema: Value) -> str | None:
    """Why a schema is not one, or None."""
    from treadle.lang.schema_problems import syntax_problem

    if not isinstance(schema, dict | bool):
        return "a schema is a mapping"
    found = syntax_problem(schema)
    return found[1] if found else None


def mismatches(schema: Value, value: Value) -> list[dict[str, str]]:
    """In what a value does not fit a schema: `{"path", "message"}`, in order, as many as people read."""
    from treadle.lang.json_schema import CANNOT_APPLY, why_not_applied

    try:
        found = sorted(
            _validator(encode(schema)).iter_errors(value),
            key=lambda error: (list(map(str, error.absolute_path)), error.message),
        )
    except CANNOT_APPLY as error:
        return [{"path": "$", "message": f"the schema cannot be applied: {why_not_applied(error)}"}]
    return [
        {"path": error.json_path, "message": _shortened(error.message)} for error in found[:MISMATCHES_MAX]
    ]


def _shortened(message: str) -> str:
    """A message quotes the value first, however large it is, and says at its end what is wrong."""
    if len(message) <= 2 * QUOTED_CHARS_MAX:
        return message
    return f"{message[:QUOTED_CHARS_MAX]} … {message[-QUOTED_CHARS_MAX:]}"


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Schema:
    from treadle.lang.json_schema import validator

    return validator(decode_trusted(schema))
