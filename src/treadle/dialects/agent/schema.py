"""The shape of an agent workflow and of a skill, as JSON Schema (draft 2020-12).

Inner objects are closed, so that a misspelt field is found at load; the top level is open, because
published workflow files carry fields of their own (author, tags, icon, …). What a schema cannot
say (reachability, cycles, patterns that compile) is in `check.py`.
"""

from __future__ import annotations

from typing import Any, Final

from treadle.kernel.values import Value

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

TEXT: Final[dict[str, Value]] = {"type": "string", "minLength": 1}
TEXTS: Final[dict[str, Value]] = {"type": "array", "items": TEXT}
TEXTS_1: Final[dict[str, Value]] = {**TEXTS, "minItems": 1}
COUNT_1: Final[dict[str, Value]] = {"type": "integer", "minimum": 1}


def _closed(properties: dict[str, Value], *required: str, **more: Any) -> dict[str, Value]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def _one_of_required(*names: str) -> dict[str, Value]:
    return {"anyOf": [{"required": [name]} for name in names]}


SOURCE: Final[dict[str, Value]] = {
    "oneOf": [
        TEXT,
        _closed({"inline": {"type": "string"}}, "inline"),
        _closed({"file": TEXT}, "file"),
        _closed({"url": TEXT, "type": {"type": "string"}}, "url"),
    ]
}
_SOURCE: Final = {"$ref": "#/$defs/Source"}
_SOURCES: Final = {"type": "array", "items": _SOURCE}
_CASCADE: Final = {
    "oneOf": [_SOURCES, _closed({"only": {"type": "boolean"}, "sources": _SOURCES}, "sources")]
}

MCP_SERVER: Final = _closed(
    {
        "type": {"enum": ["stdio", "http"]},
        "command": TEXT,
        "args": {"type": "array", "items": {"type": "string"}},
        "url": TEXT,
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "timeout": {"type": ["string", "number"]},
    },
    **_one_of_required("command", "url"),
    # `type` is inferred; where it is written it must be true.
    allOf=[
        {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": {"required": [field]}}
        for kind, field in (("stdio", "command"), ("http", "url"))
    ],
)

_MATCH: Final = _closed(
    {"path": TEXT, "equals": {}, "in": {"type": "array"}, "matches": {"type": "string"}},
    "path",
    oneOf=[{"required": [name]} for name in ("equals", "in", "matches")],
)
_MATCHES: Final = {"type": "array", "items": _MATCH, "minItems": 1}
_BUDGET: Final = _closed(
    {"usd": {"type": "number", "exclusiveMinimum": 0}, "tokens": COUNT_1}, **_one_of_required("usd", "tokens")
)
_RULE: Final = _closed(
    {
        "any_tool_called": TEXTS_1,
        "all_tools_called": TEXTS_1,
        "no_tool_called": TEXTS_1,
        "output_required": TEXTS_1,
        "output_matches": _MATCHES,
    },
    minProperties=1,
)


def _evaluator(kind: str, properties: dict[str, Value], *required: str) -> dict[str, Value]:
    return _closed({"name": TEXT, "kind": {"const": kind}, **properties}, "name", "kind", *required)


_EVALUATOR: Final = {
    "type": "object",
    "required": ["name", "kind"],
    "properties": {"kind": {"enum": ["value", "function", "judge"]}},
    "allOf": [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": _evaluator(kind, properties, *required),
        }
        for kind, properties, required in (
            ("value", {"rule": _RULE}, ("rule",)),
            ("function", {"rule": _RULE}, ("rule",)),
            ("judge", {"rubric": TEXT, "pass_when": TEXT, "model": TEXT}, ("rubric",)),
        )
    ],
}

_RETRY: Final = _closed(
    {
        "max": COUNT_1,
        "delay": {"type": ["string", "number"]},
        "instruction": {
            "oneOf": [
                TEXT,
                _closed({"auto": {"const": True}}, "auto"),
                _closed({"reflect": TEXT}, "reflect"),
            ]
        },
    },
    "max",
)
_REQUIRES: Final = _closed(
    {"output_required": TEXTS_1, "output_matches": _MATCHES, "on_fail": {"enum": ["fail", "skip"]}},
    **_one_of_required("output_required", "output_matches"),
)
_APPROVE: Final = _closed(
    {
        "roles": TEXTS_1,
        "prompt": _SOURCE,
        "on_deny": {"enum": ["skip", "fail"]},
        "show": TEXTS_1,
        "timeout": {"type": ["string", "number"]},
    },
    "roles",
    "prompt",
)

