"""Payloads put back where their references stand, for people who look at a run.

Only references that a dialect marked as its own bookkeeping (`schema_hint` agent or process) are
resolved: other dialects show references to their users on purpose.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.errors import BlobMissing
from treadle.kernel.model import addressed, is_reference
from treadle.kernel.values import Value, decode_trusted
from treadle.store.protocol import Reads

HIDDEN: Final = frozenset({"agent", "process"})
# How the field of agents looks in canonical bytes: most records have none, and are not walked. (No
# event of a process holds a payload.)
MARK: Final = b"schema_hinteagent"


def is_hidden(value: Value) -> bool:
    return is_reference(value) and value.get("schema_hint") in HIDDEN


def refers(value: Value) -> bool:
    """Whether a hidden reference stands anywhere in a value."""
    if isinstance(value, dict):
        return is_hidden(value) or any(map(refers, value.values()))
    return isinstance(value, list) and any(map(refers, value))


def whole(reads: Reads, value: Value) -> Value:
    """The value with every hidden reference replaced by what is stored behind it."""
    if isinstance(value, dict):
        if is_hidden(value):
            try:
                return addressed(value, decode_trusted(reads.blob(value["checksum"])))
            except BlobMissing:
                return value  # gone, or never ours: the run is shown all the same
        return {key: whole(reads, item) for key, item in value.items()}
    return [whole(reads, item) for item in value] if isinstance(value, list) else value
