"""Whether a document has the shape of a workflow, told in the author's words.

A JSON Schema says that something is wrong; what is said here is where it stands, in the terms of
YAML, and what to write instead. Unknown fields are told one by one, each at its own line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from treadle.kernel.values import Value
from treadle.lang.problems import Problems
from treadle.lang.text import Path as Where

from .schema import WORKFLOW

_SHAPE: Final = Draft202012Validator(WORKFLOW)
_TERMS: Final = {
    "string": "text",
    "object": "a mapping",
    "array": "a list",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_EMPTY: Final = ("minLength", "minItems", "minProperties")
LEGACY: Final = (
    "LEGACY_VERIFY",
    "`verify` is no longer a field",
    "Write it as `eval:` of a node, with kind value or function; see docs/agent.md.",
)


def check_shape(value: dict[str, Value], problems: Problems) -> None:
    """Adds everything in which a document is not shaped like a workflow."""
    for error in _SHAPE.iter_errors(value):
        where: Where = tuple(error.absolute_path)
        for place, code, message, hint in _told(where, error):
            problems.error(code, place, short(message), hint=hint, rule="schema")
    if "verify" in value:
        code, message, hint = LEGACY
        problems.error(code, ("verify",), message, hint=hint, rule="schema")


def short(message: str) -> str:
    return message if len(message) <= 400 else message[:399] + "…"


def _told(where: Where, error: ValidationError) -> Iterator[tuple[Where, str, str, str]]:
    """Place, code, message and remedy."""
    if _is_source(error):
        yield where, *_source_problem(error.instance)
        return
    code = "SCHEMA"
    if len(where) >= 2 and where[0] == "skills":
        code = "INVALID_INLINE_SKILL"
    if error.validator == "additionalProperties":
        for key, message, hint in _unknown_fields(error):
            if key == "verify" and where[0] == "nodes":
                yield (*where, key), *LEGACY
            else:
                yield (*where, key), code, message, hint
        return
    message, hint = _message(error)
    if code != "SCHEMA":
        hint = "An inline skill has an instruction or an mcp server, and a name and description at most."
    yield where, code, message, hint


def _unknown_fields(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    assert isinstance(error.schema, dict)
    properties = error.schema["properties"]
    kind = properties.get("kind", {}).get("const")
    for key in error.instance:  # type: ignore[union-attr]  # the rule that was broken is one of objects
        if key in properties:
            continue
        close = get_close_matches(str(key), properties, 1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        there = f"a {kind} evaluator has no field {key!r}" if kind else f"there is no field {key!r} here"
        yield str(key), there, f"{hint}Fields here: {', '.join(sorted(properties))}."


def _message(error: ValidationError) -> tuple[str, str]:
    value: Any = error.validator_value
    given = _shown(error.instance)
    if error.validator == "type":
        terms = " or ".join(_TERMS.get(name, name) for name in ([value] if isinstance(value, str) else value))
        leave = ", or leave the field out" if error.instance is None else ""
        return f"{given} is not {terms}", f"Write {terms}{leave}."
    if error.validator in ("enum", "const"):
        choices = ", ".join(map(_shown, value if error.validator == "enum" else [value]))
        return f"{given} is not one of {choices}", f"Use {choices}."
    if error.validator in _EMPTY:
        return f"{given} is empty", "Write something here, or leave the field out."
    if error.validator in ("minimum", "exclusiveMinimum"):
        least = f"{value} or more" if error.validator == "minimum" else f"more than {value}"
        return f"{given} is too small", f"Use {least}."
    if error.validator == "required":
        only = error.message.startswith("'edges'")
        hint = "Write `edges: []` if there is only one node." if only else "Add it."
        return error.message.replace("is a required property", "is missing"), hint
    if error.validator == "pattern":
        return f"{given} is not written as it must be", "Here stands a host, or host:port, and nothing else."
    if error.validator in ("oneOf", "anyOf"):
        return _choice(error, given)
    return error.message, "See docs/agent.md for the fields and what they take."


def _choice(error: ValidationError, given: str) -> tuple[str, str]:
    options = [option for option in error.validator_value if isinstance(option, dict)]  # type: ignore[union-attr]  # the rule that was broken is one of objects
    names = [option["required"][0] for option in options if set(option) == {"required"}]
    if names:
        many = "exactly" if error.validator == "oneOf" else "at least"
        return f"needs {many} one of {', '.join(names)}", f"Write one of {', '.join(names)}."
    forms = ", or ".join(_form(option) for option in options)
    return f"{given} cannot stand here", f"Write {forms}."


def _form(option: dict[str, Value]) -> str:
    if "properties" not in option:
        return _TERMS.get(str(option.get("type")), "a Source")
    parts = [
        f"{name}: {_shown(inner['const']) if 'const' in inner else '…'}"
        for name, inner in option["properties"].items()
    ]
    return f"{{{', '.join(parts)}}}"


def _shown(value: Any) -> str:
    """A value as YAML has it, short."""
    if isinstance(value, str) and value and len(value) <= 60:
        return repr(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"


def _is_source(error: ValidationError) -> bool:
    return "Source" in error.absolute_schema_path or (
        error.validator == "oneOf" and error.schema == WORKFLOW["$defs"]["Source"]
    )


def _source_problem(instance: Any) -> tuple[str, str, str]:
    hint = "Write text, {inline: text}, {file: path} or {url: address}."
    tags = [tag for tag in ("inline", "file", "url") if isinstance(instance, dict) and tag in instance]
    if len(tags) == 1:
        extra = sorted(set(instance) - {tags[0], "type"})
        message = f"a Source {{{tags[0]}: …}} takes no {', '.join(extra)}" if extra else "a Source needs text"
    elif isinstance(instance, dict):
        message = "a Source has exactly one of inline, file, url"
    else:
        message = "a Source is text that is not empty, or a mapping"
    return "SOURCE_INVALID_SHAPE", message, hint
