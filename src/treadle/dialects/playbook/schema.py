"""The JSON Schema of a playbook, for editors: made from the same declarations that `check` holds tasks to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.fields import Declared, Field, Fields

from .own_fields import COMMON, OWN, SPEC
from .steps import FAILURE_MODES
from .tasks import ACTIONS, BACKOFFS

_TEMPLATE: Final = {"type": "string", "pattern": r"\{[{%]"}
_WHEN: Final = {"description": "a condition", "anyOf": [{"type": "boolean"}, _TEMPLATE]}
_OBJECT: Final = {"type": "object"}
_NOTES: Final[dict[str, Value]] = {"^x-": {}}


def json_schema(kinds: Iterable[str], declared: Declared) -> dict[str, Value]:
    tools = {kind: OWN.get(kind) or declared(kind) for kind in sorted({*kinds, *OWN, "workbook"})}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Treadle playbook",
        "type": "object",
        "required": ["workflow"],
        "properties": _roots(),
        "patternProperties": _NOTES,
        "additionalProperties": False,
        "$defs": {
            "step": _step(),
            "arc": _arc(),
            "loop": _loop(),
            "task": _task(tools),
            "policy": _policy(),
            **{f"task.{kind}": _fields(kind, fields) for kind, fields in tools.items() if fields is not None},
        },
    }


def _roots() -> dict[str, Value]:
    entry = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "map": _OBJECT},
    }
    names = {"type": "string", "description": "the name of a step"}
    executor = dict.fromkeys(("entry_step", "final_step", "on_failure", "on_cancel"), names)
    return {
        "apiVersion": {"type": "string"},
        "dialect": {"const": "playbook"},
        "kind": {"const": "Playbook"},
        "metadata": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "path": {"type": "string"},
                "input_schema": {"description": "a JSON Schema of the input", "type": "object"},
            },
        },
        "workload": {"type": "object", "description": "defaults of the input"},
        "keychain": {"type": "array", "items": entry, "description": "the credentials it needs"},
        "executor": {"type": "object", "properties": {"spec": {"type": "object", "properties": executor}}},
        "workflow": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}},
        "workbook": {"type": ["object", "array"], "description": "tasks to be called by name"},
    }


def _step() -> dict[str, Value]:
    failure = {"type": "object", "properties": {"mode": {"enum": list(FAILURE_MODES)}}}
    policy = {"type": "object", "properties": {"admit": _OBJECT, "lifecycle": _OBJECT, "failure": failure}}
    task = {"$ref": "#/$defs/task"}
    return {
        "type": "object",
        "required": ["step"],
        "properties": {
            "step": {"type": "string"},
            "spec": {"type": "object", "properties": {"policy": policy}},
            "loop": {"$ref": "#/$defs/loop"},
            "tool": {"anyOf": [task, {"type": "array", "items": {"anyOf": [task, _OBJECT]}}]},
            "args": _OBJECT,
            "next": {
                "type": "object",
                "required": ["arcs"],
                "properties": {
                    "spec": {"type": "object", "properties": {"mode": {"enum": ["exclusive", "inclusive"]}}},
                    "arcs": {"type": "array", "items": {"$ref": "#/$defs/arc"}},
                },
                "additionalProperties": False,
            },
        },
    }


def _arc() -> dict[str, Value]:
    properties = {
        "step": {"type": "string"},
        "when": _WHEN,
        "args": _OBJECT,
        "input": _OBJECT,
        "set": _OBJECT,
    }
    return {"type": "object", "required": ["step"], "properties": properties}


def _loop() -> dict[str, Value]:
    spec = {
        "type": "object",
        "properties": {
            "mode": {"enum": ["sequential", "parallel"]},
            "max_in_flight": {"anyOf": [{"type": "integer", "minimum": 1}, _TEMPLATE]},
            "policy": _OBJECT,
        },
    }
    properties = {"in": {}, "iterator": {"type": "string"}, "spec": spec}
    return {"type": "object", "required": ["in", "iterator"], "properties": properties}


def _task(tools: dict[str, Fields | None]) -> dict[str, Value]:
    """Which kinds there are is a suggestion: another may be registered where the run is driven."""
    return {
        "type": "object",
        "properties": {"kind": {"anyOf": [{"enum": list(tools)}, {"type": "string"}]}},
        "allOf": [
            {"if": _of_kind(kind), "then": {"$ref": f"#/$defs/task.{kind}"}}
            for kind, fields in tools.items()
            if fields is not None
        ],
    }


def _of_kind(kind: str) -> dict[str, Value]:
    return {"properties": {"kind": {"const": kind}}, "required": ["kind"]}


def _fields(kind: str, declared: Fields) -> dict[str, Value]:
    properties = {name: field.schema() for field in COMMON.fields for name in _names(field)}
    properties |= {name: field.schema() for field in declared.fields for name in _names(field)}
    knobs = {field.name: field.schema() for field in (*SPEC, *declared.spec)}
    properties |= {
        "kind": {"const": kind},
        "set": _OBJECT,
        "output": _OBJECT,
        "spec": {"type": "object", "properties": {**knobs, "policy": {"$ref": "#/$defs/policy"}}},
    }
    required = [
        {"anyOf": [{"required": [name]} for wanted in group for name in _spellings(declared, wanted)]}
        for group in ([] if declared.in_args else declared.required)
    ]
    made = {"description": declared.about, "properties": properties, "patternProperties": _NOTES}
    return {**made, "additionalProperties": False, **({"allOf": required} if required else {})}


def _names(field: Field) -> list[str]:
    return [field.name, *field.also]


def _spellings(declared: Fields, name: str) -> list[str]:
    field = declared.find(name)
    return [name] if field is None else _names(field)


def _policy() -> dict[str, Value]:
    then = {
        "type": "object",
        "required": ["do"],
        "properties": {
            "do": {"enum": list(ACTIONS)},
            "to": {"type": "string", "description": "a task of this pipeline"},
            "attempts": {"anyOf": [{"type": "integer", "minimum": 1}, _TEMPLATE]},
            "backoff": {"enum": [*BACKOFFS, "fixed"]},
            "delay": {"type": ["number", "string"]},
            "max_delay": {"type": ["number", "string"]},
            "jitter": {"type": "boolean"},
            "respect_retry_after": {"type": "boolean"},
            "set_iter": _OBJECT,
            "set_ctx": _OBJECT,
            "set": _OBJECT,
        },
        "additionalProperties": False,
    }
    other = {"anyOf": [{"type": "object", "properties": {"then": then}}, {"type": "null"}]}
    rule = {"type": "object", "properties": {"when": _WHEN, "then": then, "else": other}}
    return {
        "type": "object",
        "required": ["rules"],
        "properties": {"rules": {"type": "array", "items": rule}, "mode": {}, "on_unmatched": {}},
    }
