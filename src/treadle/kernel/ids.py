"""Ids that are derived, never drawn: equal replays give equal ids, on whatever machine they happen.

A run's id tells its root, so a child lives where its root lives (`shard_of`): messages between them stay there.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from .model import Intent
from .values import encode

_CHILD_CHARS: Final = 12
_SUFFIX: Final = re.compile(rf"\.[0-9a-f]{{{_CHILD_CHARS}}}")


def intent_id(identity: bytes, intent: Intent, seq: int, index: int) -> str:
    """The id an intent gets: `identity` is `encode([run, definition, key])`, `index` its position in
    the decision. A machine may compute it to name its own waiting token in an event."""
    named = encode([intent.kind, intent.params, intent.idempotency_key, seq, index])
    return hashlib.sha256(identity + named).hexdigest()[:32]


def child_id(parent: str, intent: str) -> str:
    """The id of the run that an intent starts."""
    return f"{parent}.{intent[:_CHILD_CHARS]}"


def root_of(run: str) -> str:
    """The run at the head of a family. A name of somebody's own that ends as a child's does is taken for
    one, which only says where it lives."""
    end = len(run)
    while (start := end - _CHILD_CHARS - 1) > 0 and _SUFFIX.fullmatch(run, start, end):
        end = start
    return run[:end]


@lru_cache(maxsize=16_384)
def shard_of(run: str, count: int) -> int:
    """On which of a store's shards a run lives. Remembered: every step of a run asks."""
    if count == 1:
        return 0
    return int.from_bytes(hashlib.sha256(root_of(run).encode()).digest()[:8], "big") % count
