"""Which fields of which keychain entries a playbook's tasks read.

The proof before the first token asks for them, so that a field that is not there stops the run
before anything has happened, instead of going out as an empty credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from treadle.kernel.values import Value

_NAME: Final = r"""(?:\.(\w+)|\[\s*['"]([^'"]+)['"]\s*\])"""
# A field that the template itself may do without (`| default(…)`, `is defined`) and a method are left out.
_READ: Final = rf"\bkeychain{_NAME}{_NAME}(?!\w)(?!\s*(?:\(|\|\s*d(?:efault)?\b|is\b))"


def fields_read(value: Value) -> dict[str, list[str]]:
    """The fields by entry, each once, in the order of the definition."""
    found: dict[str, dict[str, None]] = {}
    for entry, field in _fields(value):
        found.setdefault(entry, {})[field] = None
    return {entry: list(fields) for entry, fields in found.items()}


def _fields(value: Value) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if "keychain" in value and "{" in value:
            for match in re.finditer(_READ, value):
                yield match[1] or match[2], match[3] or match[4]
    elif isinstance(value, dict):
        for item in value.values():
            yield from _fields(item)
    elif isinstance(value, list):
        for item in value:
            yield from _fields(item)
