"""Spec layering (seed 004 §3): scalars and lists of the inner layer win, maps merge deeply.

Policies are typed by scope, so they never take part: each scope keeps its own. What routes or
schedules (`entry_step`, a loop's `mode`) is no knob of a task either.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.values import Value

_ROUTING: Final = frozenset(
    [
        "policy",
        "entry_step",
        "final_step",
        "no_next_is_error",
        "on_failure",
        "on_cancel",
        "mode",
        "max_in_flight",
    ]
)


def merge(outer: Value, inner: Value) -> Value:
    """Deep merge of two mappings, inner wins; anything but two mappings: inner."""
    if not isinstance(outer, dict) or not isinstance(inner, dict):
        return inner
    out = dict(outer)
    for key, value in inner.items():
        out[key] = merge(out[key], value) if key in out else value
    return out


def knobs(spec: dict[str, Value] | None) -> dict[str, Value]:
    return {key: value for key, value in (spec or {}).items() if key not in _ROUTING}


def defaults_for(kind: str, executor_policy: dict[str, Value]) -> dict[str, Value]:
    """`executor.spec.policy.defaults`: for all tasks, or under a kind's name for that kind only."""
    defaults = executor_policy.get("defaults") or {}
    shared = {key: value for key, value in defaults.items() if key != "kinds"}
    own: dict[str, Value] = merge(shared, (defaults.get("kinds") or {}).get(kind) or {})
    return own


def effective_spec(
    kind: str, executor: dict[str, Value], *inner: dict[str, Value] | None
) -> dict[str, Value]:
    """merge(kind defaults, executor.spec, step.spec, loop.spec, task.spec) without any policy."""
    spec: dict[str, Value] = defaults_for(kind, executor.get("policy") or {})
    for layer in (executor, *inner):
        spec = merge(spec, knobs(layer))
    return spec
