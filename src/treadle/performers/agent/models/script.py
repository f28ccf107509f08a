"""The shape of a script for the scripted model: what is wrong with one, and where another stands in it.

A mistake is found before a run is started, and named by its path inside the script. Keys that are not
known may be notes of whoever wrote the script, and are left alone unless they look like a slip.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

PARTS: Final = ("run", "evaluate", "ask", "log")
KEYS: Final = (
    *("data", "status", "tool_calls", "progress", "usage", "text", "throw", "delay"),
    *("turns", "script", "choice"),
)
SLIP: Final = 0.8


def problem_of(script: Any) -> str | None:
    """The first thing wrong with a script, with its path; None if it can answer."""
    return next(_problems(script, ""), None)


def script_at(script: Mapping[str, Any], within: Sequence[Sequence[Any]]) -> Mapping[str, Any]:
    """The script that answers for a run that was called by nodes: `within` names each by id and invocation, the
    outermost first. A call without a script of its own is answered by the script around it."""
    for node, nth in within:
        entries = (script.get("run") or {}).get(node) or ()
        entry = entries[nth - 1] if nth <= len(entries) else {}
        if "script" not in entry:
            break
        script = entry["script"]
    return script


def _problems(script: Any, at: str) -> Iterator[str]:
    here = at or "it"
    if not isinstance(script, dict):
        yield f"{here} is not an object with {', '.join(PARTS)}"
        return
    unknown = sorted(set(script) - set(PARTS))
    if unknown:
        yield f"{here} has unknown keys {', '.join(unknown)}; there are {', '.join(PARTS)}"
    prefix = f"{at}." if at else ""
    yield from _by_node(script.get("run"), f"{prefix}run", objects=True)
    yield from _by_node(script.get("evaluate"), f"{prefix}evaluate")
    ask = script.get("ask")
    if isinstance(ask, dict):
        yield from _by_node(ask, f"{prefix}ask")
    elif ask is not None:
        yield from _entries(ask, f"{prefix}ask")
    if not isinstance(script.get("log"), str | None):
        yield f"{prefix}log is not the name of a file"


def _by_node(found: Any, at: str, *, objects: bool = False) -> Iterator[str]:
    if found is None:
        return
    if not isinstance(found, dict):
        yield f"{at} is not a mapping of node to a list of entries"
        return
    for node, entries in found.items():
        yield from _entries(entries, f"{at}.{node}", objects=objects)


def _entries(found: Any, at: str, *, objects: bool = False) -> Iterator[str]:
    """`objects`: a node gives a result; a route or a judge may be answered by a plain word."""
    if not isinstance(found, list):
        yield f"{at} is not a list of entries"
        return
    for index, entry in enumerate(found):
        if isinstance(entry, dict):
            yield from _entry(entry, f"{at}[{index}]")
        elif objects:
            yield f"{at}[{index}] is not an object"


def _entry(entry: dict[str, Any], at: str) -> Iterator[str]:
    for key in sorted(entry.keys() - KEYS):
        if meant := difflib.get_close_matches(key, KEYS, 1, SLIP):
            yield f"{at}.{key} is no part of an entry; {meant[0]} is"
    if "script" in entry:
        yield from _problems(entry["script"], f"{at}.script")
    if "turns" in entry:
        turns = entry["turns"]
        if not (isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns)):
            yield f"{at}.turns is not a list of objects, one for each answer"
            return
        for index, turn in enumerate(turns):
            yield from _entry(turn, f"{at}.turns[{index}]")
    delay = entry.get("delay")
    if delay is not None and not _is_amount(delay):
        yield f"{at}.delay is not a number of seconds"
    progress = entry.get("progress")
    if progress is not None and not (
        isinstance(progress, list) and all(isinstance(t, str) for t in progress)
    ):
        yield f"{at}.progress is not a list of texts"
    calls = entry.get("tool_calls")
    if calls is not None and not (
        isinstance(calls, list) and all(isinstance(c, dict) and isinstance(c.get("tool"), str) for c in calls)
    ):
        yield f"{at}.tool_calls is not a list of {{tool, input}}"
    yield from _usage(entry.get("usage"), f"{at}.usage")


def _usage(usage: Any, at: str) -> Iterator[str]:
    if usage is None:
        return
    if not isinstance(usage, dict):
        yield f"{at} is not an object with input_tokens, output_tokens, usd"
        return
    for name in ("input_tokens", "output_tokens"):
        count = usage.get(name, 0)
        if not (_is_amount(count) and isinstance(count, int)):
            yield f"{at}.{name} is not a whole number from 0 on"
    if not _is_amount(usage.get("usd", 0)):
        yield f"{at}.usd is not an amount from 0 on"


def _is_amount(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
