"""What a node hands on: to another workflow, to a function, to whoever approves it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.problems import Problems
from treadle.lang.text import Path as Where

from .child import doubts
from .shape import short

# Keys of a turn's context that no node may take.
RESERVED: Final = ("input", "approval")
# What only a model has any use for.
_OF_MODELS: Final = (
    "instruction",
    "skills",
    "tools",
    "model",
    "max_turns",
    "disallowed_tools",
    "rules",
    "context",
)
_PATH: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*(\.[a-zA-Z_][a-zA-Z0-9_-]*)*")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?|[\w.-]+")


def check_handed(id: str, node: dict[str, Value], nodes: dict[str, Value], problems: Problems) -> None:
    run, at, names = node.get("run"), ("nodes", id), {*RESERVED, *nodes}
    if isinstance(run, dict) and "input" in run:
        for place, why in doubts(run["input"], names, (*at, "run", "input")):
            problems.warning(
                "RUN_INPUT",
                place,
                short(why),
                hint="Write {{ input.day }} or {{ node.key }}; there are no expressions.",
            )
    for place, message, hint in _function_problems(node, at):
        problems.error("RUN_FUNCTION", place, message, hint=hint)
    approve = node.get("approve")
    if isinstance(approve, dict):
        _check_approve(approve, names, (*at, "approve"), problems)


def _function_problems(node: dict[str, Value], at: Where) -> Iterator[tuple[Where, str, str]]:
    run, retry = node.get("run"), node.get("retry")
    if not isinstance(run, str):
        if "timeout" in node:
            yield (*at, "timeout"), "only a node with `run: module:function` has a timeout", "Remove it."
        if isinstance(retry, dict) and "delay" in retry:
            yield (*at, "retry", "delay"), "only a node with `run: module:function` waits", "Remove it."
        return
    if run and not _FUNCTION.fullmatch(run):
        yield (
            (*at, "run"),
            f"{run!r} names no function",
            "Write module:function, or the name of a registered one.",
        )
    for field in _OF_MODELS:
        if field in node:
            yield (
                (*at, field),
                f"a function takes no {field}: no model works at this node",
                "Remove it, or `run`.",
            )
    if isinstance(retry, dict) and "instruction" in retry:
        yield (
            (*at, "retry", "instruction"),
            "a function is told no instruction",
            "Write max, and delay if it is to wait.",
        )


def _check_approve(approve: dict[str, Value], names: set[str], at: Where, problems: Problems) -> None:
    shown = approve.get("show")
    for index, path in enumerate(shown if isinstance(shown, list) else ()):
        if not isinstance(path, str) or not path:
            continue
        if not _PATH.fullmatch(path) or path.partition(".")[0] not in names:
            problems.error(
                "APPROVE_SHOW",
                (*at, "show", index),
                f"{path!r} is no path into the context",
                hint="Write input.key or node.key: what the approver is shown.",
            )
    prompt = approve.get("prompt")
    text = prompt.get("inline") if isinstance(prompt, dict) else prompt
    for place, why in doubts(text, names, (*at, "prompt")):
        problems.warning(
            "APPROVE_PROMPT",
            place,
            short(why),
            hint="Write {{ input.key }} or {{ node.key }}, and nothing else.",
        )
