"""Nets that make more tokens than there can be, as far as their arcs alone show it.

Each inclusive step with two arcs that always match doubles what reaches the steps behind it, unless a join makes
one token of them: thirty such steps in a row make a thousand million. A run of it fails at 100,000 (`marking`);
`check` says so before.
"""

from __future__ import annotations

from .net import Net, always
from .reading import Reader
from .slices import SLICES


def tokens_multiply(reader: Reader, net: Net) -> None:
    """Names the first step that is reached by too many tokens. Cycles, and what is behind them, are left out:
    what they make depends on their guards."""
    waiting = dict.fromkeys(net.steps, 0)
    for name in net.steps:
        for target in _sure(net, name):
            waiting[target] += 1
    tokens = dict.fromkeys(net.steps, 0)
    tokens[net.entry] = 1
    ready = [name for name, count in waiting.items() if not count]
    while ready:
        name = ready.pop(0)
        made = min(tokens[name], 1) if _joins(net, name) else tokens[name]
        if made > SLICES.tokens:
            reader.warning(
                "tokens_multiply",
                net.path(name),
                f"{made:,} tokens reach {name!r}, more than the {SLICES.tokens:,} that a run may have",
                hint="join branches where they meet (spec.policy.admit.join), or let mode be exclusive",
                rule="000 §4.2",
            )
            return
        for target in _sure(net, name):
            tokens[target] += made
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)


def _sure(net: Net, name: str) -> list[str]:
    """The steps that get a token each time this one ends."""
    arcs = net.arcs(name)
    if net.inclusive(name):
        return [arc["step"] for arc in arcs if always(arc)]
    return [arcs[0]["step"]] if arcs and always(arcs[0]) else []


def _joins(net: Net, name: str) -> bool:
    admit = ((net.steps[name].get("spec") or {}).get("policy") or {}).get("admit") or {}
    return "join" in admit or bool(admit.get("once"))
