"""`spec.result.select`: a few fields of a result by name, readable without loading it (PLAYBOOK §5.12).

A small JSON path: `$.a.b[0]['c d']`. No wildcards, no filters: those are what templates are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from treadle.kernel.values import Value

_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")


def extracted(config: Mapping[str, Any], result: Value) -> dict[str, Value]:
    """What `select` of a task's result configuration picks, by the names it gives."""
    return {
        str(item.get("as") or item["path"]): select(result, str(item["path"]))
        for item in config.get("select") or ()
    }


def select(value: Value, path: str) -> Value:
    """What a path leads to; null where it leads nowhere."""
    for match in _PART.finditer(path.removeprefix("$")):
        name, index, quoted = match.groups()
        if index is not None:
            if not isinstance(value, list) or int(index) >= len(value):
                return None
            value = value[int(index)]
        else:
            if not isinstance(value, dict):
                return None
            value = value.get(name or quoted)
    return value
