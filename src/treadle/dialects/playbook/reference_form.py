"""How a payload that was put away looks in its place: a reference that says what it stands for.

Workers make them of results, the machine of what it renders itself (`marking.Turn.light`). PLAYBOOK §5.12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from treadle.kernel.values import Value

from .model import PREVIEW_BYTES_MAX


def by_reference(run: str, value: Value, stored: Mapping[str, Value]) -> dict[str, Value]:
    """The reference to a value that no task gave as its result: a key of ctx or workload, an argument."""
    return {
        "kind": "result_ref",
        "ref": f"treadle://execution/{run}/blob/{stored['checksum']}",
        **stored,
        "scope": "execution",
        "expires_at": None,
        "extracted": {},
        "preview": preview(value, PREVIEW_BYTES_MAX),
    }


def preview(value: Value, limit: int) -> dict[str, Value]:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    cut = text.encode()[:limit].decode(errors="ignore")
    return {"truncated": len(cut) < len(text), "bytes": len(text.encode()), "sample": cut}
