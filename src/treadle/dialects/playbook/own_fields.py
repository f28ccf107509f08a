"""The fields that the pipeline itself reads: of every task, under every `spec`, of the kinds without a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treadle.lang.fields import Field, Fields

_NOTES: Final = ("desc", "description", "label", "tags", "doc", "comment", "metadata")
_TIMEOUT: Final = Field("timeout", ("duration", "mapping"), "how long it may take: 30, 500ms, 2m")

COMMON: Final = Fields(
    "what every task may have",
    (
        Field("name", ("text",), "the task's name: a jump target, and how its result is read"),
        Field("kind", ("text",), "which tool does the work"),
        Field("args", ("any",), "the arguments", ("input",)),
        Field("spec", ("mapping",), "policy, timeout, result, and knobs of the tool"),
        Field("loop", ("mapping",), "{in, iterator}: the task once for each item"),
        Field("set_ctx", ("mapping",), "written to ctx when the task is done"),
        Field("set_iter", ("mapping",), "written to iter when the task is done"),
        Field("idempotent", ("boolean",), "repeating this task does no harm"),
        Field(
            "pure", ("boolean",), "it touches nothing outside: it may be done before its decision is durable"
        ),
        _TIMEOUT,
        Field("timeout_seconds", ("duration",), "the same, in seconds"),
        *(Field(name, ("any",), "a note for people") for name in _NOTES),
    ),
)

SPEC: Final = (
    Field("policy", ("mapping",), "{rules: [{when, then: {do: …}}, {else: {then: {do: …}}}]}"),
    _TIMEOUT,
    Field("result", ("mapping",), "{inline_max_bytes, preview_max_bytes, store, select, error_status}"),
    Field("loop_mode", ("text",), "a hint of other engines"),
    Field("pool", ("text",), "the workers that do it: those of `treadle worker --pool NAME`"),
)

_LIMIT: Final = Field("timeout", ("duration",), "how long to wait", ("timeout_s",))
_CHILD: Final = (
    Field("path", ("text",), "a file beside this one, or a deployed workflow", ("workflow",)),
    Field("payload", ("any",), "the input of the run, as args"),
    Field("version", ("text",), "which version of it"),
    Field("wait", ("boolean",), "false: start it and go on"),
    Field("return_step", ("text",), "whose result is wanted"),
)

OWN: Final[Mapping[str, Fields]] = {
    "wait": Fields(
        "a timer",
        (
            Field("seconds", ("duration",), "how long", ("duration", "for", "delay")),
            Field("until", ("text",), "an instant: 2026-11-15T08:00:00Z"),
        ),
        required=(("seconds", "until"),),
    ),
    "await": Fields(
        "a signal from outside", (Field("signal", ("text",), "its name; else the task's"), _LIMIT)
    ),
    "ask": Fields(
        "a task for a person",
        (
            Field("title", ("text",), "what is asked", ("task",)),
            Field("roles", ("list", "text"), "who may answer", ("role",)),
            Field("payload", ("any",), "what they see"),
            Field("schema", ("mapping",), "a JSON Schema of the answer"),
            Field("type", ("text",), "the kind of form"),
            Field("reference", ("text",), "a business reference"),
            _LIMIT,
        ),
    ),
    "playbook": Fields("another playbook, as a child", _CHILD),
    "workflow": Fields("a workflow of any dialect, as a child", _CHILD),
}