NODE: Final = _closed(
    {
        "name": TEXT,
        "instruction": _SOURCE,
        "skills": {"type": "array", "items": TEXT},
        "output": {"type": "object"},
        "max_turns": COUNT_1,
        "model": TEXT,
        "judge_model": TEXT,
        "disallowed_tools": TEXTS,
        "tools": _closed({"allow": TEXTS_1, "deny": TEXTS_1}, minProperties=1),
        "fail_soft": {"type": "boolean"},
        "rules": _CASCADE,
        "context": _CASCADE,
        "eval": {"type": "array", "items": _EVALUATOR, "minItems": 1},
        "eval_policy": {"enum": ["all_pass", "any_pass", "weighted"]},
        "requires": _REQUIRES,
        "retry": _RETRY,
        "budget": _BUDGET,
        "approve": _APPROVE,
        "run": {"oneOf": [TEXT, _closed({"workflow": TEXT, "input": {"type": "object"}}, "workflow")]},
        "timeout": {"type": ["string", "number"]},
        "skills_optional": {"type": "boolean"},
        "in_doubt": {"enum": ["retry", "skip", "fail", "ask"]},
        "pool": TEXT,
    },
    "name",
    anyOf=[{"required": ["instruction"]}, {"required": ["run"]}],
)

EDGE: Final = _closed(
    {
        "from": TEXT,
        "to": TEXT,
        "when": {"type": "string"},
        "if": _closed({"$": TEXT}, "$"),
        "max_iterations": COUNT_1,
    },
    "from",
    "to",
)

INLINE_SKILL: Final = _closed(
    {
        "name": TEXT,
        "description": {"type": "string"},
        "instruction": _SOURCE,
        "mcp": {"$ref": "#/$defs/McpServer"},
    },
    **_one_of_required("instruction", "mcp"),
)

_INPUT: Final = _closed(
    {
        "type": {"enum": ["string", "number", "boolean", "string[]"]},
        "description": {"type": "string"},
        "required": {"type": "boolean"},
        "default": {},
        "enum": {"type": "array", "minItems": 1},
    },
    "type",
)

WORKFLOW: Final[dict[str, Value]] = {
    "$schema": DRAFT,
    "title": "Agent workflow",
    "type": "object",
    "required": ["id", "name", "entry", "nodes", "edges"],
    "properties": {
        "id": TEXT,
        "name": TEXT,
        "description": {"type": "string"},
        "entry": TEXT,
        "nodes": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Node"}},
        "edges": {"type": "array", "items": {"$ref": "#/$defs/Edge"}},
        "skills": {"type": "object", "additionalProperties": {"$ref": "#/$defs/InlineSkill"}},
        "rules": _SOURCES,
        "context": _SOURCES,
        "workflow_type": {
            "enum": ["pr_review", "e2e_test", "content_generation", "monitor", "data_sync", "generic"]
        },
        "model": TEXT,
        "judge_model": TEXT,
        "judge_budget": {"type": "integer", "minimum": 0},
        "inputs": {"type": "object", "additionalProperties": _INPUT},
        "parallel": {"type": "boolean"},
        "budget": _BUDGET,
        "on_failure": {"enum": ["continue", "halt"]},
        "max_steps": COUNT_1,
        "fetch": _closed(
            {
                # Keys are `host` or `host:port`; anything else would match nothing, silently.
                "auth": {
                    "type": "object",
                    "additionalProperties": TEXT,
                    "propertyNames": {"pattern": r"^[^/\s]+$"},
                },
                "allow": TEXTS,
            }
        ),
        "dialect": {"const": "agent"},
    },
    "$defs": {
        "Source": SOURCE,
        "Node": NODE,
        "Edge": EDGE,
        "InlineSkill": INLINE_SKILL,
        "McpServer": MCP_SERVER,
    },
}

SKILL_ID: Final = r"^(?!.*--)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$"

SKILL: Final[dict[str, Value]] = {
    "$schema": DRAFT,
    "title": "Skill",
    **_closed(
        {
            "id": {"type": "string", "pattern": SKILL_ID, "maxLength": 64},
            "name": TEXT,
            "description": {"type": "string"},
            "category": {"enum": ["general", "git", "tasks", "notification", "observability", "data"]},
            "config": {
                "type": "object",
                "additionalProperties": _closed(
                    {"description": {"type": "string"}, "required": {"type": "boolean"}, "env": TEXT},
                    "description",
                ),
            },
            "tools": {
                "type": "array",
                "items": _closed(
                    {
                        "name": TEXT,
                        "description": {"type": "string"},
                        "input_schema": {"type": "object"},
                    },
                    "name",
                    "description",
                    "input_schema",
                ),
            },
            "instruction": {"type": "string"},
            "mcp": MCP_SERVER,
            "mcpAliases": {"type": "object", "additionalProperties": TEXTS_1},
        },
        "id",
        "name",
        "description",
        "category",
        "config",
        anyOf=[{"required": [name]} for name in ("tools", "instruction", "mcp")],
    ),
}
