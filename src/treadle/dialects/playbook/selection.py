"""`spec.result.select`: a few fields of a result by name, readable without loading it (PLAYBOOK §5.12).

A small JSON path: `$.a.b[0]['c d']`, or a bare name. No wildcards, no filters: those are what
templates are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from treadle.kernel.values import Value

_PATH = r"\$?(\.?[A-Za-z_][\w-]*|\[\d+\]|\[['\"][^'\"]+['\"]\])+"
_PART = r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]"


def extracted(config: Mapping[str, Value], result: Value) -> dict[str, Value]:
    """What `select` of a task's result configuration picks, by the names it gives."""
    return {name: select(result, path) for name, path in picks(config.get("select"))}


def picks(given: Value) -> Iterator[tuple[str, str]]:
    """Name and path of each item of a `select`: `{path, as}`, or a text that is a path. A text is known
    by the last name in it, so that `paging.next` is read as `next`."""
    for item in given if isinstance(given, list) else [given] if given else ():
        if isinstance(item, str):
            names = [name or quoted for name, _, quoted in re.findall(_PART, item.removeprefix("$"))]
            yield next((name for name in reversed(names) if name), item), item
        else:
            yield str(item.get("as") or item["path"]), str(item["path"])


def is_pick(item: Value) -> bool:
    """Whether an item of a `select` says what to pick."""
    path = item.get("path") if isinstance(item, dict) else item
    return isinstance(path, str) and re.fullmatch(_PATH, path) is not None


def select(value: Value, path: str) -> Value:
    """What a path leads to; null where it leads nowhere."""
    for match in re.finditer(_PART, path.removeprefix("$")):
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
