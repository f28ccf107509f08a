"""How long stored results live: `spec.result.store: {scope, ttl}` (PLAYBOOK §5.12).

A TTL counts from the end of the run, so nothing that a run may still look into goes away under it.
Without a TTL a payload of scope `step` may go once its run has ended, one of scope `execution` or
`workflow` goes with its run, and a `permanent` one never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treadle.kernel.roles import FOREVER_NS
from treadle.kernel.values import Value
from treadle.lang.duration import DURATION_NS_MAX, instant_text, parse_duration

from .handles import is_stored

SCOPES: Final = ("step", "execution", "workflow", "permanent")


def lifetime_ns(reference: Mapping[str, Value]) -> int | None:
    """Nanoseconds after the run's end; None: as long as the run; FOREVER_NS: for ever."""
    scope, ttl = reference.get("scope"), reference.get("ttl")
    if scope == "permanent":
        return FOREVER_NS
    if ttl is not None:
        return min(parse_duration(ttl), DURATION_NS_MAX)
    return 0 if scope == "step" else None


def declared(body: Value) -> bool:
    """Whether any `store` in a definition gives its payload a life of its own."""
    if isinstance(body, dict):
        store = body.get("store")
        if isinstance(store, dict) and ("ttl" in store or store.get("scope") in ("step", "permanent")):
            return True
        return any(declared(item) for item in body.values())
    return isinstance(body, list) and any(declared(item) for item in body)


def stamped(value: Value, ended_ns: int) -> Value:
    """The value with `expires_at` in each reference that expires after this end."""
    if isinstance(value, list):
        return [stamped(item, ended_ns) for item in value]
    if not isinstance(value, dict):
        return value
    if is_stored(value) and "expires_at" in value:
        left = lifetime_ns(value)
        ends = None if left is None or left == FOREVER_NS else instant_text(ended_ns + left)
        return {**value, "expires_at": ends}
    return {key: stamped(item, ended_ns) for key, item in value.items()}
