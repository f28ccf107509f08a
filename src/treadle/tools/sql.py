"""What the SQL tools share: which statements a task holds, and the shape of their result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.lang.sql import split_statements

from .base import BadConfig, local_path, mapping, need, pick, unbase64
from .portable import portable
from .protocol import ToolCall

Params = Sequence[Any] | Mapping[str, Any] | None


@dataclass(slots=True, frozen=True)
class Statement:
    text: str
    params: Params = None


def read_statements(config: Mapping[str, Any], call: ToolCall) -> list[Statement]:
    """The statements of a task, whichever of the fields they stand in. A list item may be a mapping
    `{sql, params}`; `params` beside the statements is for all of them."""
    shared = pick(config, "params", "parameters")
    if shared is not None and not isinstance(shared, list | tuple | Mapping):
        raise BadConfig("the field 'params' must be a list or a mapping")
    found: list[Statement] = []
    for item in _items(config, call):
        if isinstance(item, Mapping):
            text, params = str(need(item, "sql", "command", "query")), item.get("params", shared)
        else:
            text, params = str(item), shared
        found += [Statement(part, params) for part in split_statements(text)]
    if not found:
        raise BadConfig("there is no statement; give 'command', 'commands', 'query', 'queries' or 'script'")
    return found


def _items(config: Mapping[str, Any], call: ToolCall) -> list[Any]:
    for name in ("command", "commands", "query", "queries", "sql"):
        if (value := config.get(name)) is not None:
            return list(value) if isinstance(value, list | tuple) else [value]
        if (value := config.get(f"{name}_b64")) is not None:
            encoded = value if isinstance(value, list | tuple) else [value]
            return [unbase64(text, f"{name}_b64") for text in encoded]
    if (script := config.get("script")) is not None:
        return [_script(script, call)]
    return []


def _script(script: Any, call: ToolCall) -> str:
    """A file's text, or the statements themselves if they stand there."""
    if isinstance(script, str) and ("\n" in script or ";" in script or " " in script.strip()):
        return script
    parts = {"uri": script} if isinstance(script, str) else mapping({"script": script}, "script")
    kind = str(mapping(parts, "source").get("type") or "file")
    if kind != "file":
        raise BadConfig(f"script.source.type {kind!r} is not read here; use file")
    path = local_path(str(need(parts, "uri", "path")), call)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"the script {path} could not be read: {error}") from error


def statement_result(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, affected: int
) -> dict[str, Any]:
    """What one statement gave. Without columns it returned nothing, and `row_count` is how many rows it
    changed."""
    shown = [
        {n: portable(value, f"$.rows[{i}].{n}") for n, value in zip(columns, row, strict=True)}
        for i, row in enumerate(rows)
    ]
    return {
        "rows": shown,
        "columns": list(columns),
        "row_count": len(shown) if columns else max(affected, 0),
    }


def sql_result(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of the last statement, and under `command_0`, `command_1`, … that of each."""
    each = {f"command_{number}": statement for number, statement in enumerate(done)}
    return {"status": "ok", **done[-1], "statement_count": len(done), **each}
