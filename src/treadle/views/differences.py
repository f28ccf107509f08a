"""Two values, and where they differ: path, left, right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

MISSING: Final = "(absent)"


def differences(left: Any, right: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Every place where two values differ, depth first, in the order of the left one."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in [*left, *(key for key in right if key not in left)]:
            at = f"{path}.{key}" if path else str(key)
            yield from differences(left.get(key, MISSING), right.get(key, MISSING), at)
    elif isinstance(left, list) and isinstance(right, list):
        for index in range(max(len(left), len(right))):
            one = left[index] if index < len(left) else MISSING
            other = right[index] if index < len(right) else MISSING
            yield from differences(one, other, f"{path}[{index}]")
    elif left != right or type(left) is not type(right):
        yield {"path": path or "$", "left": left, "right": right}
